// Where a tape's bytes go while it is written: a file that gets its name at the end, or memory; and the
// tensors that have to wait until others are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moetape/buffer.h"
#include "moetape/error.h"
#include "tape/names.h"

namespace moetape::inline v0::tape {

// An open file descriptor. All errors are kIo and name the path.
class File {
 public:
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Status write(int64_t at, std::span<const std::byte> bytes);
  Status read(int64_t at, std::span<std::byte> bytes) const;
  Status cut(int64_t bytes);
  Status sync();

 private:
  int descriptor_;
  std::string path_;
};

class Output {
 public:
  virtual ~Output() = default;
  virtual Status write(int64_t at, std::span<const std::byte> bytes) = 0;
  // Drops what was written behind; what is written is all that counts.
  virtual Status cut(int64_t bytes) = 0;
};

// A file under a hidden name in the target's folder; it goes with the object unless it is kept.
class HiddenFile final : public Output {
 public:
  static Result<std::unique_ptr<HiddenFile>> create(const Target& target);
  ~HiddenFile() override;

  Status write(int64_t at, std::span<const std::byte> bytes) override { return file_->write(at, bytes); }
  Status cut(int64_t bytes) override { return file_->cut(bytes); }
  Status sync() { return file_->sync(); }
  // Nothing more is written or synced.
  void close() { file_.reset(); }
  const std::string& path() const { return path_; }
  // Gives it another name in its folder, as give_name does.
  Status rename(const std::string& name, bool overwrite);
  void keep() { kept_ = true; }

 private:
  HiddenFile(std::unique_ptr<File> file, std::string folder, std::string path)
      : file_(std::move(file)), folder_(std::move(folder)), path_(std::move(path)) {}
  std::unique_ptr<File> file_;
  std::string folder_;
  std::string path_;
  bool kept_ = false;
};

class MemoryOutput final : public Output {
 public:
  // Makes room for so many bytes at once.
  Status reserve(int64_t bytes);
  Status write(int64_t at, std::span<const std::byte> bytes) override;
  Status cut(int64_t bytes) override;
  Buffer take() &&;

 private:
  Buffer bytes_;
  int64_t size_ = 0;
};

// A tensor that waits: in memory while it is short, then in a nameless file in `folder` (without one, always
// in memory).
class Spool {
 public:
  explicit Spool(std::optional<std::string> folder) : folder_(std::move(folder)) {}

  Status append(std::span<const std::byte> bytes);
  template <class T>
  Status append_values(std::span<const T> values) {
    return append(std::as_bytes(values));
  }
  int64_t size() const { return in_file_ + static_cast<int64_t>(memory_.size()); }
  // Back to an earlier size.
  void cut(int64_t bytes);
  Status copy_to(Output& output, int64_t at) const;

 private:
  Status spill();
  std::optional<std::string> folder_;
  std::vector<std::byte> memory_;  // behind what is in the file
  std::unique_ptr<File> file_;
  int64_t in_file_ = 0;
};

}  // namespace moetape::inline v0::tape
