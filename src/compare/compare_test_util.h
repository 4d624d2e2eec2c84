// Long random tables: what random_table of routes makes is too short to fill a block or a window.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "routes/routes_reference.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {

inline bool one_of(uint64_t n, std::mt19937_64& random) { return random() % n == 0; }

inline std::vector<int> random_row_ids(const RouteSpec& spec, std::mt19937_64& random) {
  const Ids ids = random_ids(spec, 1, random);
  return {ids.begin(), ids.end()};
}

// Stretches of valid rows of one version, some missing rows, rows that repeat the one before.
inline reference::Table long_table(const RouteSpec& spec, int64_t num_rows, std::mt19937_64& random) {
  reference::Table table{.start = static_cast<int64_t>(random() % 1000)};
  const bool named = one_of(2, random);
  std::optional<uint32_t> version = 5;
  std::vector<int> ids = random_row_ids(spec, random);
  for (int64_t i = 0; i < num_rows; ++i) {
    if (one_of(300, random)) version = static_cast<uint32_t>(random() % 200);
    if (one_of(900, random)) version.reset();
    if (!one_of(3, random)) ids = random_row_ids(spec, random);
    reference::Row row;
    if (one_of(200, random)) {
      row.reason = static_cast<Reason>(1 + random() % (kNumReasons - 1));
    } else {
      row = {.reason = Reason::kValid, .ids = ids, .version = version};
    }
    if (named) row.token = static_cast<int32_t>((table.start + i) % 97 - 5);
    table.rows.push_back(std::move(row));
  }
  return table;
}

// The same tokens again: most routers stay, some lists are shuffled, some are drawn anew; other rows miss.
inline reference::Table routed_again(const RouteSpec& spec, reference::Table table, uint64_t stay,
                                     std::mt19937_64& random) {
  for (reference::Row& row : table.rows) {
    if (one_of(300, random)) row = {.reason = Reason::kTorn, .token = row.token};
    if (row.reason != Reason::kValid) continue;
    const std::vector<int> drawn = random_row_ids(spec, random);
    for (std::ptrdiff_t first = 0; first < std::ssize(row.ids); first += spec.top_k()) {
      const auto list = row.ids.begin() + first;
      if (!one_of(stay, random)) continue;
      if (one_of(2, random)) std::shuffle(list, list + spec.top_k(), random);
      if (one_of(2, random)) std::copy_n(drawn.begin() + first, spec.top_k(), list);
    }
  }
  return table;
}

}  // namespace moetape::inline v0
