#include "simd/base64.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_util.h"
#include "simd/plain.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

// Both with memory of the exact size, so that a sanitizer sees a byte too many.
std::string encode(const std::vector<std::byte>& bytes) {
  std::vector<char> text(base64_size(bytes.size()));
  EXPECT_EQ(base64_encode(text.data(), bytes.data(), bytes.size()), text.size());
  return {text.begin(), text.end()};
}

struct Decoded {
  std::vector<std::byte> bytes;
  int64_t bad_position;
};

Decoded decode(std::string_view text) {
  const std::vector<char> exact(text.begin(), text.end());
  std::vector<std::byte> bytes(base64_decoded_bound(text.size()));
  const Base64Decoded result = base64_decode(bytes.data(), exact.data(), exact.size());
  EXPECT_LE(result.bytes, bytes.size());
  bytes.resize(result.bytes);
  return {bytes, result.bad_position};
}

std::vector<std::byte> as_bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

TEST(Base64, KnowsTheVectorsOfRfc4648) {
  constexpr std::pair<std::string_view, std::string_view> kVectors[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="},
      {"foobar", "Zm9vYmFy"},
  };
  on_every_target([&] {
    for (const auto& [plain_text, text] : kVectors) {
      EXPECT_EQ(encode(as_bytes(plain_text)), text);
      EXPECT_EQ(decode(text).bytes, as_bytes(plain_text));
      EXPECT_EQ(decode(text).bad_position, -1);
    }
  });
}

TEST(Base64, EqualsThePlainCodeAtEverySize) {
  for (size_t size = 0; size <= 520; ++size) {
    const auto bytes = random_bytes(size, size);
    std::string expected(base64_size(size), '\0');
    plain::base64_encode(expected.data(), bytes.data(), size);
    on_every_target([&] {
      ASSERT_EQ(encode(bytes), expected);
      const Decoded back = decode(expected);
      ASSERT_EQ(back.bad_position, -1);
      ASSERT_EQ(back.bytes, bytes);
    });
  }
}

TEST(Base64, NamesTheFirstBadCharacter) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string good = encode(random_bytes(300, 7));
  on_every_target([&] {
    for (const size_t place : {0u, 1u, 31u, 32u, 63u, 64u, 130u, 255u, 256u, 380u, 399u}) {
      for (int value = 0; value < 256; ++value) {
        const char c = static_cast<char>(value);
        std::string text = good;
        text[place] = c;
        const bool fine = kDigits.find(c) != std::string_view::npos || (c == '=' && place == text.size() - 1);
        const Decoded result = decode(text);
        if (fine && c == '=') continue;  // may leave bits that are not zero: see below
        EXPECT_EQ(result.bad_position, fine ? -1 : static_cast<int64_t>(place)) << value << " at " << place;
      }
    }
  });
}

TEST(Base64, TakesNothingThatItDoesNotWrite) {
  constexpr std::pair<std::string_view, int64_t> kBad[] = {
      {"Z", 1},      {"Zg", 2},      {"Zg=", 2},  {"Zg==Zg==", 2}, {"Zh==", 1},   {"Zm9=", 2},
      {"=", 0},      {"====", 0},    {"Z===", 1}, {"Zm=v", 2},     {"Zm9v\n", 4}, {" Zm9", 0},
      {"Zm9vYg", 6}, {"Zm9vYg=", 6}, {"Zm-v", 2}, {"Zm9vZh==", 5},
  };
  on_every_target([&] {
    for (const auto& [text, position] : kBad) EXPECT_EQ(decode(text).bad_position, position) << text;
  });
}

RC_GTEST_PROP(Base64, PartsMakeTheWhole, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  const auto bytes = random_bytes(random() % 2000, seed);
  const size_t cut = bytes.empty() ? 0 : random() % bytes.size() / 3 * 3;
  on_every_target([&] {
    const std::vector<std::byte> first(bytes.begin(), bytes.begin() + int64_t(cut));
    const std::vector<std::byte> second(bytes.begin() + int64_t(cut), bytes.end());
    EXPECT_EQ(encode(first) + encode(second), encode(bytes));
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

}  // namespace
}  // namespace moetape::inline v0::simd
