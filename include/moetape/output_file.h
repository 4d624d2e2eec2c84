// OutputFile: a file that appears under its name whole or not at all, and takes no name that another file has
// unless that is asked for. Tapes are written so, and pages and whatever else moetape writes.
//
// The bytes go to a hidden file in the folder of the path; finish() brings them to the disk and gives them
// the name. A file that goes away unfinished leaves nothing; a process that is killed leaves the hidden file
// (.NAME.XXXXXXXX.part, of a long name its beginning), which may be removed. Paths are UTF-8; a symbolic link
// stays, and the file that it points to is meant. Move-only, one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "moetape/error.h"

namespace moetape::inline v0 {

class OutputFile {
 public:
  // kConflict where a file has the name, unless `overwrite`; kInvalidArgument for a path that is no regular
  // file (a folder, a device); kIo.
  static Result<OutputFile> create(const std::string& path, bool overwrite = false);

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();

  // Behind what was written before. kIo (a full disk); kClosed after finish().
  Status write(std::span<const std::byte> bytes);
  // Where the bytes are until finish(), for those who write them by other means.
  const std::string& hidden_path() const;

  // Makes the file appear. kConflict where a file has taken the name since, unless `overwrite`; then, as for
  // every other error, nothing has appeared, what stood there is as it was, and finish() may be called again.
  // The one exception is a folder that takes the name and cannot be brought to the disk (kIo).
  Status finish();

 private:
  class Impl;
  explicit OutputFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moetape::inline v0
