// Plane: rows and stamps of one pipeline stage's layers, and the only code that touches them.
//
// A plane is a view of shared memory: writers and readers may meet on a row. docs/memory-model.md gives the
// rules by name (R1 …); the numbers stand at the lines that keep them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "simd/copy.h"
#include "store/stamp.h"

namespace moetape::inline v0 {

class Plane {
 public:
  Plane() = default;
  Plane(std::byte* rows, uint64_t* stamps, int64_t row_bytes, int64_t row_stride)
      : rows_(rows), stamps_(stamps), row_bytes_(row_bytes), row_stride_(row_stride) {}

  int64_t row_bytes() const { return row_bytes_; }

  // For a device that writes them by the same rules.
  std::byte* rows() const { return rows_; }
  std::byte* stamps() const { return reinterpret_cast<std::byte*>(stamps_); }

  Stamp stamp(int64_t slot) const {  // R2: before the bytes
    return word(slot).load(std::memory_order_acquire);
  }
  Stamp stamp_after_copy(int64_t slot) const {  // R3: behind an acquire fence
    return word(slot).load(std::memory_order_relaxed);
  }

  void set_stamp(int64_t slot, Stamp stamp) { word(slot).store(stamp, std::memory_order_release); }

  // Asks for the stamp's cache line; the slots of a step are mostly cold.
  void expect(int64_t slot) const { __builtin_prefetch(stamps_ + slot, 1); }

  // Row i goes to slots[i] under stamps[i]; a slot below 0 is skipped. A slot never carries a stamp twice,
  // nor goes back (R9): where it holds a row of a later step that row stays, and where it was written in this
  // very step the row is refused; both turn slots[i] into kSuperseded. Returns how many.
  static constexpr int64_t kSuperseded = -2;
  int64_t place(int64_t* slots, int64_t count, const std::byte* rows, int64_t row_stride,
                const Stamp* stamps) {
    int64_t num_superseded = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (slots[i] < 0) continue;
      const uint64_t step = step_of(stamps[i]);
      const uint64_t before = step_of(word(slots[i]).load(std::memory_order_relaxed));
      if (before <= step) word(slots[i]).store(refused(step), std::memory_order_relaxed);
      if (before < step) continue;
      slots[i] = kSuperseded;
      num_superseded += 1;
    }
    simd::store_fence();  // R1: the bytes may be streamed, and streams overtake plain stores
    std::atomic_thread_fence(std::memory_order_release);
    simd::scatter_rows(rows_, row_stride_, slots, count, rows, row_stride, row_bytes_);
    simd::store_fence();
    for (int64_t i = 0; i < count; ++i) {
      if (slots[i] >= 0) set_stamp(slots[i], stamps[i]);
    }
    return num_superseded;
  }

  // Row slots[i] goes to out + i * row_bytes(); a slot below 0 leaves its row as it is.
  void gather(const int64_t* slots, int64_t count, std::byte* out, bool streaming = false) const {
    simd::gather_rows(out, row_bytes_, row_bytes_, rows_, row_stride_, slots, count, streaming);
  }

 private:
  std::atomic_ref<uint64_t> word(int64_t slot) const { return std::atomic_ref<uint64_t>(stamps_[slot]); }

  std::byte* rows_ = nullptr;
  uint64_t* stamps_ = nullptr;
  int64_t row_bytes_ = 0;
  int64_t row_stride_ = 0;
};

}  // namespace moetape::inline v0
