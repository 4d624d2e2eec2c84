// Widening narrow ids to the integers that others work with. Pure; any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moetape/array.h"

namespace moetape::inline v0::simd {

// Writes `count` integers of `type` to out. id_bytes (1 or 2) is what an id has in `ids`. `type` must hold
// every id: two-byte ids go to two bytes or more. With `streaming`, whole lines pass by the caches: for
// results too large to stay in them, which then cost no fetch of the lines that they overwrite; store_fence()
// (copy.h) before another thread may look.
void widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count,
           bool streaming = false);

}  // namespace moetape::inline v0::simd
