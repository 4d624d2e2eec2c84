#include "tape/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"

namespace moetape::inline v0::tape {
namespace {

constexpr int64_t kSpoolMemory = int64_t{1} << 20;

// A new file that nobody else has, readable as the process wishes its files to be, and its path. Errors name
// the file that it is to become.
Result<std::pair<std::unique_ptr<File>, std::string>> create_hidden(const std::string& folder,
                                                                    const std::string& name) {
  for (;;) {
    const std::string path = folder + "/" + hidden_name(name);
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return std::pair(std::make_unique<File>(descriptor, folder + "/" + name), path);
    if (errno != EEXIST) return system_failure(folder + "/" + name, "cannot be made", errno);
  }
}

Result<std::unique_ptr<File>> create_nameless(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (descriptor >= 0) return std::make_unique<File>(descriptor, folder + "/(nameless)");
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) {
    return system_failure(folder, "no file can be made in it", errno);
  }
  MOETAPE_ASSIGN(auto made, create_hidden(folder, "spool"));
  unlink(made.second.c_str());
  return std::move(made.first);
}

}  // namespace

File::~File() { close(descriptor_); }

Status File::write(int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_failure(path_, fmt::format("cannot be written at byte {}", at), errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    at += written;
  }
  return {};
}

Status File::read(int64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return system_failure(path_, "cannot be read", got == 0 ? EIO : errno);
    bytes = bytes.subspan(static_cast<size_t>(got));
    at += got;
  }
  return {};
}

Status File::cut(int64_t bytes) {
  if (ftruncate(descriptor_, bytes) == 0) return {};
  return system_failure(path_, fmt::format("cannot be cut to {} bytes", bytes), errno);
}

Status File::sync() {
  if (fsync(descriptor_) == 0) return {};
  return system_failure(path_, "cannot be brought to the disk", errno);
}

Result<std::unique_ptr<HiddenFile>> HiddenFile::create(const Target& target) {
  MOETAPE_ASSIGN(auto made, create_hidden(target.folder, target.name));
  return std::unique_ptr<HiddenFile>(
      new HiddenFile(std::move(made.first), target.folder, std::move(made.second)));
}

HiddenFile::~HiddenFile() {
  if (!kept_) unlink(path_.c_str());
}

Status HiddenFile::rename(const std::string& name, bool overwrite) {
  std::string path = folder_ + "/" + name;
  MOETAPE_TRY(give_name(path_, path, overwrite));
  path_ = std::move(path);
  return {};
}

Status MemoryOutput::write(int64_t at, std::span<const std::byte> bytes) {
  const int64_t end = at + std::ssize(bytes);
  if (end > bytes_.size()) MOETAPE_TRY(reserve(std::max(end, bytes_.size() * 2)));
  if (at > size_) std::memset(bytes_.mutable_data() + size_, 0, static_cast<size_t>(at - size_));
  if (!bytes.empty()) std::memcpy(bytes_.mutable_data() + at, bytes.data(), bytes.size());
  size_ = std::max(size_, end);
  return {};
}

Status MemoryOutput::cut(int64_t bytes) {
  size_ = std::min(size_, bytes);
  return {};
}

Status MemoryOutput::reserve(int64_t bytes) {
  if (bytes <= bytes_.size()) return {};
  MOETAPE_ASSIGN(Buffer larger, Buffer::allocate(bytes));
  if (size_ > 0) std::memcpy(larger.mutable_data(), bytes_.data(), static_cast<size_t>(size_));
  bytes_ = std::move(larger);
  return {};
}

Buffer MemoryOutput::take() && { return Buffer::wrap(bytes_.data(), size_, bytes_.owner()); }

Status Spool::append(std::span<const std::byte> bytes) {
  return guard_memory("tape", [&]() -> Status {
    memory_.insert(memory_.end(), bytes.begin(), bytes.end());
    if (!folder_ || std::ssize(memory_) < kSpoolMemory) return {};
    const Status spilled = spill();
    if (!spilled) memory_.resize(memory_.size() - bytes.size());
    return spilled;
  });
}

Status Spool::spill() {
  if (!file_) {
    MOETAPE_ASSIGN(file_, create_nameless(*folder_));
  }
  MOETAPE_TRY(file_->write(in_file_, memory_));
  in_file_ += std::ssize(memory_);
  memory_.clear();
  return {};
}

void Spool::cut(int64_t bytes) {
  if (bytes >= in_file_) {
    memory_.resize(static_cast<size_t>(bytes - in_file_));
  } else {
    memory_.clear();
    in_file_ = bytes;
  }
}

Status Spool::copy_to(Output& output, int64_t at) const {
  std::vector<std::byte> piece(static_cast<size_t>(std::min(in_file_, kSpoolMemory)));
  for (int64_t done = 0; done < in_file_;) {
    const auto part =
        std::span(piece).first(static_cast<size_t>(std::min(in_file_ - done, std::ssize(piece))));
    MOETAPE_TRY(file_->read(done, part));
    MOETAPE_TRY(output.write(at + done, part));
    done += std::ssize(part);
  }
  return output.write(at + in_file_, memory_);
}

}  // namespace moetape::inline v0::tape
