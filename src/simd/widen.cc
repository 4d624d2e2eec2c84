#include "simd/widen.h"

#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/widen.cc"
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "simd/plain.h"

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void Widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count, bool) {
  plain::widen(out, type, ids, id_bytes, count);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE hn::Vec<D> promote(D d, V ids) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::PromoteTo(d, hn::PromoteTo(hn::Rebind<uint32_t, D>(), ids));
  } else {
    return hn::PromoteTo(d, ids);
  }
}

// Elements before the first that begins a line; all of them if none does.
template <class T>
HWY_INLINE int64_t before_line(const T* to, int64_t count) {
  constexpr uintptr_t kLine = 64;
  const uintptr_t past = reinterpret_cast<uintptr_t>(to) % kLine;
  if (past % sizeof(T) != 0) return count;
  return std::min(count, static_cast<int64_t>((kLine - past) % kLine / sizeof(T)));
}

template <class T, class Id>
HWY_INLINE void widen_as(IntType type, void* out, const std::byte* ids, int64_t count, bool streaming) {
  const hn::ScalableTag<T> d;
  const hn::Rebind<Id, decltype(d)> did;
  const auto* from = reinterpret_cast<const Id*>(ids);
  auto* to = static_cast<T*>(out);
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (streaming) {
    i = before_line(to, count);
    plain::widen(to, type, ids, sizeof(Id), i);
    for (; i + step <= count; i += step) hn::Stream(promote(d, hn::LoadU(did, from + i)), d, to + i);
  } else {
    for (; i + step <= count; i += step) hn::StoreU(promote(d, hn::LoadU(did, from + i)), d, to + i);
  }
  plain::widen(to + i, type, ids + i * int64_t{sizeof(Id)}, sizeof(Id), count - i);
}

void Widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count, bool streaming) {
  const int type_bytes = int_type_bytes(type);
  if (type_bytes == id_bytes) {
    std::memcpy(out, ids, static_cast<size_t>(count * id_bytes));
  } else if (id_bytes == 1) {
    if (type_bytes == 2) return widen_as<uint16_t, uint8_t>(type, out, ids, count, streaming);
    if (type_bytes == 4) return widen_as<uint32_t, uint8_t>(type, out, ids, count, streaming);
    widen_as<uint64_t, uint8_t>(type, out, ids, count, streaming);
  } else if (type_bytes == 4) {
    widen_as<uint32_t, uint16_t>(type, out, ids, count, streaming);
  } else if (type_bytes == 8) {
    widen_as<uint64_t, uint16_t>(type, out, ids, count, streaming);
  } else {
    plain::widen(out, type, ids, id_bytes, count);
  }
}

#endif

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(Widen);

void widen(void* out, IntType type, const std::byte* ids, int id_bytes, int64_t count, bool streaming) {
  HWY_DYNAMIC_DISPATCH(Widen)(out, type, ids, id_bytes, count, streaming);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
