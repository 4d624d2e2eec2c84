// For the tests of tapes: a folder of their own, routes with everything that a tape keeps, changed bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "moetape/tape.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {

class InFolder : public testing::Test {
 protected:
  InFolder() {
    std::string pattern = testing::TempDir() + "/moetape_tape_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~InFolder() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  // Names in the folder, hidden ones too.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }

  std::filesystem::path folder_;
};

inline std::vector<std::byte> bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// A copy, at an address that suits any type.
inline Buffer buffer_of(std::span<const std::byte> bytes) {
  Buffer buffer = value_of(Buffer::allocate(std::ssize(bytes)));
  if (!bytes.empty()) std::memcpy(buffer.mutable_data(), bytes.data(), bytes.size());
  return buffer;
}

inline std::vector<std::byte> bytes_of(const Buffer& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

// Random rows from `start`, a third of them missing where asked for, under two versions, with tokens where
// asked for.
struct Story {
  int64_t start = 0;
  int64_t num_rows = 0;
  bool missing = false;
  bool versions = false;
  bool tokens = false;
};

inline Routes tell(const RouteSpec& spec, const Story& story, uint64_t seed) {
  std::mt19937_64 random(seed);
  const Ids ids = random_ids(spec, story.num_rows, random);
  std::vector<uint8_t> valid(static_cast<size_t>(story.num_rows), 1);
  for (uint8_t& v : valid) v = !story.missing || random() % 3 != 0;
  RoutesBuilder builder = value_of(RoutesBuilder::create(spec, story.start, story.num_rows));
  const Routes plain = make_routes(spec, ids, valid, story.start);
  if (story.num_rows > 0) std::memcpy(builder.ids(), plain.ids().data(), plain.ids().size());
  for (int64_t row = 0; row < story.num_rows; ++row) {
    builder.reasons()[row] = valid[static_cast<size_t>(row)] ? Reason::kValid : Reason::kLost;
  }
  if (story.versions) {
    const int64_t first = story.num_rows / 3;
    builder.add_version(0, first, 7);
    builder.add_version(first, story.num_rows - first, kMaxVersion);
  }
  if (story.tokens) {
    std::vector<int32_t> tokens(static_cast<size_t>(story.num_rows));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random());
    builder.set_tokens(std::move(tokens));
  }
  return std::move(builder).finish();
}

}  // namespace moetape::inline v0
