#include "wire/place.h"

#include <fmt/format.h>

namespace moetape::inline v0::wire {

std::string shown_at(std::string_view text, size_t position) {
  if (position >= text.size()) return "the end of the text";
  const unsigned char character = static_cast<unsigned char>(text[position]);
  if (character < 0x20 || character > 0x7e) return fmt::format("byte 0x{:02x}", character);
  return fmt::format("'{}'", text[position]);
}

}  // namespace moetape::inline v0::wire
