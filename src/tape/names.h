// Names of files: which one a path means, and how a file that is complete gets it.
#pragma once

#include <string>
#include <string_view>

#include "moetape/error.h"

namespace moetape::inline v0::tape {

inline constexpr size_t kMaxNameBytes = 255;  // of Linux's file systems

// The file that a path means, with symbolic links followed; it need not exist, its folder must.
struct Target {
  std::string folder;  // "." for none
  std::string name;

  // kInvalidArgument for a path that is no name of a regular file, kIo for one that cannot be looked at.
  static Result<Target> resolve(const std::string& path);
  std::string path() const { return folder + "/" + name; }
  // kConflict where a file has the name.
  Status check_free() const;
};

// Gives the file at `from` the path `to` in the same folder: in place of whatever has it (`overwrite`), else
// only if nothing has (kConflict). Nobody ever sees `to` without its bytes where the file system can do that.
Status give_name(const std::string& from, const std::string& to, bool overwrite);

// How a name is taken that must be free, each for file systems that lack the ways before it; 0 or errno,
// which is EEXIST where the name is not free.
int take_by_rename(const std::string& from, const std::string& to);
int take_by_link(const std::string& from, const std::string& to);
int take_by_reserving(const std::string& from, const std::string& to);

// Makes names in a folder last.
Status sync_folder(const std::string& folder);
// ".run.tape.5e1c09af.part", another for every call; short whatever the name.
std::string hidden_name(std::string_view name);
// 8 hexadecimal digits, another for every call.
std::string random_tag();
// The longest beginning of at most so many bytes that cuts no character of UTF-8 in two.
std::string_view cut_text(std::string_view text, size_t most_bytes);

Failure system_failure(std::string_view path, std::string_view what, int error);

}  // namespace moetape::inline v0::tape
