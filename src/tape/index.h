// The index of a tape of several files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0::tape {

struct Shard {
  std::string file = {};  // a name in the index's folder
  int64_t num_bytes = 0;
  int64_t num_sequences = 0;
  int64_t num_rows = 0;
  std::string header_checksum = {};
  bool operator==(const Shard&) const = default;
};

struct Index {
  uint64_t fingerprint = 0;
  std::vector<Shard> shards;
};

// By its first bytes, which no tape can have.
bool is_index(std::span<const std::byte> bytes);
// "run-00001-of-00012-5e1c09af.tape" of "run.tape", the stem cut where the name would be too long; counted
// from 0.
std::string shard_name(std::string_view name, size_t number, size_t count, std::string_view tag);

std::string format_index(const Index& index);
// kCorruptData and kUnsupported, naming `file`.
Result<Index> parse_index(std::string_view file, std::span<const std::byte> bytes);

}  // namespace moetape::inline v0::tape
