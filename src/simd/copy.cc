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
constexpr size_t kUnit = HWY_ARCH_X86 ? 64 : kWidth;  // a cache line: streaming stores must fill it whole

// Measured on Sapphire Rapids with rows of 464 bytes (bench/simd_bench.cc).
constexpr size_t kStreamingBytes = 128;  // a streaming store spares the fetch of the line it overwrites
constexpr size_t kLongRun = 2048;        // from here on lines of the private side are fetched ahead
constexpr size_t kAhead = 1024;

// n bytes with sizeof(value) <= n <= 2 * sizeof(value), by two moves that may overlap.
template <class Move>
HWY_INLINE void copy_two(std::byte* to, const std::byte* from, size_t n) {
  const size_t second = n - sizeof(typename Move::Value);
  const auto a = Move::load(from);
  const auto b = Move::load(from + second);
  Move::store(to, a);
  Move::store(to + second, b);
}

// Fewer than kUnit bytes.
HWY_INLINE void copy_part(std::byte* to, const std::byte* from, size_t n) {
#if HWY_ARCH_X86
  if (n >= 32) return copy_two<Move32>(to, from, n);
#endif
  if (n >= 16) return copy_two<Move16>(to, from, n);
  if (n >= 8) return copy_two<Move8>(to, from, n);
  if (n >= 4) return copy_two<Move4>(to, from, n);
  if (n >= 2) return copy_two<Move2>(to, from, n);
  if (n == 1) Move1::store(to, Move1::load(from));
}

template <class Body, size_t kVectors>
HWY_INLINE void copy_vectors(std::byte* to, const std::byte* from) {
  typename Body::Value values[kVectors];
  for (size_t v = 0; v < kVectors; ++v) values[v] = Body::load(from + v * kWidth);
  for (size_t v = 0; v < kVectors; ++v) Body::store(to + v * kWidth, values[v]);
}

// Stores at their own alignment: those that cross a cache line cost more than such loads.
template <class Body, bool kFetchAhead>
HWY_INLINE void copy_aligned(std::byte* to, const std::byte* from, size_t n) {
  const size_t head = HWY_MIN((0 - reinterpret_cast<uintptr_t>(to)) % kUnit, n);
  copy_part(to, from, head);
  size_t i = head;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    if constexpr (kFetchAhead) {
      for (size_t line = 0; line < 4 * kWidth; line += 64) __builtin_prefetch(to + i + kAhead + line, 1);
    }
    copy_vectors<Body, 4>(to + i, from + i);
  }
  for (; i + kUnit <= n; i += kUnit) copy_vectors<Body, kUnit / kWidth>(to + i, from + i);
  copy_part(to + i, from + i, n - i);
}

// n bytes, more than 4 and at most 8 vectors: all loads first, so that a miss delays no other, and no branch
// that depends on an address.
HWY_INLINE void copy_eight(std::byte* to, const std::byte* from, size_t n) {
  Widest::Value front[4], back[4];
  const size_t second = n - 4 * kWidth;
  for (size_t v = 0; v < 4; ++v) front[v] = Widest::load(from + v * kWidth);
  for (size_t v = 0; v < 4; ++v) back[v] = Widest::load(from + second + v * kWidth);
  for (size_t v = 0; v < 4; ++v) Widest::store(to + v * kWidth, front[v]);
  for (size_t v = 0; v < 4; ++v) Widest::store(to + second + v * kWidth, back[v]);
}

// One row, alone.
HWY_INLINE void copy_short(std::byte* to, const std::byte* from, size_t n) {
  size_t i = 0;
  for (; n - i > 8 * kWidth; i += 4 * kWidth) copy_vectors<Widest, 4>(to + i, from + i);
  to += i;
  from += i;
  n -= i;
  if (n > 4 * kWidth) return copy_eight(to, from, n);
  for (i = 0; i + kWidth < n; i += kWidth) Widest::store(to + i, Widest::load(from + i));
  if (n >= kWidth) return Widest::store(to + n - kWidth, Widest::load(from + n - kWidth));
  copy_part(to, from, n);
}

#endif  // MOETAPE_COPY_VECTORS

HWY_INLINE void copy_run_in(std::byte* shared, const std::byte* from, size_t bytes) {
#ifdef MOETAPE_COPY_VECTORS
  if (bytes >= kStreamingBytes) return copy_aligned<Streaming, false>(shared, from, bytes);
  copy_short(shared, from, bytes);
#else
  words::copy_in(shared, from, bytes);
#endif
}

HWY_INLINE void copy_run_out(std::byte* to, const std::byte* shared, size_t bytes, bool streaming) {
#ifdef MOETAPE_COPY_VECTORS
  if (bytes >= kLongRun && streaming) return copy_aligned<Streaming, false>(to, shared, bytes);
  if (bytes >= kLongRun) return copy_aligned<Widest, true>(to, shared, bytes);
  copy_short(to, shared, bytes);
#else
  (void)streaming;
  words::copy_out(to, shared, bytes);
#endif
}

// Slots that follow each other from the first on, as one copy.
HWY_INLINE int64_t run_length(const int64_t* slots, int64_t count) {
  int64_t run = 1;
  while (run < count && slots[run] == slots[0] + run) ++run;
  return run;
}

void CopyIn(std::byte* shared, const std::byte* from, size_t bytes) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_run_in(shared, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void CopyOut(std::byte* to, const std::byte* shared, size_t bytes) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_run_out(to, shared, bytes, false);
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
                int64_t shared_stride, const int64_t* slots, int64_t count, bool streaming) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const bool dense = out_stride == shared_stride;
  int64_t run = 1;
  for (int64_t i = 0; i < count; i += run) {
    run = dense ? run_length(slots + i, count - i) : 1;
    if (slots[i] < 0) {
      run = 1;
      continue;
    }
    copy_run_out(out + i * out_stride, shared_base + slots[i] * shared_stride,
                 static_cast<size_t>((run - 1) * out_stride + row_bytes), streaming);
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
                 int64_t shared_stride, const int64_t* slots, int64_t count, bool streaming) {
  HWY_DYNAMIC_DISPATCH(GatherRows)
  (out, out_stride, row_bytes, shared_base, shared_stride, slots, count, streaming);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
