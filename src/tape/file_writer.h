// FileWriter: one file of a tape, written in order. The tensor of the first group of ids streams into it; the
// others wait in spools until its length is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/routes.h"
#include "moetape/tape.h"
#include "tape/checksum.h"
#include "tape/facts.h"
#include "tape/header.h"
#include "tape/id_group.h"
#include "tape/metadata.h"
#include "tape/output.h"
#include "tape/schema.h"

namespace moetape::inline v0::tape {

// One sequence on its way into a tape. The functions give rows [first, first + count), in order, good until
// they are called again; where rows are missing, their bytes are zero.
struct SequenceInput {
  struct Rows {
    const std::byte* ids;  // [count, L, K]
    const Reason* reasons;
  };

  std::string_view id = {};
  std::string_view meta = {};
  int64_t start = 0;
  int64_t num_rows = 0;
  std::optional<std::span<const int32_t>> tokens = {};
  std::vector<VersionRun> versions = {};  // positions
  std::function<Result<Rows>(int64_t first, int64_t count)> rows = {};
  std::span<const Channel> channels = {};
  std::function<Result<const std::byte*>(int64_t channel, int64_t first, int64_t count)> channel_rows = {};
};

class FileWriter {
 public:
  // Spools go to files in `folder`, or stay in memory.
  static Result<std::unique_ptr<FileWriter>> create(Description description, std::unique_ptr<Output> output,
                                                    std::optional<std::string> folder);

  // Adds all of it or nothing. All sequences have the same channels (kConflict).
  Status append(const SequenceInput& input);

  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_rows() const { return num_rows_; }
  std::span<const Channel> channels() const { return channels_; }
  // At most so large is the file if it ends now, and so much larger with this sequence.
  int64_t most_bytes() const;
  int64_t most_bytes_of(const SequenceInput& input) const;

  // Completes the file; may be called again if it fails.
  struct Finished {
    int64_t num_bytes;
    std::string header_checksum;
  };
  Result<Finished> finish();
  std::unique_ptr<Output> take_output() { return std::move(output_); }

 private:
  FileWriter(Description description, std::unique_ptr<Output> output, std::optional<std::string> folder);

  struct Mark;
  Mark mark() const;
  void go_back(const Mark& mark);

  Status check(const SequenceInput& input) const;
  Status begin(const SequenceInput& input);
  Status append_rows(const SequenceInput& input, Facts& facts);
  Status append_facts(const SequenceInput& input, Facts& facts);
  Status append_bits(const std::vector<std::byte>& bits, int64_t count);

  struct Planned {
    TensorInfo info;  // without its place
    int64_t num_bytes;
    int64_t alignment;
    const Spool* spool;  // null: streamed
  };
  // The tensors in the order of the file: those it has now, or all it may get.
  std::vector<Planned> plan(bool all) const;
  bool is_needed(SmallTensor tensor) const;
  Result<int64_t> header_bytes() const;

  Description description_;
  std::vector<IdGroup> groups_;
  std::vector<Channel> channels_;
  MetadataList metadata_;
  std::unique_ptr<Output> output_;
  std::optional<std::string> folder_;
  int64_t header_bytes_ = 0;  // reserved

  int64_t num_sequences_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_blocks_ = 0;
  int64_t num_runs_ = 0;
  bool any_missing_ = false;
  bool any_tokens_ = false;
  std::byte last_bits_{0};                 // of kValidBits, not yet in its spool
  std::vector<Spool> row_spools_;          // of the groups behind the first, and of the channels
  std::vector<Spool> small_spools_;        // by SmallTensor
  std::vector<uint64_t> block_checksums_;  // of the sequence
  Checksum content_checksum_;
  std::vector<std::byte> scratch_;
};

}  // namespace moetape::inline v0::tape
