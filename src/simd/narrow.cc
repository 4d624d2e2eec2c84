#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/narrow.cc"
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "simd/narrow.h"
#include "simd/plain.h"

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

std::optional<NarrowFault> Narrow(const NarrowJob& job) { return plain::narrow(job); }

int64_t LargestId(const std::byte* ids, int id_bytes, int64_t count) {
  return plain::largest_id(ids, id_bytes, count);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Rows are worked on in blocks that stay in the first-level cache: narrow the block and keep its maximum,
// look for repeated ids in the narrow block, write its rows. A block with any fault is done again by the
// plain code, which tells the faults apart.
constexpr int64_t kBlockElements = 1024;
constexpr int kMostColumns = 256;              // longer rows are left to the plain code
constexpr int64_t kSlack = 2 * HWY_MAX_BYTES;  // behind a block: read by whole vectors, never used
constexpr int64_t kRowsAhead = 100;  // the lane's lines are asked for so much before they are written

// The largest element of a stream, as unsigned. Halves of 64-bit elements are kept apart, since not every
// machine compares 64 bits.
template <class T>
struct Largest {
  using Lane = std::conditional_t<sizeof(T) == 8, uint32_t, T>;
  using D = hn::ScalableTag<Lane>;
  hn::Vec<D> lanes;

  HWY_INLINE Largest() : lanes(hn::Zero(D())) {}

  template <class V>
  HWY_INLINE void see(V v) {
    lanes = hn::Max(lanes, hn::BitCast(D(), v));
  }

  HWY_INLINE uint64_t value() const {
    HWY_ALIGN Lane kept[HWY_MAX_BYTES / sizeof(Lane)];
    hn::Store(lanes, D(), kept);
    const size_t num_lanes = hn::Lanes(D());
    uint64_t largest = 0;
    if constexpr (sizeof(T) == 8) {
      for (size_t i = 0; i < num_lanes; i += 2) {
        largest = HWY_MAX(largest, uint64_t{kept[i + 1]} << 32 | kept[i]);
      }
    } else {
      for (size_t i = 0; i < num_lanes; ++i) largest = HWY_MAX(largest, uint64_t{kept[i]});
    }
    return largest;
  }
};

// The low bytes of each element. AVX-512 has an instruction for it, and TruncateTo of Highway 1.0.3 cuts 4 to
// 1 byte wrongly where it has VBMI.
template <class T, class DId, class V>
HWY_INLINE hn::Vec<DId> low_bytes(DId did, V v) {
#if HWY_TARGET <= HWY_AVX3
  (void)did;
  constexpr size_t kIdBytes = sizeof(hn::TFromD<DId>);
  if constexpr (sizeof(T) == 2) return {_mm512_cvtepi16_epi8(v.raw)};
  if constexpr (sizeof(T) == 4 && kIdBytes == 1) return {_mm512_cvtepi32_epi8(v.raw)};
  if constexpr (sizeof(T) == 4 && kIdBytes == 2) return {_mm512_cvtepi32_epi16(v.raw)};
  if constexpr (sizeof(T) == 8 && kIdBytes == 1) return {_mm512_cvtepi64_epi8(v.raw)};
  if constexpr (sizeof(T) == 8 && kIdBytes == 2) return {_mm512_cvtepi64_epi16(v.raw)};
#else
  return hn::TruncateTo(did, v);
#endif
}

// Narrows `count` elements, cut to their low bytes, and returns the largest of them. Writes whole vectors:
// up to kSlack bytes behind the last id.
template <class T, class Id>
HWY_INLINE uint64_t narrow_stream(const T* HWY_RESTRICT from, Id* HWY_RESTRICT to, size_t count) {
  using DWide = hn::ScalableTag<std::conditional_t<(sizeof(T) > sizeof(Id)), T, Id> >;
  const hn::Rebind<T, DWide> dt;
  const hn::Rebind<Id, DWide> did;
  const size_t step = hn::Lanes(dt);
  Largest<T> largest;
  const auto convert = [&](const T* in, Id* out) HWY_ATTR {
    const auto v = hn::LoadU(dt, in);
    if constexpr (sizeof(T) > sizeof(Id)) {
      largest.see(v);
      hn::StoreU(low_bytes<T>(did, v), did, out);
    } else if constexpr (sizeof(T) == sizeof(Id)) {
      largest.see(v);
      hn::StoreU(v, did, out);
    } else {
      largest.see(hn::ZeroExtendVector(hn::ScalableTag<T>(), v));
      hn::StoreU(hn::PromoteTo(did, v), did, out);
    }
  };
  size_t i = 0;
  for (; i + step <= count; i += step) convert(from + i, to + i);
  if (i < count) {
    T rest[HWY_MAX_BYTES / sizeof(T)] = {};
    std::memcpy(rest, from + i, (count - i) * sizeof(T));
    convert(rest, to + i);
  }
  return largest.value();
}

// How rows of 2, 4, 8 or 16 bytes, padded to that size, are compared with themselves: turned by 1, 2, … half
// a row.
template <class Id>
struct Turns {
  static constexpr int kIdBytes = sizeof(Id);
  static constexpr int kLanes = 16 / kIdBytes;

  int padded = 2;
  alignas(16) uint8_t order[kLanes / 2][16] = {};
  alignas(16) Id ignored[kLanes / 2][kLanes] = {};  // all ones where a padding column takes part

  constexpr Turns() = default;
  constexpr explicit Turns(int top_k) {
    while (padded < top_k) padded *= 2;
    for (int turn = 0; turn < padded / 2; ++turn) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int column = lane % padded;
        const int other = (column + turn + 1) % padded;
        for (int b = 0; b < kIdBytes; ++b) {
          order[turn][lane * kIdBytes + b] = static_cast<uint8_t>((lane - column + other) * kIdBytes + b);
        }
        ignored[turn][lane] = column < top_k && other < top_k ? 0 : static_cast<Id>(-1);
      }
    }
  }
};

// For every top_k whose rows fit into 16 bytes.
template <class Id>
struct AllTurns {
  Turns<Id> of[Turns<Id>::kLanes + 1];
  constexpr AllTurns() : of() {
    for (int top_k = 0; top_k <= Turns<Id>::kLanes; ++top_k) of[top_k] = Turns<Id>(top_k);
  }
};

template <class Id>
inline constexpr AllTurns<Id> kTurns;

// Zero where an id of a row meets its like.
template <class Id, class V>
HWY_INLINE V differences(const Turns<Id>& turns, V ids) {
  const hn::ScalableTag<Id> d;
  const hn::Repartition<uint8_t, decltype(d)> d8;
  V least = hn::Set(d, static_cast<Id>(-1));
  for (int turn = 0; turn < turns.padded / 2; ++turn) {
    const auto order = hn::LoadDup128(d8, turns.order[turn]);
    const V turned = hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(d8, ids), order));
    least = hn::Min(least, hn::Or(hn::Xor(ids, turned), hn::LoadDup128(d, turns.ignored[turn])));
  }
  return least;
}

// Whether an id stands twice in any of the padded rows. What lies behind `count` ids is read but ignored.
template <class Id>
HWY_INLINE bool short_rows_repeat(const Turns<Id>& turns, const Id* rows, size_t count) {
  const hn::ScalableTag<Id> d;
  size_t i = 0;
  auto least = hn::Set(d, static_cast<Id>(-1));
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    least = hn::Min(least, differences(turns, hn::LoadU(d, rows + i)));
  }
  if (i < count) {
    const auto unused = hn::VecFromMask(d, hn::Not(hn::FirstN(d, count - i)));
    least = hn::Min(least, hn::Or(differences(turns, hn::LoadU(d, rows + i)), unused));
  }
  return !hn::AllFalse(d, hn::Eq(least, hn::Zero(d)));
}

// Copies n bytes; few by moves that may overlap, since a call costs more.
HWY_INLINE void copy_short(std::byte* to, const std::byte* from, size_t n) {
  struct Word16 {
    uint64_t halves[2];
  };
  struct Word32 {
    Word16 halves[2];
  };
  const auto copy_two = [&](auto first) HWY_ATTR {
    decltype(first) last;
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&last, from + n - sizeof last, sizeof last);
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + n - sizeof last, &last, sizeof last);
  };
  if (n > 64) {
    std::memcpy(to, from, n);
  } else if (n >= 32) {
    copy_two(Word32());
  } else if (n >= 16) {
    copy_two(Word16());
  } else if (n >= 8) {
    copy_two(uint64_t());
  } else if (n >= 4) {
    copy_two(uint32_t());
  } else if (n >= 2) {
    copy_two(uint16_t());
  } else {
    *to = *from;
  }
}

// Longer rows: each is written several times in a row, so that it can be compared with itself turned by any
// number of columns, in whole vectors and without a mask.
template <int kMostLanes, class Id>
HWY_INLINE bool long_rows_repeat(const Id* ids, int64_t num_rows, int top_k) {
  const hn::CappedTag<Id, kMostLanes> d;
  const int step = static_cast<int>(hn::Lanes(d));
  const int compared = (top_k + step - 1) / step * step;
  const int copies = (compared + top_k / 2 + top_k - 1) / top_k;
  HWY_ALIGN Id repeated[4 * kBlockElements + kSlack];
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int copy = 0; copy < copies; ++copy) {
      copy_short(reinterpret_cast<std::byte*>(repeated + (row * copies + copy) * top_k),
                 reinterpret_cast<const std::byte*>(ids + row * top_k),
                 static_cast<size_t>(top_k) * sizeof(Id));
    }
  }
  auto least = hn::Set(d, static_cast<Id>(-1));
  for (int64_t row = 0; row < num_rows; ++row) {
    const Id* columns = repeated + row * copies * top_k;
    for (int i = 0; i < top_k; i += step) {
      const auto v = hn::LoadU(d, columns + i);
      for (int turn = 1; turn <= top_k / 2; ++turn) {
        least = hn::Min(least, hn::Xor(v, hn::LoadU(d, columns + i + turn)));
      }
    }
  }
  return !hn::AllFalse(d, hn::Eq(least, hn::Zero(d)));
}

// Whether an id stands twice in any of num_rows rows that lie close together. At most kBlockElements ids,
// which may be read kSlack bytes beyond.
template <class Id>
HWY_INLINE bool any_row_repeats(const Id* ids, int64_t num_rows, int top_k) {
  if (top_k == 1) return false;
  if (top_k > Turns<Id>::kLanes) {
    if (top_k <= 16) return long_rows_repeat<16>(ids, num_rows, top_k);
    if (top_k <= 32) return long_rows_repeat<32>(ids, num_rows, top_k);
    return long_rows_repeat<64>(ids, num_rows, top_k);
  }
  const Turns<Id>& turns = kTurns<Id>.of[top_k];
  const size_t count = static_cast<size_t>(num_rows * turns.padded);
  if (turns.padded == top_k) return short_rows_repeat(turns, ids, count);
  HWY_ALIGN Id apart[2 * kBlockElements + kSlack];
  for (int64_t row = 0; row < num_rows; ++row) std::memcpy(apart + row * turns.padded, ids + row * top_k, 16);
  return short_rows_repeat(turns, apart, count);
}

template <class T, class Id>
class Narrower {
 public:
  explicit Narrower(const NarrowJob& job) : job_(job) {}

  std::optional<NarrowFault> run() {
    const int64_t rows_at_once = kBlockElements / job_.ids.num_columns;
    std::optional<NarrowFault> first;
    for (int64_t row = 0; row < job_.ids.num_rows; row += rows_at_once) {
      const int64_t num_rows = HWY_MIN(rows_at_once, job_.ids.num_rows - row);
      if (narrow_block(row, num_rows)) continue;
      const auto fault = plain::narrow_part(job_, row, num_rows);
      if (!first) first = fault;
    }
    return first;
  }

 private:
  bool narrow_block(int64_t row, int64_t num_rows) {
    const int64_t count = num_rows * job_.top_k;
    if (!shared_columns_fit(row, num_rows)) return false;
    if (narrow_stream<T, Id>(dense(row, num_rows), narrow_, static_cast<size_t>(count)) >= limit())
      return false;
    if (job_.distinct && any_row_repeats(narrow_, num_rows, job_.top_k)) return false;
    const size_t bytes = static_cast<size_t>(job_.top_k) * sizeof(Id);
    std::byte* out = job_.out + row * job_.out_stride;
    const auto* from = reinterpret_cast<const std::byte*>(narrow_);
    if (job_.out_stride == static_cast<int64_t>(bytes)) {
      std::memcpy(out, from, static_cast<size_t>(count) * sizeof(Id));
      return true;
    }
    const auto write_rows = [&](auto copy) HWY_ATTR {
      for (int64_t r = 0; r < num_rows; ++r) {
        std::byte* ahead = out + (r + kRowsAhead) * job_.out_stride;
        __builtin_prefetch(ahead, 1);
        __builtin_prefetch(ahead + bytes - 1, 1);
        copy(out + r * job_.out_stride, from + r * static_cast<int64_t>(bytes));
      }
    };
    if (bytes == 8) {
      write_rows([](std::byte* to, const std::byte* ids) { std::memcpy(to, ids, 8); });
    } else {
      write_rows([bytes](std::byte* to, const std::byte* ids) HWY_ATTR { copy_short(to, ids, bytes); });
    }
    return true;
  }

  // Ids from here on are faults; a signed type's negative values lie above it too.
  uint64_t limit() const {
    const uint64_t half = uint64_t{1} << (8 * sizeof(T) - 1);
    const uint64_t experts = static_cast<uint64_t>(job_.num_experts);
    return int_type_signed(job_.ids.type) ? HWY_MIN(half, experts) : experts;
  }

  const T* row_start(int64_t row) const {
    return static_cast<const T*>(job_.ids.data) + row * job_.ids.row_stride;
  }

  bool shared_columns_fit(int64_t row, int64_t num_rows) const {
    if (job_.ids.num_columns == job_.top_k) return true;
    const uint64_t sign = int_type_signed(job_.ids.type) ? uint64_t{1} << (8 * sizeof(T) - 1) : 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t column = job_.top_k; column < job_.ids.num_columns; ++column) {
        T value;
        std::memcpy(&value, row_start(row + r) + column * job_.ids.column_stride, sizeof value);
        if ((value & sign) != 0 || value < static_cast<uint64_t>(job_.num_experts)) return false;
      }
    }
    return true;
  }

  // The routed columns of the rows, close together.
  const T* dense(int64_t row, int64_t num_rows) {
    const int top_k = job_.top_k;
    if (job_.ids.column_stride == 1 && job_.ids.row_stride == top_k) return row_start(row);
    for (int64_t r = 0; r < num_rows; ++r) {
      const T* from = row_start(row + r);
      T* to = dense_ + r * top_k;
      if (job_.ids.column_stride == 1) {
        std::memcpy(to, from, static_cast<size_t>(top_k) * sizeof(T));
      } else {
        for (int c = 0; c < top_k; ++c) std::memcpy(to + c, from + c * job_.ids.column_stride, sizeof(T));
      }
    }
    return dense_;
  }

  const NarrowJob& job_;
  HWY_ALIGN Id narrow_[kBlockElements + kSlack];
  HWY_ALIGN T dense_[kBlockElements];
};

template <class Id>
std::optional<NarrowFault> narrow_to(const NarrowJob& job) {
  switch (int_type_bytes(job.ids.type)) {
    case 1:
      return Narrower<uint8_t, Id>(job).run();
    case 2:
      return Narrower<uint16_t, Id>(job).run();
    case 4:
      return Narrower<uint32_t, Id>(job).run();
    default:
      return Narrower<uint64_t, Id>(job).run();
  }
}

std::optional<NarrowFault> Narrow(const NarrowJob& job) {
  if (job.ids.num_columns > kMostColumns) return plain::narrow(job);
  return id_bytes(job.num_experts) == 1 ? narrow_to<uint8_t>(job) : narrow_to<uint16_t>(job);
}

template <class Id>
int64_t largest(const std::byte* ids, int64_t count) {
  const hn::ScalableTag<Id> d;
  const auto* from = reinterpret_cast<const Id*>(ids);
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  Largest<Id> found;
  int64_t i = 0;
  for (; i + step <= count; i += step) found.see(hn::LoadU(d, from + i));
  const auto behind = plain::largest_id(ids + i * int64_t{sizeof(Id)}, sizeof(Id), count - i);
  return i == 0 ? behind : HWY_MAX(behind, static_cast<int64_t>(found.value()));
}

int64_t LargestId(const std::byte* ids, int id_bytes, int64_t count) {
  return id_bytes == 1 ? largest<uint8_t>(ids, count) : largest<uint16_t>(ids, count);
}

#endif

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(Narrow);
HWY_EXPORT(LargestId);

std::optional<NarrowFault> narrow(const NarrowJob& job) { return HWY_DYNAMIC_DISPATCH(Narrow)(job); }

int64_t largest_id(const std::byte* ids, int id_bytes, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LargestId)(ids, id_bytes, count);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
