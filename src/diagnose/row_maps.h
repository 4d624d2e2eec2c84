// RowMaps: the orders in which trainers are known to lay out rows by mistake.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diagnose/records.h"

namespace moetape::inline v0 {

// from[i] is the index of the row of a that row i of b holds; -1 = none.
struct RowMap {
  CauseKind kind = CauseKind::kRowsShifted;
  int64_t size = 0;
  std::string text = {};
  std::vector<int64_t> from = {};
};

// Transposed micro-batches, and parts of context parallelism: the likelier ones first.
void visit_row_maps(const Records& records, const std::function<void(RowMap)>& visit);

RowMap shift_map(const Records& records, int64_t shift);

}  // namespace moetape::inline v0
