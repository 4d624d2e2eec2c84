#include <algorithm>
#include <cstring>

#include "simd/plain.h"

namespace moetape::inline v0::simd::plain {
namespace {

template <class Id>
void pack_row(std::byte* out, const std::byte* ids, int bits, int64_t num_ids) {
  uint64_t waiting = 0;
  int num_waiting = 0;
  for (int64_t i = 0; i < num_ids; ++i) {
    Id id;
    std::memcpy(&id, ids + i * int64_t{sizeof(Id)}, sizeof id);
    waiting |= uint64_t{id} << num_waiting;
    num_waiting += bits;
    for (; num_waiting >= 8; num_waiting -= 8, waiting >>= 8) *out++ = static_cast<std::byte>(waiting);
  }
  if (num_waiting > 0) *out = static_cast<std::byte>(waiting);
}

template <class Id>
void unpack_row(std::byte* ids, const std::byte* packed, int bits, int64_t num_ids) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t waiting = 0;
  int num_waiting = 0;
  for (int64_t i = 0; i < num_ids; ++i) {
    for (; num_waiting < bits; num_waiting += 8)
      waiting |= std::to_integer<uint64_t>(*packed++) << num_waiting;
    const Id id = static_cast<Id>(waiting & mask);
    std::memcpy(ids + i * int64_t{sizeof(Id)}, &id, sizeof id);
    waiting >>= bits;
    num_waiting -= bits;
  }
}

}  // namespace

void bitpack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    id_bytes == 1 ? pack_row<uint8_t>(out, ids, bits, ids_in_row)
                  : pack_row<uint16_t>(out, ids, bits, ids_in_row);
    out += packed_row_bytes(ids_in_row, bits);
    ids += ids_in_row * id_bytes;
  }
}

void bitunpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    id_bytes == 1 ? unpack_row<uint8_t>(ids, packed, bits, ids_in_row)
                  : unpack_row<uint16_t>(ids, packed, bits, ids_in_row);
    packed += packed_row_bytes(ids_in_row, bits);
    ids += ids_in_row * id_bytes;
  }
}

}  // namespace moetape::inline v0::simd::plain
