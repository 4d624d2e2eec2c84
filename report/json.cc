#include "json.h"

#include <fmt/format.h>

#include <iterator>

namespace moetape::inline v0::report {
namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<uint8_t>(text[index]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  for (size_t index = 1; index < bytes; ++index) {
    if ((byte(index) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return byte(1) < least || byte(1) > most ? 0 : bytes;
}

// Calls on_character with each character, or with the bytes that are none, as \xE2.
template <class OnCharacter>
void for_each_character(std::string_view text, const OnCharacter& on_character) {
  size_t at = 0;
  while (at < text.size()) {
    if (at >= kMostTextBytes) {
      on_character("…");
      return;
    }
    const size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) {
      on_character(fmt::format("\\x{:02X}", static_cast<uint8_t>(text[at])));
    } else {
      on_character(text.substr(at, bytes));
    }
    at += bytes == 0 ? 1 : bytes;
  }
}

// Of what is no ASCII, every byte is plain.
bool is_plain(char c, std::string_view special) {
  const auto byte = static_cast<uint8_t>(c);
  return byte >= 0x20 && special.find(c) == std::string_view::npos;
}

}  // namespace

void JsonWriter::separate() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  text(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::number(int64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::number(std::optional<int64_t> value) { return value ? number(*value) : null(); }

JsonWriter& JsonWriter::rounded(std::optional<double> value) {
  if (!value) return null();
  separate();
  fmt::format_to(std::back_inserter(out_), "{:.4g}", *value);
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  separate();
  out_ += '"';
  for_each_character(value, [&](std::string_view character) {
    for (const char c : character) {
      if (is_plain(c, "\"\\<>&")) {
        out_ += c;
      } else {
        fmt::format_to(std::back_inserter(out_), "\\u{:04x}", static_cast<unsigned>(c));
      }
    }
  });
  out_ += '"';
  return *this;
}

std::string html_text(std::string_view value) {
  std::string out;
  for_each_character(value, [&](std::string_view character) {
    for (const char c : character) {
      if (is_plain(c, "\"'<>&")) {
        out += c;
      } else if (static_cast<uint8_t>(c) >= 0x20) {
        fmt::format_to(std::back_inserter(out), "&#{};", static_cast<unsigned>(c));
      } else {
        out += ' ';
      }
    }
  });
  return out;
}

}  // namespace moetape::inline v0::report
