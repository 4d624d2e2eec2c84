// Texts of headers: JSON strings, hexadecimal checksums, UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moetape/error.h"

namespace moetape::inline v0::tape {

inline constexpr size_t kHexDigits = 16;
inline constexpr std::string_view kNoChecksum = "0000000000000000";  // in place of a text's own

// In quotes, escaped.
std::string quote(std::string_view text);

std::string hex(uint64_t value);
// Exactly 16 lower-case digits.
std::optional<uint64_t> parse_hex(std::string_view text);
// Decimal digits only.
std::optional<int64_t> parse_number(std::string_view text);

// kInvalidArgument, naming `what`.
Status check_utf8(std::string_view what, std::string_view text);

// XXH3 of a text that holds its own checksum in [at, at + 16), taken with zeros there.
uint64_t checksum_around(std::span<const std::byte> text, size_t at);
// Puts it there.
void seal(std::span<std::byte> text, size_t at);

}  // namespace moetape::inline v0::tape
