// What forms can be told by: their first characters, and the keys of their objects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0::wire {

inline constexpr std::string_view kNpyMark("\x93NUMPY", 6);
inline constexpr std::string_view kBase64NpyMark = "k05VTVBZ";  // of kNpyMark
inline constexpr std::string_view kNemoRlMark = "nrlre1:";

// The keys of a JSON object. `thing` begins messages.
Result<std::vector<std::string>> keys_of_object(std::string_view thing, std::string_view text);

}  // namespace moetape::inline v0::wire
