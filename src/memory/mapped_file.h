// MappedFile: the bytes of a file, read-only, mapped.
//
// Any thread. The mapping outlives the file's name. Touching pages of a file that was cut since is SIGBUS;
// check_size() finds a cut that happened before it is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "moetape/error.h"

namespace moetape::inline v0 {

class MappedFile {
 public:
  // A regular file (kInvalidArgument otherwise); kIo with the system's words.
  static Result<std::shared_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

  // kCorruptData if the file is shorter now than what is mapped.
  Status check_size() const;
  // Gives the file descriptor back, of which a process has few, before the file is shared. From then on a cut
  // is found only while the file has the path that it was opened by.
  void close_descriptor();

 private:
  MappedFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  int file_;  // -1 when closed
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace moetape::inline v0
