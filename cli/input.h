// Input: files as commands are given them. "-" is standard input.
#pragma once

#include <string>
#include <string_view>

#include "json.h"
#include "moetape/spec.h"

namespace moetape::cli {

// All bytes. Refuses with the system's words: "run.tape: No such file or directory".
std::string read_file(const std::string& path);

// Refuses what is no JSON; NaN and Infinity, which Python writes, become numbers that are no integers.
Json parse_json(std::string_view text, const std::string& place);

// Whether bytes begin as a tape or the index of one does.
bool looks_like_tape(std::string_view bytes);

// A spec out of JSON: of moetape's own (what info --json shows), or of a model's configuration.
RouteSpec spec_from_json(const Json& json, const std::string& place);

// --spec: a file of either kind, or the folder of a model.
RouteSpec read_spec(const std::string& path);

}  // namespace moetape::cli
