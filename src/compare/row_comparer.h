// Compares blocks of dense rows router by router. For one call of add, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moetape/compare.h"

namespace moetape::inline v0 {

struct RowDifference {
  int32_t num_unequal_routers = 0;
  int32_t num_rerouted_routers = 0;
  int64_t num_shared_ids = 0;
};

class RowComparer {
 public:
  explicit RowComparer(const RouteSpec& spec);

  int64_t block_rows() const { return block_rows_; }

  // Rows [0, count) at a and b, which may overlap; at most block_rows().
  void compare(const std::byte* a, const std::byte* b, int64_t count);
  // What the last call found at its row.
  const RowDifference& difference(int64_t row) const { return differences_[static_cast<size_t>(row)]; }

  Agreement of_row(const RowDifference& difference) const;
  // Adds all rows compared.
  void add_to(std::vector<Agreement>& by_layer) const;

 private:
  void sum_row(int64_t row);

  int64_t num_layers_;
  int64_t top_k_;
  int32_t id_bytes_;
  int64_t block_rows_;
  int64_t num_rows_ = 0;          // compared
  int64_t num_equal_rows_ = 0;    // of these, in blocks that were equal as a whole
  std::vector<uint32_t> shared_;  // of the block: [rows, layers]
  std::vector<uint32_t> unequal_;
  std::vector<RowDifference> differences_;  // of the block
  std::vector<int64_t> sums_unequal_;       // [layers], of all rows that were looked into
  std::vector<int64_t> sums_rerouted_;
  std::vector<int64_t> sums_shared_;
};

}  // namespace moetape::inline v0
