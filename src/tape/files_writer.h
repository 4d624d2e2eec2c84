// FilesWriter: a tape of one file, or of several and an index, that appears under its name at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moetape/tape.h"
#include "tape/file_writer.h"
#include "tape/index.h"
#include "tape/metadata.h"
#include "tape/output.h"

namespace moetape::inline v0 {

class TapeWriter::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(const std::string& path, const RouteSpec& spec,
                                              const TapeOptions& options);

  const RouteSpec& spec() const { return description_.spec; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_rows() const { return num_rows_; }

  Status check_open() const;  // kClosed once finished
  Status append(const tape::SequenceInput& input);
  Status finish();

 private:
  // A file that is complete, still hidden.
  struct Part {
    std::unique_ptr<tape::HiddenFile> file;
    tape::Shard shard;
  };

  Impl(tape::Description description, tape::Target target, const TapeOptions& options)
      : description_(std::move(description)),
        target_(std::move(target)),
        max_file_bytes_(options.max_file_bytes),
        overwrite_(options.overwrite) {}

  Status open_file();
  Status close_file();
  Status publish_shards();

  tape::Description description_;
  tape::Target target_;
  int64_t max_file_bytes_;
  bool overwrite_;
  std::unique_ptr<tape::FileWriter> file_;  // null between files
  tape::HiddenFile* hidden_ = nullptr;      // its output
  std::vector<Part> parts_;
  std::string tag_;
  int64_t num_sequences_ = 0;
  int64_t num_rows_ = 0;
  bool finished_ = false;
};

}  // namespace moetape::inline v0
