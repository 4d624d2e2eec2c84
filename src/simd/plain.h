// The same functions in plain C++: what every vector path must equal, what faulty rows are told by, and what
// runs where there are no vectors.
#pragma once

#include "simd/base64.h"
#include "simd/bitpack.h"
#include "simd/lists.h"
#include "simd/narrow.h"
#include "simd/widen.h"

namespace moetape::inline v0::simd::plain {

std::optional<NarrowFault> narrow(const NarrowJob& job);

// Rows [first_row, first_row + num_rows) of the job alone.
std::optional<NarrowFault> narrow_part(const NarrowJob& job, int64_t first_row, int64_t num_rows);

int64_t largest_id(const std::byte* ids, int id_bytes, int64_t count);
void compare_lists(const ListsJob& job);
void widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count);
size_t base64_encode(char* out, const std::byte* in, size_t bytes);
Base64Decoded base64_decode(std::byte* out, const char* in, size_t chars);
void bitpack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows);
void bitunpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows);

}  // namespace moetape::inline v0::simd::plain
