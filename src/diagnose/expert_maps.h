// ExpertMaps: the numbers that b gives to the experts of a, layer by layer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "diagnose/records.h"

namespace moetape::inline v0 {

// By column of b: a's expert for each expert of b, -1 where it was not seen.
using ExpertMaps = std::map<int32_t, std::vector<int32_t>>;

// Learnt from rows that stand at one index in both: an expert of b is the one of a that is there most often
// when it is. Columns whose experts all keep their numbers are left out. Nothing for more than 2^24 pairs of
// experts.
std::optional<ExpertMaps> learn_experts(const Records& records, std::span<const int64_t> rows,
                                        const ColumnPairs& columns);

// Numbers the lists of b in these rows as if it had a's experts.
void apply_experts(const ExpertMaps& maps, std::span<const int64_t> rows, Records& records);

}  // namespace moetape::inline v0
