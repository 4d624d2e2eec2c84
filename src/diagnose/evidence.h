// Evidence: whether as many rows could be explained by chance.
#pragma once

#include <cstdint>
#include <span>

#include "diagnose/records.h"

namespace moetape::inline v0 {

// The share of pairs of a row of b, among these, and any row of a in which one holds the other.
double chance_of(const Records& records, std::span<const int64_t> rows, const ColumnPairs& columns);

// At least a quarter and 4 of `num_rows`, and so many that 2^log2_tries tries with this chance a row would
// find as many less than once in 2^20.
bool is_evidence(int64_t num_explained, int64_t num_rows, double chance, double log2_tries);

}  // namespace moetape::inline v0
