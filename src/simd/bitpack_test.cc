#include "simd/bitpack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "simd/plain.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

constexpr std::byte kUntouched{0xA5};

using Bytes = std::vector<std::byte>;

// Ids that need all of `bits`.
Bytes random_ids(int id_bytes, int bits, int64_t count, std::mt19937_64& random) {
  Bytes ids(static_cast<size_t>(count * id_bytes));
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint16_t>(random() & ((1u << bits) - 1));
    std::memcpy(ids.data() + i * id_bytes, &id, static_cast<size_t>(id_bytes));
  }
  return ids;
}

// The format, bit by bit.
Bytes packed_by_hand(const Bytes& ids, int id_bytes, int bits, int64_t ids_in_row, int64_t num_rows) {
  const int64_t row_bytes = packed_row_bytes(ids_in_row, bits);
  Bytes packed(static_cast<size_t>(row_bytes * num_rows));
  for (int64_t i = 0; i < ids_in_row * num_rows; ++i) {
    uint16_t id = 0;
    std::memcpy(&id, ids.data() + i * id_bytes, static_cast<size_t>(id_bytes));
    for (int bit = 0; bit < bits; ++bit) {
      const int64_t at = i % ids_in_row * bits + bit;
      if ((id >> bit & 1) == 0) continue;
      packed[static_cast<size_t>(i / ids_in_row * row_bytes + at / 8)] |= std::byte{1} << (at % 8);
    }
  }
  return packed;
}

TEST(BitPack, BitsFollowTheNumberOfExperts) {
  EXPECT_EQ(id_bits(1), 1);
  EXPECT_EQ(id_bits(2), 1);
  EXPECT_EQ(id_bits(3), 2);
  EXPECT_EQ(id_bits(64), 6);
  EXPECT_EQ(id_bits(160), 8);
  EXPECT_EQ(id_bits(256), 8);
  EXPECT_EQ(id_bits(257), 9);
  EXPECT_EQ(id_bits(512), 9);
  EXPECT_EQ(id_bits(65'536), 16);
}

TEST(BitPack, PacksAsTheFormatSaysOnEveryTarget) {
  std::mt19937_64 random(11);
  for (int bits = 1; bits <= 16; ++bits) {
    const int id_bytes = bits <= 8 ? 1 : 2;
    for (int64_t ids_in_row = 1; ids_in_row <= 70; ids_in_row += ids_in_row < 34 ? 1 : 9) {
      for (const int64_t num_rows : {1, 2, 5}) {
        const Bytes ids = random_ids(id_bytes, bits, ids_in_row * num_rows, random);
        const Bytes packed = packed_by_hand(ids, id_bytes, bits, ids_in_row, num_rows);
        on_every_target([&] {
          Bytes out(packed.size() + 1, kUntouched);
          bitpack(out.data(), ids.data(), id_bytes, bits, ids_in_row, num_rows);
          EXPECT_EQ(out.back(), kUntouched);
          out.pop_back();
          ASSERT_EQ(out, packed) << bits << " bits, " << num_rows << " rows of " << ids_in_row;
          Bytes back(ids.size() + 1, kUntouched);
          bitunpack(back.data(), packed.data(), id_bytes, bits, ids_in_row, num_rows);
          EXPECT_EQ(back.back(), kUntouched);
          back.pop_back();
          ASSERT_EQ(back, ids) << bits << " bits, " << num_rows << " rows of " << ids_in_row;
        });
      }
    }
  }
}

// case D01: the number of experts says how many bits, and no id is cut.
TEST(BitPack, EqualsThePlainCodeOnWholeRequests) {
  std::mt19937_64 random(12);
  for (const auto& [num_experts, ids_in_row] :
       std::vector<std::pair<int, int64_t>>{{64, 162}, {128, 384}, {256, 464}, {384, 480}, {512, 1056}}) {
    const int bits = id_bits(num_experts);
    const int id_bytes = num_experts <= 256 ? 1 : 2;
    const int64_t num_rows = 100;
    const Bytes ids = random_ids(id_bytes, bits, ids_in_row * num_rows, random);
    Bytes expected(static_cast<size_t>(packed_row_bytes(ids_in_row, bits) * num_rows));
    plain::bitpack(expected.data(), ids.data(), id_bytes, bits, ids_in_row, num_rows);
    on_every_target([&] {
      Bytes packed(expected.size());
      bitpack(packed.data(), ids.data(), id_bytes, bits, ids_in_row, num_rows);
      EXPECT_EQ(packed, expected);
      Bytes back(ids.size());
      bitunpack(back.data(), packed.data(), id_bytes, bits, ids_in_row, num_rows);
      EXPECT_EQ(back, ids);
    });
  }
}

TEST(BitPack, NothingIsNothing) {
  bitpack(nullptr, nullptr, 1, 6, 0, 4);
  bitunpack(nullptr, nullptr, 1, 6, 12, 0);
}

}  // namespace
}  // namespace moetape::inline v0::simd
