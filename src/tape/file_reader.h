// FileReader: one file of a tape, or the bytes of one. Immutable to its users; any thread.
//
// Opening looks at the header and at the ends of the offsets only; all else is checked when it is used, and
// nothing that the bytes say is relied on before.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/mapped_file.h"
#include "moetape/buffer.h"
#include "moetape/tape.h"
#include "tape/facts.h"
#include "tape/id_group.h"
#include "tape/metadata.h"
#include "tape/schema.h"

namespace moetape::inline v0::tape {

// The file of that name; kInvalidArgument for what is no name.
Result<std::shared_ptr<MappedFile>> map_file(const std::string& path);

class FileReader {
 public:
  static Result<std::shared_ptr<const FileReader>> open(std::string path, std::shared_ptr<MappedFile> file);
  static Result<std::shared_ptr<const FileReader>> from_bytes(Buffer bytes, std::string name);

  const std::string& name() const { return name_; }
  const Description& description() const { return description_; }
  std::span<const IdGroup> groups() const { return groups_; }
  std::span<const Channel> channels() const { return channels_; }
  const TapeFile& file() const { return file_; }
  const std::string& header_checksum() const { return header_checksum_; }
  int64_t num_sequences() const { return file_.num_sequences; }
  int64_t num_rows() const { return file_.num_rows; }

  // The file is as long as when it was opened.
  Status check_size() const;

  // What is said of a sequence, checked; its texts are views of the tape. The last one is kept: it costs what
  // the sequence holds, however few of its rows are wanted.
  Result<std::shared_ptr<const Facts>> facts(int64_t sequence) const;
  // The same, not kept: for whoever goes through all of them.
  Result<Facts> read_facts(int64_t sequence) const;

  // Columns of checksums: the groups of ids, the tokens, the channels.
  int64_t token_column() const { return std::ssize(groups_); }
  int64_t channel_column(int64_t channel) const { return token_column() + 1 + channel; }
  int64_t num_columns() const { return channel_column(std::ssize(channels_)); }

  // Stored rows [first, end) of a sequence in a tensor of rows; the blocks in which they lie are checked by
  // check_blocks().
  const std::byte* rows(const Facts& facts, int64_t column, int64_t first) const;
  int64_t row_bytes(int64_t column) const;
  Status check_blocks(int64_t sequence, const Facts& facts, int64_t column, int64_t first, int64_t end) const;
  std::span<const int32_t> tokens(const Facts& facts, std::vector<int32_t>& copy) const;
  // Where a byte of the tape stands in the file.
  int64_t offset_of(const void* byte) const { return static_cast<const std::byte*>(byte) - bytes_.data(); }
  const std::shared_ptr<void>& owner() const { return bytes_.owner(); }

  // What no sequence owns: the checksum over all of them, and that together they use all runs and tokens.
  std::vector<Error> check_between() const;

 private:
  FileReader(Buffer bytes, std::string name, std::shared_ptr<MappedFile> mapped, Description description);
  static Result<std::shared_ptr<const FileReader>> make(Buffer bytes, std::string name,
                                                        std::shared_ptr<MappedFile> mapped);

  // A tensor of the file.
  struct Tensor {
    const std::byte* data = nullptr;
    int64_t size = 0;  // elements
    bool there = false;

    template <class T>
    T at(int64_t index) const {
      return load<T>(data + index * int64_t{sizeof(T)});
    }
  };

  Status find_tensors(const Header& header);
  Status find_row_tensors(std::map<std::string_view, const TensorInfo*>& tensors);
  Status find_small_tensors(std::map<std::string_view, const TensorInfo*>& tensors);
  Status check_rest(const std::map<std::string_view, const TensorInfo*>& tensors) const;
  // Where a tensor begins, counted from the header's end, which is aligned itself.
  Status check_alignment(const TensorInfo& tensor, int64_t alignment) const;
  Status check_sizes() const;
  Status check_ends() const;
  const std::byte* data_at(int64_t offset) const { return bytes_.data() + data_begin_ + offset; }
  const Tensor& small(SmallTensor tensor) const { return small_[tensor]; }

  Result<std::pair<int64_t, int64_t>> part(int64_t sequence, SmallTensor offsets, int64_t limit) const;
  Result<std::vector<VersionRun>> runs(int64_t sequence, const Facts& facts) const;
  Result<Facts> gather_facts(int64_t sequence) const;
  template <class... Args>
  Failure damaged(int64_t sequence, fmt::format_string<Args...> format, Args&&... args) const;

  Buffer bytes_;
  std::string name_;
  std::shared_ptr<MappedFile> mapped_;  // null for bytes
  Description description_;
  std::vector<IdGroup> groups_;
  std::vector<Channel> channels_;
  TapeFile file_;
  std::string header_checksum_;
  std::string content_checksum_;
  int64_t data_begin_ = 0;
  std::vector<Tensor> row_tensors_;  // groups, then channels
  std::array<Tensor, kNumSmallTensors> small_;
  mutable std::mutex last_mutex_;
  mutable int64_t last_sequence_ = -1;
  mutable std::shared_ptr<const Facts> last_facts_;
};

}  // namespace moetape::inline v0::tape
