// Adds one pair of records to a comparison; used once.
#pragma once

#include <cstdint>
#include <vector>

#include "compare/row_comparer.h"
#include "moetape/compare.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

class PairAdder {
 public:
  // Records of the comparison's fingerprint, with equal tokens where both have some.
  PairAdder(Comparison& to, const Routes& a, const Routes& b, int64_t sequence);

  void add();

 private:
  int64_t end_of_run(int64_t position) const;
  void add_run(int64_t first, int64_t end);
  void note_row(int64_t position, const RowDifference& difference, const Agreement& agreement);
  void count_only_in_b(int64_t first, int64_t end);
  void count_missing(Reason in_a, Reason in_b);

  Comparison& to_;
  const Routes& a_;
  const Routes& b_;
  const Routes* tokens_;  // whichever has them, or null
  int64_t sequence_;
  std::vector<uint32_t> a_versions_;
  std::vector<uint32_t> b_versions_;
  RowComparer comparer_;
};

// Puts a row among the rerouted rows of a comparison, if it is one of the most rerouted ones.
void keep_rerouted(Comparison& in, const ReroutedRow& row);

}  // namespace moetape::inline v0
