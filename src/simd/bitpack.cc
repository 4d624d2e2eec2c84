#include "simd/bitpack.h"

#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/bitpack.cc"
#include "hwy/foreach_target.h"
//
#include <cstring>

#include "hwy/highway.h"
#include "simd/plain.h"

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void BitPack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows) {
  plain::bitpack(out, ids, id_bytes, bits, ids_in_row, num_rows);
}

void BitUnpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows) {
  plain::bitunpack(ids, packed, id_bytes, bits, ids_in_row, num_rows);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::Full128<uint8_t>;
using Half = hn::Full128<uint16_t>;
using Word = hn::Full128<uint32_t>;
using Long = hn::Full128<uint64_t>;
using Vector = hn::Vec<Bytes>;

constexpr int64_t kBlock = 16;  // bytes of ids, and of a vector

// Neighbouring lanes of D become one lane of twice the size, the second `bits` behind the first; and back.
template <class Wide>
HWY_INLINE Vector join(Vector v, int lane_bits, int bits) {
  const Wide d;
  const auto pair = hn::BitCast(d, v);
  const auto mask = hn::Set(d, (hn::TFromD<Wide>{1} << lane_bits) - 1);
  const auto second = hn::ShiftLeftSame(hn::ShiftRightSame(pair, lane_bits), bits);
  return hn::BitCast(Bytes(), hn::Or(hn::And(pair, mask), second));
}

template <class Wide>
HWY_INLINE Vector part(Vector v, int lane_bits, int bits) {
  const Wide d;
  const auto joined = hn::BitCast(d, v);
  const auto mask = hn::Set(d, static_cast<hn::TFromD<Wide> >((hn::TFromD<Wide>{1} << bits) - 1));
  const auto second = hn::ShiftLeftSame(hn::ShiftRightSame(joined, bits), lane_bits);
  return hn::BitCast(Bytes(), hn::Or(hn::And(joined, mask), second));
}

// A block of 16 bytes of ids is two 64-bit lanes of `lane_bits` bits each when it is packed: the second
// begins in byte `second` of the packed block, at bit `shift` (0 or 4).
class Shape {
 public:
  Shape(int id_bytes, int bits)
      : id_bytes_(id_bytes),
        bits_(bits),
        lane_bits_(8 / id_bytes * bits),
        second_(lane_bits_ / 8),
        shift_(lane_bits_ % 8),
        packed_bytes_(kBlock / id_bytes * bits / 8) {
    const int lane_bytes = (lane_bits_ + shift_ + 7) / 8;
    for (int i = 0; i < kBlock; ++i) {
      const int in_second = i - second_;
      pack_first_[i] = i * 8 < lane_bits_ ? static_cast<uint8_t>(i) : kNone;
      pack_second_[i] =
          in_second >= 0 && in_second < lane_bytes ? static_cast<uint8_t>(8 + in_second) : kNone;
      const int place = i < 8 ? i : second_ + i - 8;
      unpack_[i] = i % 8 < lane_bytes ? static_cast<uint8_t>(place) : kNone;
    }
  }

  int64_t packed_bytes() const { return packed_bytes_; }

  HWY_INLINE Vector pack(Vector v) const {
    if (id_bytes_ == 1) v = join<Half>(v, 8, bits_);
    v = join<Word>(v, 16, 2 / id_bytes_ * bits_);
    v = join<Long>(v, 32, 4 / id_bytes_ * bits_);
    const Vector shifted = hn::BitCast(Bytes(), hn::ShiftLeftSame(hn::BitCast(Long(), v), shift_));
    return hn::Or(hn::TableLookupBytesOr0(v, hn::Load(Bytes(), pack_first_)),
                  hn::TableLookupBytesOr0(shifted, hn::Load(Bytes(), pack_second_)));
  }

  HWY_INLINE Vector unpack(Vector v) const {
    alignas(16) const uint64_t shifts[2] = {0, static_cast<uint64_t>(shift_)};
    const Long d;
    const auto lanes = hn::BitCast(d, hn::TableLookupBytesOr0(v, hn::Load(Bytes(), unpack_)));
    const auto mask = hn::Set(d, (uint64_t{1} << lane_bits_) - 1);
    v = hn::BitCast(Bytes(), hn::And(hn::Shr(lanes, hn::Load(d, shifts)), mask));
    v = part<Long>(v, 32, 4 / id_bytes_ * bits_);
    v = part<Word>(v, 16, 2 / id_bytes_ * bits_);
    return id_bytes_ == 1 ? part<Half>(v, 8, bits_) : v;
  }

 private:
  static constexpr uint8_t kNone = 0x80;  // gives zero

  int id_bytes_, bits_, lane_bits_, second_, shift_;
  int64_t packed_bytes_;
  alignas(16) uint8_t pack_first_[kBlock];
  alignas(16) uint8_t pack_second_[kBlock];
  alignas(16) uint8_t unpack_[kBlock];
};

// Rows that end with a byte are one long row.
HWY_INLINE void join_rows(int bits, int64_t& ids_in_row, int64_t& num_rows) {
  if (ids_in_row * bits % 8 != 0) return;
  ids_in_row *= num_rows;
  num_rows = 1;
}

void BitPack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows) {
  if (bits == 8 * id_bytes) {
    std::memcpy(out, ids, static_cast<size_t>(ids_in_row * num_rows * id_bytes));
    return;
  }
  if (id_bytes == 2 && bits <= 8) return plain::bitpack(out, ids, id_bytes, bits, ids_in_row, num_rows);
  join_rows(bits, ids_in_row, num_rows);
  const Shape shape(id_bytes, bits);
  const int64_t row_bytes = packed_row_bytes(ids_in_row, bits);
  const int64_t last = row_bytes * num_rows - kBlock;  // where a vector can still be stored
  const int64_t in_block = kBlock / id_bytes;
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t at = row * row_bytes;
    int64_t i = 0;
    for (; i + in_block <= ids_in_row && at <= last; i += in_block, at += shape.packed_bytes()) {
      const Vector v = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(ids + i * id_bytes));
      hn::StoreU(shape.pack(v), Bytes(), reinterpret_cast<uint8_t*>(out + at));
    }
    plain::bitpack(out + at, ids + i * id_bytes, id_bytes, bits, ids_in_row - i, 1);
    ids += ids_in_row * id_bytes;
  }
}

void BitUnpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows) {
  if (bits == 8 * id_bytes) {
    std::memcpy(ids, packed, static_cast<size_t>(ids_in_row * num_rows * id_bytes));
    return;
  }
  if (id_bytes == 2 && bits <= 8) return plain::bitunpack(ids, packed, id_bytes, bits, ids_in_row, num_rows);
  join_rows(bits, ids_in_row, num_rows);
  const Shape shape(id_bytes, bits);
  const int64_t row_bytes = packed_row_bytes(ids_in_row, bits);
  const int64_t last = row_bytes * num_rows - kBlock;  // where a vector can still be loaded
  const int64_t in_block = kBlock / id_bytes;
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t at = row * row_bytes;
    int64_t i = 0;
    for (; i + in_block <= ids_in_row && at <= last; i += in_block, at += shape.packed_bytes()) {
      const Vector v = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(packed + at));
      hn::StoreU(shape.unpack(v), Bytes(), reinterpret_cast<uint8_t*>(ids + i * id_bytes));
    }
    plain::bitunpack(ids + i * id_bytes, packed + at, id_bytes, bits, ids_in_row - i, 1);
    ids += ids_in_row * id_bytes;
  }
}

#endif

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(BitPack);
HWY_EXPORT(BitUnpack);

void bitpack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows) {
  if (ids_in_row * num_rows == 0) return;
  HWY_DYNAMIC_DISPATCH(BitPack)(out, ids, id_bytes, bits, ids_in_row, num_rows);
}

void bitunpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows) {
  if (ids_in_row * num_rows == 0) return;
  HWY_DYNAMIC_DISPATCH(BitUnpack)(ids, packed, id_bytes, bits, ids_in_row, num_rows);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
