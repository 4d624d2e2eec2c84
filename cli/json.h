// JSON: how values look in the output of --json, one function for each. docs/cli.md lists the fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>

#include "console.h"
#include "moetape/compare.h"
#include "moetape/routes.h"
#include "moetape/spec.h"
#include "moetape/stats.h"
#include "moetape/tape.h"

namespace moetape::cli {

using Json = nlohmann::ordered_json;
using ParsedJson = nlohmann::json;  // what is read; finds a name among many

Json json_of(const RouteSpec& spec);
Json json_of(const VersionRun& run);
Json json_of(const TapeEntry& entry);
Json json_of(const Tape& tape);
Json json_of(const TapeFault& fault);
Json json_of(const Agreement& agreement);
Json json_of(const Balance& balance);
// Times that each expert was chosen only if asked for: they are many.
Json json_of(const Stats& stats, bool with_load);
Json json_of(const ReroutedRow& row);
Json json_of(const Comparison& comparison);
// null for nothing.
template <class T>
Json json_of(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_arithmetic_v<T>) return *value;
  if constexpr (!std::is_arithmetic_v<T>) return json_of(*value);
}
std::string fingerprint_text(const RouteSpec& spec);  // 16 hexadecimal digits

// JSON out of a file for a message: its beginning, where it is long.
std::string shown(const ParsedJson& json);

// To standard output. Bytes that are no UTF-8 come out as U+FFFD.
void print_json(Console& console, const Json& json);

}  // namespace moetape::cli
