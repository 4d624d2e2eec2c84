// Narrow ids in as few bits as their number of experts needs, and back. Pure; any alignment.
//
// A row of n ids is ceil(n * bits / 8) bytes: id j in bits [j * bits, (j + 1) * bits), bit i is bit i % 8 of
// byte i / 8, and the bits that are left over are zero. The fastest instructions of the machine are chosen at
// run time; every choice gives the same bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace moetape::inline v0::simd {

// Bits of an id: ceil(log2 num_experts), at least 1, for 1 .. 65,536 experts.
constexpr int id_bits(int64_t num_experts) {
  return num_experts <= 2 ? 1 : std::bit_width(static_cast<uint64_t>(num_experts - 1));
}

constexpr int64_t packed_row_bytes(int64_t num_ids, int bits) { return (num_ids * bits + 7) / 8; }

// id_bytes (1 or 2) is what an id has in `ids`; 1 <= bits <= 8 * id_bytes, and every id fits them.
void bitpack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows);
// Any bytes unpack to something; bits that are left over are not looked at.
void bitunpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows);

}  // namespace moetape::inline v0::simd
