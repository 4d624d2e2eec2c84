#include "simd/widen.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "simd/plain.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

TEST(Widen, KeepsEveryIdInEveryType) {
  const std::vector<uint16_t> wide = {0, 1, 255, 256, 32767, 65535};
  const auto* bytes = reinterpret_cast<const std::byte*>(wide.data());
  on_every_target([&] {
    std::vector<int32_t> as_int32(wide.size());
    widen(as_int32.data(), IntType::kInt32, bytes, 2, int64_t(wide.size()));
    EXPECT_EQ(as_int32, (std::vector<int32_t>{0, 1, 255, 256, 32767, 65535}));
    std::vector<int64_t> as_int64(wide.size());
    widen(as_int64.data(), IntType::kInt64, bytes, 2, int64_t(wide.size()));
    EXPECT_EQ(as_int64, (std::vector<int64_t>{0, 1, 255, 256, 32767, 65535}));
  });
}

TEST(Widen, EqualsThePlainCodeAtEverySizeAndAlignment) {
  std::mt19937_64 random(3);
  std::vector<std::byte> ids(1000);
  for (std::byte& byte : ids) byte = static_cast<std::byte>(random());
  for (int type = 0; type < 8; ++type) {
    const auto int_type = static_cast<IntType>(type);
    for (const int id_bytes : {1, 2}) {
      if (int_type_bytes(int_type) < id_bytes) continue;
      for (int64_t count = 0; count <= 140; ++count) {
        const size_t bytes = static_cast<size_t>(count * int_type_bytes(int_type));
        std::vector<std::byte> expected(bytes + 1, std::byte{0xA5});
        plain::widen(expected.data(), int_type, ids.data() + 1, id_bytes, count);
        on_every_target([&] {
          for (const bool streaming : {false, true}) {
            for (const size_t offset : {0u, 1u, 8u}) {
              std::vector<std::byte> got(offset + bytes + 1, std::byte{0xA5});
              widen(got.data() + offset, int_type, ids.data() + 1, id_bytes, count, streaming);
              got.erase(got.begin(), got.begin() + std::ptrdiff_t(offset));
              ASSERT_EQ(got, expected) << int_type_name(int_type) << " " << count << " + " << offset;
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace moetape::inline v0::simd
