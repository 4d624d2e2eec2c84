// Runs a target over the files of folders, for builds without libFuzzer: fuzz_TARGET CORPUS REFUSED. Files of
// the second must be refused.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz.h"

namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  using moetape::fuzz::run;
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS REFUSED\n", argv[0]);
    return 2;
  }
  int num_faults = 0;
  int num_files = 0;
  for (const int folder : {1, 2}) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[folder])) {
      const bool expected = folder == 1;
      ++num_files;
      if (run(read_file(entry.path())) == expected) continue;
      std::fprintf(stderr, "%s: expected to be %s\n", entry.path().c_str(), expected ? "taken" : "refused");
      ++num_faults;
    }
  }
  std::printf("%d files\n", num_files);
  return num_faults == 0 && num_files > 0 ? 0 : 1;
}
