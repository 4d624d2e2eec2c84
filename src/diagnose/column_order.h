// ColumnOrder: whether the ids of rows that agree stand in another order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "diagnose/expert_maps.h"
#include "diagnose/records.h"
#include "moetape/diagnose.h"

namespace moetape::inline v0 {

// How rows of b are to be read.
struct Reading {
  ColumnPairs columns = {};
  ExpertMaps experts = {};
};

// Row i of b holds row j of a, if read so.
struct Match {
  int64_t i = 0;
  int64_t j = 0;
  const Reading* reading = nullptr;
};

// A cause where a quarter or more of the lists with equal sets have another order.
std::optional<Cause> find_column_order(const Records& records, std::span<const Match> matches);

}  // namespace moetape::inline v0
