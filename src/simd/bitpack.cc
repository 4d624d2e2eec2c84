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

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE

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

// Packed ids of a block of 16 bytes are two 64-bit lanes of `lane_bits` bits each; the second begins in byte
// `second` of the packed block, at its bit `shift` (0 or 4). Several blocks are worked on at once where the
// size of vectors is known.
#if HWY_ARCH_X86
using Bytes = hn::FixedTag<uint8_t, HWY_MIN(HWY_MAX_BYTES, 64)>;
#else
using Bytes = hn::FixedTag<uint8_t, 16>;
#endif
using Vector = hn::Vec<Bytes>;
using Longs = hn::Repartition<uint64_t, Bytes>;

constexpr int64_t kBlock = 16;  // bytes of ids
constexpr int64_t kNumBlocks = static_cast<int64_t>(hn::MaxLanes(Bytes())) / kBlock;

struct Shape {
  static constexpr uint8_t kNone = 0x80;  // gives zero

  Shape(int id_bytes, int bits)
      : lane_bits(8 / id_bytes * bits), shift(lane_bits % 8), packed_bytes(kBlock / id_bytes * bits / 8) {
    const int second = lane_bits / 8;
    const int lane_bytes = (lane_bits + shift + 7) / 8;
    for (int i = 0; i < kBlock; ++i) {
      const int in_second = i - second;
      pack_first[i] = i * 8 < lane_bits ? static_cast<uint8_t>(i) : kNone;
      pack_second[i] = in_second >= 0 && in_second < lane_bytes ? static_cast<uint8_t>(8 + in_second) : kNone;
      unpack[i] = i % 8 < lane_bytes ? static_cast<uint8_t>(i < 8 ? i : second + i - 8) : kNone;
    }
  }

  int lane_bits, shift;
  int64_t packed_bytes;  // of a block
  alignas(16) uint8_t pack_first[kBlock];
  alignas(16) uint8_t pack_second[kBlock];
  alignas(16) uint8_t unpack[kBlock];
};

// The same 16 bytes in every block.
HWY_INLINE Vector in_every_block(const uint8_t* bytes) { return hn::LoadDup128(Bytes(), bytes); }

// Blocks that stand `step` bytes apart.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const std::byte* from, int64_t step) {
  if constexpr (hn::MaxLanes(D()) == kBlock) {
    return hn::LoadU(d, reinterpret_cast<const uint8_t*>(from));
  } else {
    const hn::Half<D> half;
    const auto low = load_blocks(half, from, step);
    const auto high =
        load_blocks(half, from + step * static_cast<int64_t>(hn::MaxLanes(half)) / kBlock, step);
    return hn::Combine(d, high, low);
  }
}

// In order: each overwrites what the one before has stored behind its own.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, std::byte* to, int64_t step) {
  if constexpr (hn::MaxLanes(D()) == kBlock) {
    hn::StoreU(v, d, reinterpret_cast<uint8_t*>(to));
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), to, step);
    store_blocks(half, hn::UpperHalf(half, v), to + step * static_cast<int64_t>(hn::MaxLanes(half)) / kBlock,
                 step);
  }
}

// Neighbouring lanes of `lane_bits` become one of twice the size, the second `bits` behind the first; and
// back.
template <class Wide>
HWY_INLINE Vector join(Vector v, int lane_bits, int bits) {
  const hn::Repartition<Wide, Bytes> d;
  const auto pair = hn::BitCast(d, v);
  const auto mask = hn::Set(d, static_cast<Wide>((Wide{1} << lane_bits) - 1));
  const auto second = hn::ShiftLeftSame(hn::ShiftRightSame(pair, lane_bits), bits);
  return hn::BitCast(Bytes(), hn::Or(hn::And(pair, mask), second));
}

template <class Wide>
HWY_INLINE Vector part(Vector v, int lane_bits, int bits) {
  const hn::Repartition<Wide, Bytes> d;
  const auto joined = hn::BitCast(d, v);
  const auto mask = hn::Set(d, static_cast<Wide>((Wide{1} << bits) - 1));
  const auto second = hn::ShiftLeftSame(hn::ShiftRightSame(joined, bits), lane_bits);
  return hn::BitCast(Bytes(), hn::Or(hn::And(joined, mask), second));
}

template <int kIdBytes>
class Packer {
 public:
  Packer(const Shape& shape, int bits)
      : bits_(bits),
        shift_(shape.shift),
        step_(shape.packed_bytes),
        first_(in_every_block(shape.pack_first)),
        second_(in_every_block(shape.pack_second)) {}

  HWY_INLINE void pack(std::byte* out, const std::byte* ids) const {
    Vector v = hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(ids));
    if constexpr (kIdBytes == 1) v = join<uint16_t>(v, 8, bits_);
    v = join<uint32_t>(v, 16, 2 / kIdBytes * bits_);
    v = join<uint64_t>(v, 32, 4 / kIdBytes * bits_);
    const Vector shifted = hn::BitCast(Bytes(), hn::ShiftLeftSame(hn::BitCast(Longs(), v), shift_));
    v = hn::Or(hn::TableLookupBytesOr0(v, first_), hn::TableLookupBytesOr0(shifted, second_));
    store_blocks(Bytes(), v, out, step_);
  }

 private:
  int bits_, shift_;
  int64_t step_;
  Vector first_, second_;
};

template <int kIdBytes>
class Unpacker {
 public:
  Unpacker(const Shape& shape, int bits)
      : bits_(bits),
        step_(shape.packed_bytes),
        places_(in_every_block(shape.unpack)),
        mask_(hn::Set(Longs(), (uint64_t{1} << shape.lane_bits) - 1)),
        shift_(shape.shift) {}

  HWY_INLINE void unpack(std::byte* ids, const std::byte* packed) const {
    const Vector spread = hn::TableLookupBytesOr0(load_blocks(Bytes(), packed, step_), places_);
    const auto lanes = hn::BitCast(Longs(), spread);
    // Only second lanes are shifted.
    const auto shifted = hn::OddEven(hn::ShiftRightSame(lanes, shift_), lanes);
    Vector v = hn::BitCast(Bytes(), hn::And(shifted, mask_));
    v = part<uint64_t>(v, 32, 4 / kIdBytes * bits_);
    v = part<uint32_t>(v, 16, 2 / kIdBytes * bits_);
    if constexpr (kIdBytes == 1) v = part<uint16_t>(v, 8, bits_);
    hn::StoreU(v, Bytes(), reinterpret_cast<uint8_t*>(ids));
  }

 private:
  int bits_;
  int64_t step_;
  Vector places_;
  hn::Vec<Longs> mask_;
  int shift_;
};

// Rows that end with a byte are one long row.
HWY_INLINE void join_rows(int bits, int64_t& ids_in_row, int64_t& num_rows) {
  if (ids_in_row * bits % 8 != 0) return;
  ids_in_row *= num_rows;
  num_rows = 1;
}

// Calls block(packed, ids) for the vectors of a row that can be loaded and stored whole, and rest(...) for
// what is left of it.
template <int kIdBytes, class Block, class Rest>
HWY_INLINE void for_each_vector(const Shape& shape, int bits, int64_t ids_in_row, int64_t num_rows,
                                Block block, Rest rest) {
  const int64_t row_bytes = packed_row_bytes(ids_in_row, bits);
  const int64_t last = row_bytes * num_rows - (kNumBlocks - 1) * shape.packed_bytes - kBlock;
  constexpr int64_t kIds = kNumBlocks * kBlock / kIdBytes;
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t packed = row * row_bytes;
    int64_t i = 0;
    for (; i + kIds <= ids_in_row && packed <= last; i += kIds, packed += kNumBlocks * shape.packed_bytes) {
      block(packed, (row * ids_in_row + i) * kIdBytes);
    }
    rest(packed, (row * ids_in_row + i) * kIdBytes, ids_in_row - i);
  }
}

template <int kIdBytes>
void pack_rows(std::byte* out, const std::byte* ids, int bits, int64_t ids_in_row, int64_t num_rows) {
  join_rows(bits, ids_in_row, num_rows);
  const Shape shape(kIdBytes, bits);
  const Packer<kIdBytes> packer(shape, bits);
  for_each_vector<kIdBytes>(
      shape, bits, ids_in_row, num_rows,
      [&](int64_t packed, int64_t id) HWY_ATTR { packer.pack(out + packed, ids + id); },
      [&](int64_t packed, int64_t id, int64_t count) {
        plain::bitpack(out + packed, ids + id, kIdBytes, bits, count, 1);
      });
}

template <int kIdBytes>
void unpack_rows(std::byte* ids, const std::byte* packed, int bits, int64_t ids_in_row, int64_t num_rows) {
  join_rows(bits, ids_in_row, num_rows);
  const Shape shape(kIdBytes, bits);
  const Unpacker<kIdBytes> unpacker(shape, bits);
  for_each_vector<kIdBytes>(
      shape, bits, ids_in_row, num_rows,
      [&](int64_t from, int64_t id) HWY_ATTR { unpacker.unpack(ids + id, packed + from); },
      [&](int64_t from, int64_t id, int64_t count) {
        plain::bitunpack(ids + id, packed + from, kIdBytes, bits, count, 1);
      });
}

void BitPack(std::byte* out, const std::byte* ids, int id_bytes, int bits, int64_t ids_in_row,
             int64_t num_rows) {
  if (bits == 8 * id_bytes) {
    std::memcpy(out, ids, static_cast<size_t>(ids_in_row * num_rows * id_bytes));
  } else if (id_bytes == 1) {
    pack_rows<1>(out, ids, bits, ids_in_row, num_rows);
  } else if (bits > 8) {
    pack_rows<2>(out, ids, bits, ids_in_row, num_rows);
  } else {
    plain::bitpack(out, ids, id_bytes, bits, ids_in_row, num_rows);
  }
}

void BitUnpack(std::byte* ids, const std::byte* packed, int id_bytes, int bits, int64_t ids_in_row,
               int64_t num_rows) {
  if (bits == 8 * id_bytes) {
    std::memcpy(ids, packed, static_cast<size_t>(ids_in_row * num_rows * id_bytes));
  } else if (id_bytes == 1) {
    unpack_rows<1>(ids, packed, bits, ids_in_row, num_rows);
  } else if (bits > 8) {
    unpack_rows<2>(ids, packed, bits, ids_in_row, num_rows);
  } else {
    plain::bitunpack(ids, packed, id_bytes, bits, ids_in_row, num_rows);
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
