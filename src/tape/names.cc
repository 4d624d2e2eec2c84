#include "tape/names.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>

#include "base/fail.h"

namespace moetape::inline v0::tape {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;            // as many as Linux follows
constexpr size_t kHiddenNameBytes = 100;  // of the name, enough to see whose it was

Failure taken(std::string_view path) {
  return fail(ErrorCode::kConflict, "{}: expected no file there, since overwrite is not set", path);
}

// What a file system says that cannot do a thing at all.
bool is_lack(int error) {
  constexpr std::array kLacks = {EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EMLINK};
  return std::ranges::find(kLacks, error) != kLacks.end();
}

}  // namespace

Failure system_failure(std::string_view path, std::string_view what, int error) {
  return fail(ErrorCode::kIo, "{}: {}: {}", path, what, std::generic_category().message(error));
}

std::string random_tag() { return fmt::format("{:08x}", std::random_device{}()); }

std::string_view cut_text(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  constexpr int kContinuation = 0x80;
  while (most_bytes > 0 && (text[most_bytes] & 0xC0) == kContinuation) --most_bytes;
  return text.substr(0, most_bytes);
}

std::string hidden_name(std::string_view name) {
  return fmt::format(".{}.{}.part", cut_text(name, kHiddenNameBytes), random_tag());
}

Result<Target> Target::resolve(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "path: expected the name of a file, got {:?}", path);
  }
  fs::path resolved(path);
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(resolved, error)); ++links) {
    if (links == kMostLinks) return system_failure(path, "cannot be followed", ELOOP);
    const fs::path next = fs::read_symlink(resolved, error);
    if (error) return system_failure(path, "cannot be followed", error.value());
    resolved = next.is_absolute() ? next : resolved.parent_path() / next;
  }
  const fs::file_status status = fs::status(resolved, error);
  if (!fs::status_known(status)) return system_failure(path, "cannot be looked at", error.value());
  if (!resolved.has_filename() || (fs::exists(status) && !fs::is_regular_file(status))) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected the name of a regular file, got {}", path,
                fs::is_directory(status) || !resolved.has_filename() ? "a folder" : "something else");
  }
  const std::string folder = resolved.parent_path().string();
  return Target{folder.empty() ? "." : folder, resolved.filename().string()};
}

Status Target::check_free() const {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path(), error))) return taken(path());
  return {};
}

int take_by_rename(const std::string& from, const std::string& to) {
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
}

int take_by_link(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) != 0) return errno;
  if (unlink(from.c_str()) == 0) return 0;
  const int error = errno;
  unlink(to.c_str());
  return error;
}

int take_by_reserving(const std::string& from, const std::string& to) {
  const int reserved = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (reserved < 0) return errno;
  close(reserved);
  if (std::rename(from.c_str(), to.c_str()) == 0) return 0;
  const int error = errno;
  unlink(to.c_str());
  return error;
}

Status give_name(const std::string& from, const std::string& to, bool overwrite) {
  if (from == to) return {};
  int error = EINVAL;
  if (overwrite) {
    error = std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  } else {
    for (const auto take : {take_by_rename, take_by_link, take_by_reserving}) {
      error = take(from, to);
      if (!is_lack(error)) break;
    }
  }
  if (error == 0) return {};
  if (error == EEXIST && !overwrite) return taken(to);
  return system_failure(to, overwrite ? "cannot be replaced" : "cannot be named", error);
}

Status sync_folder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return {};  // a folder may be writable and not readable
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (error == 0 || error == EINVAL) return {};  // not every file system can
  return system_failure(folder, "cannot be brought to the disk", error);
}

}  // namespace moetape::inline v0::tape
