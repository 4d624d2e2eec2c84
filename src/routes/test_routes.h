// For the tests of rooms above: specs, and routes of given or random ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "base/test_util.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

using Ids = std::vector<int64_t>;  // [rows, layers, k]

inline RouteSpec make_spec(RouteSpecFields fields) { return value_of(RouteSpec::create(std::move(fields))); }

inline Routes make_routes(const RouteSpec& spec, const Ids& ids, std::vector<uint8_t> valid = {},
                          int64_t start = 0) {
  const auto num_rows = std::ssize(ids) / (spec.num_moe_layers() * spec.top_k());
  return value_of(Routes::from_ids(
      spec, start, {.ids = ids.data(), .type = IntType::kInt64, .num_rows = num_rows, .valid = valid}));
}

// Different ids in every list, or any ids where the spec allows repetition.
inline Ids random_ids(const RouteSpec& spec, int64_t num_rows, std::mt19937_64& random) {
  Ids ids;
  for (int64_t list = 0; list < num_rows * spec.num_moe_layers(); ++list) {
    Ids chosen;
    while (std::ssize(chosen) < spec.top_k()) {
      const auto id = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.num_experts()));
      if (!spec.distinct() || std::ranges::find(chosen, id) == chosen.end()) chosen.push_back(id);
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

}  // namespace moetape::inline v0
