#include <algorithm>
#include <cmath>
#include <vector>

#include "moetape/stats.h"

namespace moetape::inline v0 {

std::optional<Balance> balance_of(std::span<const int64_t> load) {
  const auto num_experts = static_cast<double>(load.size());
  double total = 0;
  for (const int64_t times : load) total += static_cast<double>(times);
  if (total == 0) return std::nullopt;
  const double mean = total / num_experts;

  std::vector<int64_t> sorted(load.begin(), load.end());
  std::ranges::sort(sorted);
  double squares = 0;
  double entropy = 0;
  double ranked = 0;
  double rank = 0;
  for (const int64_t times : sorted) {
    const auto value = static_cast<double>(times);
    squares += (value - mean) * (value - mean);
    if (times > 0) entropy -= value / total * std::log(value / total);
    ranked += ++rank * value;
  }
  return Balance{
      .max_over_mean = static_cast<double>(sorted.back()) / mean,
      .variation = std::sqrt(squares / num_experts) / mean,
      .entropy = load.size() == 1 ? 1 : entropy / std::log(num_experts),
      .gini = 2 * ranked / (num_experts * total) - (num_experts + 1) / num_experts,
      .num_unused = static_cast<int32_t>(std::ranges::count(sorted, 0)),
  };
}

}  // namespace moetape::inline v0
