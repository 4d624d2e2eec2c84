#include "tape/text.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/fail.h"
#include "tape/checksum.h"

namespace moetape::inline v0::tape {
namespace {

template <class T>
std::optional<T> parse(std::string_view text, int base) {
  T value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> parse_hex(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != kHexDigits || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  return parse<uint64_t>(text, 16);
}

std::optional<int64_t> parse_number(std::string_view text) {
  if (text.starts_with('-')) return std::nullopt;
  return parse<int64_t>(text, 10);
}

Status check_utf8(std::string_view what, std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: expected UTF-8, got {} bytes that are something else", what,
              text.size());
}

uint64_t checksum_around(std::span<const std::byte> text, size_t at) {
  Checksum checksum;
  checksum.add(text.first(at));
  checksum.add(kNoChecksum);
  checksum.add(text.subspan(at + kHexDigits));
  return checksum.value();
}

void seal(std::span<std::byte> text, size_t at) {
  const std::string digits = hex(checksum_around(text, at));
  std::memcpy(text.data() + at, digits.data(), digits.size());
}

}  // namespace moetape::inline v0::tape
