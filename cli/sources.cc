#include "sources.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "input.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

namespace fs = std::filesystem;

// One file, under whatever name.
using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> identity_of(const std::string& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return {};
  return Identity(facts.st_dev, facts.st_ino);
}

struct Found {
  SourceFile file;
  Identity identity;
};

class FolderWalk {
 public:
  explicit FolderWalk(fs::path root) : root_(std::move(root)) { walk(root_); }

  std::vector<Found> take() && { return std::move(found_); }

 private:
  void walk(const fs::path& folder) {
    std::error_code error;
    fs::directory_iterator place(folder, error);
    for (; !error && place != fs::directory_iterator(); place.increment(error)) {
      if (!place->path().filename().string().starts_with('.')) look_at(place->path());
    }
    if (error) refuse("{}: {}", folder.string(), error.message());
  }

  void look_at(const fs::path& path) {
    const std::string name = path.string();
    struct stat link{};
    struct stat facts{};
    const bool is_link = lstat(name.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
    if (stat(name.c_str(), &facts) != 0) {
      if (is_link && errno == ENOENT) refuse("{}: a link that leads nowhere", name);
      refuse("{}: {}", name, std::strerror(errno));
    }
    if (S_ISDIR(facts.st_mode)) {
      if (is_link)
        refuse("{}: a link to a folder, which is not followed; name the files that are meant", name);
      return walk(path);
    }
    if (!S_ISREG(facts.st_mode)) refuse("{}: expected a file or folder, got a pipe or device", name);
    const std::string id = path.lexically_relative(root_).replace_extension().string();
    found_.push_back({{name, id}, {facts.st_dev, facts.st_ino}});
  }

  fs::path root_;
  std::vector<Found> found_;
};

// The shards of the tapes whose indices are among the files.
std::set<Identity> shards_among(const std::vector<Found>& found) {
  std::set<Identity> shards;
  for (const auto& [file, identity] : found) {
    const Input input(file.path);
    if (!input.is_index()) continue;
    const Tape tape = need(input.tape());
    for (const TapeFile& shard : tape.files()) {
      if (const auto one = identity_of(shard.path)) shards.insert(*one);
    }
  }
  return shards;
}

void find_in_folder(const std::string& folder, const std::string& output, std::vector<SourceFile>& files) {
  std::vector<Found> found = FolderWalk(folder).take();
  if (const auto written = identity_of(output)) {
    std::erase_if(found, [&](const Found& one) { return one.identity == *written; });
  }
  const std::set<Identity> shards = shards_among(found);
  std::erase_if(found, [&](const Found& one) { return shards.contains(one.identity); });
  if (found.empty()) refuse("{}: the folder holds no files", folder);
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.file.path < b.file.path; });
  for (Found& one : found) files.push_back(std::move(one.file));
}

}  // namespace

std::vector<SourceFile> find_files(const std::vector<std::string>& paths, const std::string& output) {
  std::vector<SourceFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path == "-") {
      files.push_back({path, ""});
    } else if (fs::is_directory(path, error)) {
      find_in_folder(path, output, files);
    } else {
      files.push_back({path, fs::path(path).stem().string()});
    }
  }
  return files;
}

}  // namespace moetape::cli
