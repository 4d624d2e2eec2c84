// What stands at a place of a text, for error messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moetape::inline v0::wire {

// "'x'", "byte 0xff" or "the end of the text".
std::string shown_at(std::string_view text, size_t position);

}  // namespace moetape::inline v0::wire
