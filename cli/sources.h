// Sources: the files that convert reads, found before anything is written.
#pragma once

#include <string>
#include <vector>

namespace moetape::cli {

struct SourceFile {
  std::string path;
  std::string id;  // what its sequence is called: its name without extension, with the folders in between
};

// Files as they are named, and all files in folders, sorted. Of what a folder holds, hidden names, `output`
// (which an earlier run may have left there) and the shards of a tape whose index is there too are left out.
// Refuses a folder that cannot be read or holds nothing, and what in it cannot be read as a file: links that
// lead nowhere or to folders, pipes, devices.
std::vector<SourceFile> find_files(const std::vector<std::string>& paths, const std::string& output);

}  // namespace moetape::cli
