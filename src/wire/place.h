// What stands at a place of a text, for error messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moetape::inline v0::wire {

// The most that a message shows of a string from outside.
inline constexpr size_t kMostShown = 64;

// "'x'", "byte 0xff" or "the end of the text".
std::string shown_at(std::string_view text, size_t position);

}  // namespace moetape::inline v0::wire
