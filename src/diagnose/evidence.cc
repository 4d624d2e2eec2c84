#include "diagnose/evidence.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace moetape::inline v0 {
namespace {

constexpr int kNumTrials = 4096;
constexpr double kLeastBits = 20;
constexpr int64_t kFewestRows = 4;

}  // namespace

double chance_of(const Records& records, std::span<const int64_t> rows, const ColumnPairs& columns) {
  std::minstd_rand random(1);
  const auto pick = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  int num_hits = 0;
  for (int trial = 0; trial < kNumTrials; ++trial) {
    const int64_t row = rows[static_cast<size_t>(pick(std::ssize(rows)))];
    const int64_t other = pick(records.num_rows);
    if (row != other && holds(records, row, other, columns)) ++num_hits;
  }
  return (num_hits + 1.0) / (kNumTrials + 2.0);
}

bool is_evidence(int64_t num_explained, int64_t num_rows, double chance, double log2_tries) {
  if (num_explained < kFewestRows || num_explained * 4 < num_rows) return false;
  const double share = static_cast<double>(num_explained) / static_cast<double>(num_rows);
  if (share <= chance) return false;
  // Chernoff: a share of n rows, each by chance, has a probability of at most 2^(-n * divergence).
  double divergence = share * std::log2(share / chance);
  if (share < 1) divergence += (1 - share) * std::log2((1 - share) / (1 - chance));
  return static_cast<double>(num_rows) * divergence - log2_tries >= kLeastBits;
}

}  // namespace moetape::inline v0
