#include <array>
#include <string_view>

#include "simd/plain.h"

namespace moetape::inline v0::simd::plain {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 0xFF;

constexpr std::array<uint8_t, 256> make_digits() {
  std::array<uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  return digits;
}

constexpr std::array<uint8_t, 256> kDigits = make_digits();

uint32_t digit(char c) { return kDigits[static_cast<uint8_t>(c)]; }

uint32_t byte_at(const std::byte* in, size_t i) { return std::to_integer<uint32_t>(in[i]); }

// The last group, which may end in one or two "=".
Base64Decoded decode_last(std::byte* out, const char* in, size_t start) {
  const int num_digits = in[3] != '=' ? 4 : in[2] != '=' ? 3 : 2;
  uint32_t bits = 0;
  for (int i = 0; i < num_digits; ++i) {
    if (digit(in[i]) == kNoDigit) return {0, static_cast<int64_t>(start) + i};
    bits |= digit(in[i]) << (18 - 6 * i);
  }
  const int num_bytes = num_digits - 1;
  if ((bits & ((uint32_t{1} << (24 - 8 * num_bytes)) - 1)) != 0) {
    return {0, static_cast<int64_t>(start) + num_digits - 1};
  }
  for (int i = 0; i < num_bytes; ++i) out[i] = static_cast<std::byte>(bits >> (16 - 8 * i));
  return {static_cast<size_t>(num_bytes), -1};
}

}  // namespace

size_t base64_encode(char* out, const std::byte* in, size_t bytes) {
  const char* const begin = out;
  size_t i = 0;
  for (; i + 3 <= bytes; i += 3, out += 4) {
    const uint32_t bits = byte_at(in, i) << 16 | byte_at(in, i + 1) << 8 | byte_at(in, i + 2);
    for (int c = 0; c < 4; ++c) out[c] = kAlphabet[bits >> (18 - 6 * c) & 63];
  }
  if (i < bytes) {
    const bool two = bytes - i == 2;
    const uint32_t bits = byte_at(in, i) << 16 | (two ? byte_at(in, i + 1) << 8 : 0);
    out[0] = kAlphabet[bits >> 18];
    out[1] = kAlphabet[bits >> 12 & 63];
    out[2] = two ? kAlphabet[bits >> 6 & 63] : '=';
    out[3] = '=';
    out += 4;
  }
  return static_cast<size_t>(out - begin);
}

Base64Decoded base64_decode(std::byte* out, const char* in, size_t chars) {
  Base64Decoded done;
  size_t i = 0;
  for (; i + 4 < chars; i += 4, done.bytes += 3) {
    uint32_t bits = 0;
    for (int c = 0; c < 4; ++c) {
      if (digit(in[i + c]) == kNoDigit) return {done.bytes, static_cast<int64_t>(i) + c};
      bits = bits << 6 | digit(in[i + c]);
    }
    for (int b = 0; b < 3; ++b) out[done.bytes + b] = static_cast<std::byte>(bits >> (16 - 8 * b));
  }
  if (i == chars) return done;
  if (i + 4 > chars) {
    for (; i < chars; ++i) {
      if (digit(in[i]) == kNoDigit) break;
    }
    return {done.bytes, static_cast<int64_t>(i)};
  }
  const Base64Decoded last = decode_last(out + done.bytes, in + i, i);
  return {done.bytes + last.bytes, last.bad_position};
}

}  // namespace moetape::inline v0::simd::plain
