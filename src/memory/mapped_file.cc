#include "memory/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fail.h"

namespace moetape::inline v0 {
namespace {

Failure system_failure(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, "{}: {}: {}", path, what, std::generic_category().message(errno));
}

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  // A pipe without a writer would be waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_failure(path, "cannot be opened");
  std::shared_ptr<MappedFile> file(new MappedFile(path, descriptor));
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) return system_failure(path, "cannot be looked at");
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected a regular file, got {}", path,
                S_ISDIR(status.st_mode) ? "a folder" : "something else");
  }
  file->size_ = status.st_size;
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  if (file->size_ == 0) return file;
  void* data = mmap(nullptr, static_cast<size_t>(file->size_), PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return system_failure(path, "cannot be mapped");
  file->data_ = static_cast<std::byte*>(data);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  close_descriptor();
}

void MappedFile::close_descriptor() {
  if (file_ >= 0) close(std::exchange(file_, -1));
}

Status MappedFile::check_size() const {
  struct stat status = {};
  if (file_ < 0) {
    const bool is_it =
        stat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
    if (!is_it) return {};
  } else if (fstat(file_, &status) != 0) {
    return system_failure(path_, "cannot be looked at");
  }
  if (status.st_size >= size_) return {};
  return fail(ErrorCode::kCorruptData, "{}: expected {} bytes, as when it was opened, got {}", path_, size_,
              static_cast<int64_t>(status.st_size));
}

}  // namespace moetape::inline v0
