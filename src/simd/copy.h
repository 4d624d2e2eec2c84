// Race-safe copies between private memory and rows that other threads may read or write meanwhile.
//
// A copy may see or leave a mixture of old and new bytes, and is no data race: whoever copies proves with
// stamps that what it got is whole (docs/memory-model.md). Release builds use opaque vector moves; under
// ThreadSanitizer every word is loaded with acquire and stored with release.
//
// Caller's duties: the shared side is 16-byte aligned, the shared stride is a multiple of 16; the private
// side is aligned as it likes, and private to the caller. copy_in and scatter_rows may use streaming
// stores: store_fence() stands between them and the store that publishes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moetape::inline v0::simd {

void copy_in(std::byte* shared, const std::byte* from, size_t bytes);
void copy_out(std::byte* to, const std::byte* shared, size_t bytes);

// Orders all earlier stores of this thread, streaming ones too, before all later ones.
void store_fence();

// Row i of `rows` goes to slot slots[i]; a slot below 0 is skipped. Where the strides of both sides are
// equal, a run of consecutive slots is copied at once, and the padding between its rows travels with it
// (never the padding behind the last one).
void scatter_rows(std::byte* shared_base, int64_t shared_stride, const int64_t* slots, int64_t count,
                  const std::byte* rows, int64_t row_stride, int64_t row_bytes);

// Slot slots[i] goes to row i of `out`; a row whose slot is below 0 is left as it is. Runs as above. With
// `streaming`, long runs pass by the caches: for results too large to stay in them, which then cost no fetch
// of the lines that they overwrite; store_fence() before another thread may look.
void gather_rows(std::byte* out, int64_t out_stride, int64_t row_bytes, const std::byte* shared_base,
                 int64_t shared_stride, const int64_t* slots, int64_t count, bool streaming = false);

}  // namespace moetape::inline v0::simd
