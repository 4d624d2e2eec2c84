#include "simd/plain.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace moetape::inline v0::simd::plain {
namespace {

template <class Visit>
auto visit_int(IntType type, Visit visit) {
  switch (type) {
    case IntType::kInt8:
      return visit(int8_t{});
    case IntType::kUint8:
      return visit(uint8_t{});
    case IntType::kInt16:
      return visit(int16_t{});
    case IntType::kUint16:
      return visit(uint16_t{});
    case IntType::kInt32:
      return visit(int32_t{});
    case IntType::kUint32:
      return visit(uint32_t{});
    case IntType::kInt64:
      return visit(int64_t{});
    case IntType::kUint64:
      break;
  }
  return visit(uint64_t{});
}

template <class T>
int64_t clamp_to_int64(T value) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
  } else {
    return value;
  }
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Id>
int repeated_column(const std::byte* ids, int top_k) {
  for (int second = 1; second < top_k; ++second) {
    const Id value = load<Id>(ids + second * sizeof(Id));
    for (int first = 0; first < second; ++first) {
      if (load<Id>(ids + first * sizeof(Id)) == value) return second;
    }
  }
  return -1;
}

uint8_t column_fault(int64_t value, bool shared, int num_experts) {
  if (shared) return value < num_experts ? kFaultShared : kFaultNone;
  if (value < 0) return kFaultNegative;
  return value >= num_experts ? kFaultTooLarge : kFaultNone;
}

template <class T, class Id>
std::optional<NarrowFault> narrow_row(const NarrowJob& job, int64_t row) {
  const auto* ids = static_cast<const std::byte*>(job.ids.data);
  std::byte* out = job.out + row * job.out_stride;
  std::optional<NarrowFault> first;
  uint8_t faults = 0;
  for (int64_t column = 0; column < job.ids.num_columns; ++column) {
    const int64_t element = row * job.ids.row_stride + column * job.ids.column_stride;
    const int64_t value = clamp_to_int64(load<T>(ids + element * int64_t{sizeof(T)}));
    const uint8_t fault = column_fault(value, column >= job.top_k, job.num_experts);
    if (fault != kFaultNone && !first) first = NarrowFault{row, value, fault};
    faults |= fault;
    const Id id = static_cast<Id>(value);
    if (column < job.top_k) std::memcpy(out + column * sizeof(Id), &id, sizeof id);
  }
  if (!first && job.distinct) {
    const int column = repeated_column<Id>(out, job.top_k);
    if (column >= 0) {
      faults = kFaultRepeated;
      first = NarrowFault{row, load<Id>(out + column * sizeof(Id)), kFaultRepeated};
    }
  }
  if (first) {
    std::memset(out, 0, static_cast<size_t>(job.top_k) * sizeof(Id));
    job.faults[row] |= faults;
  }
  return first;
}

template <class T, class Id>
std::optional<NarrowFault> narrow_rows(const NarrowJob& job, int64_t first_row, int64_t num_rows) {
  std::optional<NarrowFault> first;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const auto fault = narrow_row<T, Id>(job, row);
    if (!first) first = fault;
  }
  return first;
}

template <class Id>
int64_t largest(const std::byte* ids, int64_t count) {
  int64_t found = -1;
  for (int64_t i = 0; i < count; ++i) found = std::max<int64_t>(found, load<Id>(ids + i * sizeof(Id)));
  return found;
}

template <class T, class Id>
void widen_as(void* out, const std::byte* ids, int64_t count) {
  auto* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(load<Id>(ids + i * sizeof(Id)));
    std::memcpy(to + i * sizeof(T), &value, sizeof value);
  }
}

}  // namespace

std::optional<NarrowFault> narrow_part(const NarrowJob& job, int64_t first_row, int64_t num_rows) {
  return visit_int(job.ids.type, [&](auto zero) {
    using T = decltype(zero);
    return id_bytes(job.num_experts) == 1 ? narrow_rows<T, uint8_t>(job, first_row, num_rows)
                                          : narrow_rows<T, uint16_t>(job, first_row, num_rows);
  });
}

std::optional<NarrowFault> narrow(const NarrowJob& job) { return narrow_part(job, 0, job.ids.num_rows); }

int64_t largest_id(const std::byte* ids, int id_bytes, int64_t count) {
  return id_bytes == 1 ? largest<uint8_t>(ids, count) : largest<uint16_t>(ids, count);
}

void widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count) {
  visit_int(type, [&](auto zero) {
    using T = decltype(zero);
    if (id_bytes == 1) {
      widen_as<T, uint8_t>(out, ids, count);
    } else {
      widen_as<T, uint16_t>(out, ids, count);
    }
  });
}

}  // namespace moetape::inline v0::simd::plain
