// Random tables for RapidCheck: records of one token run that mostly agree.
#pragma once

#include <rapidcheck.h>

#include <vector>

#include "routes/routes_reference.h"

namespace moetape::inline v0::reference {

// One of two rows of distinct ids that position `position` may have.
inline std::vector<int> ids_at(const RouteSpec& spec, int64_t position, int variant) {
  std::vector<int> ids;
  for (int32_t layer = 0; layer < spec.num_moe_layers(); ++layer) {
    for (int32_t k = 0; k < spec.top_k(); ++k) {
      ids.push_back(static_cast<int>((position * 7 + variant * 5 + layer * 3 + k) % spec.num_experts()));
    }
  }
  return ids;
}

// One of [min, end), each as likely from the first test on: plain RapidCheck begins with the smallest.
inline int64_t pick(int64_t min, int64_t end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(min, end));
}

// True once in `n` times.
inline bool one_in(int n) { return pick(0, n) == n - 1; }

inline Row random_row(const RouteSpec& spec, int64_t position) {
  Row row;
  if (one_in(3)) {
    row.reason = static_cast<Reason>(pick(1, kNumReasons));
  } else {
    row.reason = Reason::kValid;
    row.ids = ids_at(spec, position, one_in(12) ? 1 : 0);
    const uint32_t version = static_cast<uint32_t>(position / 4 + (one_in(12) ? 1 : 0));
    if (!one_in(3)) row.version = version;
  }
  return row;
}

// Up to 9 rows from a position below 8.
inline rc::Gen<Table> random_table(const RouteSpec& spec) {
  return rc::gen::exec([spec] {
    Table table{.start = pick(0, 8)};
    const int64_t num_rows = pick(0, 10);
    const bool named = !one_in(3);
    for (int64_t position = table.start; position < table.start + num_rows; ++position) {
      Row row = random_row(spec, position);
      if (named) row.token = static_cast<int32_t>(position * 10 + (one_in(20) ? 1 : 0));
      table.rows.push_back(std::move(row));
    }
    return table;
  });
}

}  // namespace moetape::inline v0::reference
