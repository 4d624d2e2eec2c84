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

// Whether the bytes, or the bytes that base64 characters stand for, begin as a safetensors file does: with
// the length of a JSON object, and that.
bool begins_as_tape(std::string_view bytes);
bool begins_as_base64_tape(std::string_view text);

// The keys of a JSON object. `thing` begins messages.
Result<std::vector<std::string>> keys_of_object(std::string_view thing, std::string_view text);

}  // namespace moetape::inline v0::wire
