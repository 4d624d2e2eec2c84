// JSON: how values look in the output of --json, one function for each. docs/cli.md lists the fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "console.h"
#include "moetape/spec.h"

namespace moetape::cli {

using Json = nlohmann::ordered_json;

Json json_of(const RouteSpec& spec);
template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
std::string fingerprint_text(const RouteSpec& spec);  // 16 hexadecimal digits

// To standard output. Bytes that are no UTF-8 come out as U+FFFD.
void print_json(Console& console, const Json& json);

}  // namespace moetape::cli
