// For the tests of tapes: a folder of their own, routes with everything that a tape keeps, changed bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "moetape/tape.h"
#include "routes/test_routes.h"
#include "tape/file_writer.h"

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

// Two channels, which have no public writer yet.
inline const std::vector<tape::Channel> kChannels = {{"channel.weights", "F32", {3, 2}, 24},
                                                     {"channel.z", "U8", {}, 1}};

inline std::vector<std::byte> channel_values(uint64_t seed, int64_t num_rows) {
  return random_bytes(static_cast<size_t>(num_rows) * 24, seed);
}

// Sequence i has i + 2 rows; the channels' rows begin with those of channel_values(i).
inline Buffer channel_tape(const RouteSpec& spec, uint64_t num_sequences) {
  auto output = std::make_unique<tape::MemoryOutput>();
  tape::MemoryOutput& memory = *output;
  const auto writer =
      value_of(tape::FileWriter::create(value_of(tape::describe(spec, {})), std::move(output), std::nullopt));
  for (uint64_t i = 0; i < num_sequences; ++i) {
    const Routes routes = tell(spec, {.num_rows = 2 + static_cast<int64_t>(i)}, i);
    const std::vector<std::byte> values = channel_values(i, routes.num_rows());
    tape::SequenceInput input{.num_rows = routes.num_rows(), .channels = kChannels};
    input.rows = [&](int64_t first, int64_t) -> Result<tape::SequenceInput::Rows> {
      return tape::SequenceInput::Rows{routes.row(first).data(), routes.reasons().data() + first};
    };
    input.channel_rows = [&](int64_t channel, int64_t first, int64_t) -> Result<const std::byte*> {
      return values.data() + first * kChannels[static_cast<size_t>(channel)].row_bytes;
    };
    expect_ok(writer->append(input));
  }
  value_of(writer->finish());
  return std::move(memory).take();
}

}  // namespace moetape::inline v0
