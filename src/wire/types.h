// Integer types of a dialect: which hold the experts of a model, and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/wire.h"

namespace moetape::inline v0::wire {

bool holds(IntType type, int64_t id);

// The first of the dialect's types that holds ids below num_experts; kUnsupported, naming how many it can
// count, if none does.
Result<IntType> first_type(const DialectInfo& info, int64_t num_experts);

// "uint8", and so on; none for another name.
std::optional<IntType> type_from_name(std::string_view name);

// "uint8, int16 or int32"
std::string type_names(std::span<const IntType> types);

}  // namespace moetape::inline v0::wire
