// Facts: all that a tape says of a sequence besides its rows, as writer and reader sum it up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moetape/routes.h"

namespace moetape::inline v0::tape {

struct Facts {
  int64_t first_row = 0;  // of the tape
  int64_t end_row = 0;
  int64_t start = 0;  // position of the first row
  int64_t first_block = 0;
  int64_t token_offset = -1;
  std::vector<VersionRun> runs = {};  // in rows of the tape
  std::span<const std::byte> block_checksums = {};
  std::string_view id = {};
  std::string_view meta = {};
  std::vector<std::byte> valid = {};  // bits, row 0 of the sequence in bit 0
  int64_t num_missing = 0;            // set where it is read

  int64_t num_rows() const { return end_row - first_row; }
  int64_t end() const { return start + num_rows(); }
  bool is_valid(int64_t row) const {
    return std::to_integer<int>(valid[static_cast<size_t>(row / 8)] >> (row % 8)) % 2 != 0;
  }
  int64_t count_missing() const;
  // Runs in positions, cut to [from, to).
  std::vector<VersionRun> versions(int64_t from, int64_t to) const;
};

// sequence_xxh3.
uint64_t checksum(const Facts& facts);

// Bits [first, first + count) of a bitmap, the first of them in bit 0 of the result; unused bits are zero.
std::vector<std::byte> take_bits(std::span<const std::byte> bitmap, int64_t first, int64_t count);
std::vector<std::byte> all_ones(int64_t count);

}  // namespace moetape::inline v0::tape
