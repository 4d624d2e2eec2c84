#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/copy.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "simd/copy.h"
#include "simd/copy_words.h"

#undef MOETAPE_COPY_VECTORS
#if !defined(MOETAPE_COPY_BY_WORDS) && (HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64)
#define MOETAPE_COPY_VECTORS 1
#endif

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

#ifdef MOETAPE_COPY_VECTORS

// One move in inline assembly: the compiler sees neither a load nor a store of the language, so that it can
// neither split nor repeat it, and a race on it is the machine's matter alone.
#define MOETAPE_MOVE(Type, name, load_text, store_text, register_class)               \
  struct name {                                                                       \
    using Value = Type;                                                               \
    typedef Type Place __attribute__((aligned(1), may_alias));                        \
    static HWY_INLINE Type load(const std::byte* from) {                              \
      Type value;                                                                     \
      asm volatile(load_text : "=" register_class(value) : "m"(*(const Place*)from)); \
      return value;                                                                   \
    }                                                                                 \
    static HWY_INLINE void store(std::byte* to, Type value) {                         \
      asm volatile(store_text : "=m"(*(Place*)to) : register_class(value));           \
    }                                                                                 \
  }

#if HWY_ARCH_X86
MOETAPE_MOVE(uint8_t, Move1, "movb %1, %0", "movb %1, %0", "q");
MOETAPE_MOVE(uint16_t, Move2, "movw %1, %0", "movw %1, %0", "r");
MOETAPE_MOVE(uint32_t, Move4, "movl %1, %0", "movl %1, %0", "r");
MOETAPE_MOVE(uint64_t, Move8, "movq %1, %0", "movq %1, %0", "r");
MOETAPE_MOVE(__m128i, Move16, "vmovdqu %1, %0", "vmovdqu %1, %0", "x");
MOETAPE_MOVE(__m256i, Move32, "vmovdqu %1, %0", "vmovdqu %1, %0", "x");
#if HWY_TARGET <= HWY_AVX3
MOETAPE_MOVE(__m512i, Move64, "vmovdqu64 %1, %0", "vmovdqu64 %1, %0", "v");
MOETAPE_MOVE(__m512i, Streaming, "vmovdqu64 %1, %0", "vmovntdq %1, %0", "v");
using Widest = Move64;
#else
MOETAPE_MOVE(__m256i, Streaming, "vmovdqu %1, %0", "vmovntdq %1, %0", "x");
using Widest = Move32;
#endif
#else
MOETAPE_MOVE(uint8_t, Move1, "ldrb %w0, %1", "strb %w1, %0", "r");
MOETAPE_MOVE(uint16_t, Move2, "ldrh %w0, %1", "strh %w1, %0", "r");
MOETAPE_MOVE(uint32_t, Move4, "ldr %w0, %1", "str %w1, %0", "r");
MOETAPE_MOVE(uint64_t, Move8, "ldr %x0, %1", "str %x1, %0", "r");
MOETAPE_MOVE(uint8x16_t, Move16, "ldr %q0, %1", "str %q1, %0", "w");
using Widest = Move16;
using Streaming = Move16;
#endif
#undef MOETAPE_MOVE

constexpr size_t kWidth = sizeof(Widest::Value);

// n bytes with sizeof(value) <= n <= 2 * sizeof(value), by two moves that may overlap.
template <class Move>
HWY_INLINE void copy_two(std::byte* to, const std::byte* from, size_t n) {
  const size_t second = n - sizeof(typename Move::Value);
  const auto a = Move::load(from);
  const auto b = Move::load(from + second);
  Move::store(to, a);
  Move::store(to + second, b);
}

// Fewer bytes than the widest vector has.
HWY_INLINE void copy_part(std::byte* to, const std::byte* from, size_t n) {
#if HWY_TARGET <= HWY_AVX3
  if (n == 0) return;
  const __mmask64 mask = ~uint64_t{0} >> (64 - n);
  __m512i value;
  asm volatile("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(value) : "m"(*(const Move64::Place*)from), "Yk"(mask));
  asm volatile("vmovdqu8 %1, %0%{%2%}" : "+m"(*(Move64::Place*)to) : "v"(value), "Yk"(mask));
#else
  if (n >= 16) return copy_two<Move16>(to, from, n);
  if (n >= 8) return copy_two<Move8>(to, from, n);
  if (n >= 4) return copy_two<Move4>(to, from, n);
  if (n >= 2) return copy_two<Move2>(to, from, n);
  if (n == 1) Move1::store(to, Move1::load(from));
#endif
}

// Whole vectors are stored at their own alignment: stores that cross a cache line cost more than such loads.
template <class Body>
HWY_INLINE void copy_aligned(std::byte* to, const std::byte* from, size_t n) {
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) % kWidth;
  if (n < kWidth + head) {
    if (n > kWidth) return copy_two<Widest>(to, from, n);
    if (n == kWidth) return Widest::store(to, Widest::load(from));
    return copy_part(to, from, n);
  }
  copy_part(to, from, head);
  size_t i = head;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    const auto a = Body::load(from + i);
    const auto b = Body::load(from + i + kWidth);
    const auto c = Body::load(from + i + 2 * kWidth);
    const auto d = Body::load(from + i + 3 * kWidth);
    Body::store(to + i, a);
    Body::store(to + i + kWidth, b);
    Body::store(to + i + 2 * kWidth, c);
    Body::store(to + i + 3 * kWidth, d);
  }
  for (; i + kWidth <= n; i += kWidth) Body::store(to + i, Body::load(from + i));
  copy_part(to + i, from + i, n - i);
}

#endif  // MOETAPE_COPY_VECTORS

HWY_INLINE void copy_run_in(std::byte* shared, const std::byte* from, size_t bytes) {
#ifdef MOETAPE_COPY_VECTORS
  // From this size on a streaming store beats one that first fetches the line that it overwrites.
  constexpr size_t kStreamingBytes = 256;
  if (bytes >= kStreamingBytes) return copy_aligned<Streaming>(shared, from, bytes);
  copy_aligned<Widest>(shared, from, bytes);
#else
  words::copy_in(shared, from, bytes);
#endif
}

HWY_INLINE void copy_run_out(std::byte* to, const std::byte* shared, size_t bytes) {
#ifdef MOETAPE_COPY_VECTORS
  copy_aligned<Widest>(to, shared, bytes);
#else
  words::copy_out(to, shared, bytes);
#endif
}

// Slots that follow each other from the first on, as one copy.
HWY_INLINE int64_t run_length(const int64_t* slots, int64_t count) {
  int64_t run = 1;
  while (run < count && slots[run] == slots[0] + run) ++run;
  return run;
}

constexpr size_t kLine = 64;
constexpr int64_t kRowsAhead = 6;
constexpr size_t kBytesAhead = 1024;  // of a row; longer ones are left to the hardware

template <class Prefetch>
HWY_INLINE void prefetch_row(const std::byte* row, size_t bytes, Prefetch prefetch) {
  const std::byte* end = row + HWY_MIN(bytes, kBytesAhead);
  for (const std::byte* line = row; line < end; line += kLine) prefetch(line);
  prefetch(end - 1);
}

void CopyIn(std::byte* shared, const std::byte* from, size_t bytes) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_run_in(shared, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void CopyOut(std::byte* to, const std::byte* shared, size_t bytes) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_run_out(to, shared, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ScatterRows(std::byte* shared_base, int64_t shared_stride, const int64_t* slots, int64_t count,
                 const std::byte* rows, int64_t row_stride, int64_t row_bytes) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const bool dense = row_stride == shared_stride;
  int64_t run = 1;
  for (int64_t i = 0; i < count; i += run) {
    run = dense ? run_length(slots + i, count - i) : 1;
    if (slots[i] < 0) {
      run = 1;
      continue;
    }
    copy_run_in(shared_base + slots[i] * shared_stride, rows + i * row_stride,
                static_cast<size_t>((run - 1) * row_stride + row_bytes));
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void GatherRows(std::byte* out, int64_t out_stride, int64_t row_bytes, const std::byte* shared_base,
                int64_t shared_stride, const int64_t* slots, int64_t count) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const bool dense = out_stride == shared_stride;
  int64_t prefetched = 0;
  int64_t run = 1;
  for (int64_t i = 0; i < count; i += run) {
    run = dense ? run_length(slots + i, count - i) : 1;
    if (slots[i] < 0) {
      run = 1;
      continue;
    }
    for (prefetched = HWY_MAX(prefetched, i + run); prefetched < HWY_MIN(count, i + run + kRowsAhead);
         ++prefetched) {
      if (slots[prefetched] < 0) continue;
      prefetch_row(shared_base + slots[prefetched] * shared_stride, static_cast<size_t>(row_bytes),
                   [](const std::byte* line) { __builtin_prefetch(line, 0, 2); });
    }
    copy_run_out(out + i * out_stride, shared_base + slots[i] * shared_stride,
                 static_cast<size_t>((run - 1) * out_stride + row_bytes));
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(CopyIn);
HWY_EXPORT(CopyOut);
HWY_EXPORT(ScatterRows);
HWY_EXPORT(GatherRows);

void copy_in(std::byte* shared, const std::byte* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(CopyIn)(shared, from, bytes);
}

void copy_out(std::byte* to, const std::byte* shared, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(CopyOut)(to, shared, bytes);
}

void store_fence() {
#if HWY_ARCH_X86 && !defined(MOETAPE_COPY_BY_WORDS)
  asm volatile("sfence" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

void scatter_rows(std::byte* shared_base, int64_t shared_stride, const int64_t* slots, int64_t count,
                  const std::byte* rows, int64_t row_stride, int64_t row_bytes) {
  HWY_DYNAMIC_DISPATCH(ScatterRows)
  (shared_base, shared_stride, slots, count, rows, row_stride, row_bytes);
}

void gather_rows(std::byte* out, int64_t out_stride, int64_t row_bytes, const std::byte* shared_base,
                 int64_t shared_stride, const int64_t* slots, int64_t count) {
  HWY_DYNAMIC_DISPATCH(GatherRows)
  (out, out_stride, row_bytes, shared_base, shared_stride, slots, count);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
