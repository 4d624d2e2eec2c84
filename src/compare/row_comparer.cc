#include "compare/row_comparer.h"

#include <algorithm>
#include <cstring>

#include "simd/lists.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kBlockBytes = 32'768;  // of rows, so that a block stays in the cache

}  // namespace

RowComparer::RowComparer(const RouteSpec& spec)
    : num_layers_(spec.num_moe_layers()),
      top_k_(spec.top_k()),
      id_bytes_(spec.id_bytes()),
      block_rows_(std::clamp<int64_t>(kBlockBytes / spec.row_bytes(), 1, 256)),
      shared_(static_cast<size_t>(block_rows_ * num_layers_)),
      unequal_(shared_.size()),
      differences_(static_cast<size_t>(block_rows_)),
      sums_unequal_(static_cast<size_t>(num_layers_)),
      sums_rerouted_(sums_unequal_.size()),
      sums_shared_(sums_unequal_.size()) {}

void RowComparer::compare(const std::byte* a, const std::byte* b, int64_t count) {
  const int64_t row_ids = num_layers_ * top_k_;
  num_rows_ += count;
  if (std::memcmp(a, b, static_cast<size_t>(count * row_ids * id_bytes_)) == 0) {
    num_equal_rows_ += count;
    std::fill_n(differences_.begin(), count, RowDifference{.num_shared_ids = row_ids});
    return;
  }
  simd::compare_lists({.a = a,
                       .b = b,
                       .id_bytes = id_bytes_,
                       .top_k = static_cast<int>(top_k_),
                       .num_lists = count * num_layers_,
                       .shared = shared_.data(),
                       .unequal = unequal_.data()});
  for (int64_t row = 0; row < count; ++row) sum_row(row);
}

void RowComparer::sum_row(int64_t row) {
  const auto top_k = static_cast<uint32_t>(top_k_);
  const uint32_t* shared = shared_.data() + row * num_layers_;
  const uint32_t* unequal = unequal_.data() + row * num_layers_;
  uint32_t num_unequal = 0;
  uint32_t num_rerouted = 0;
  uint64_t num_shared = 0;
  for (size_t layer = 0; layer < static_cast<size_t>(num_layers_); ++layer) {
    const uint32_t rerouted = shared[layer] != top_k ? 1 : 0;
    sums_unequal_[layer] += unequal[layer];
    sums_rerouted_[layer] += rerouted;
    sums_shared_[layer] += shared[layer];
    num_unequal += unequal[layer];
    num_rerouted += rerouted;
    num_shared += shared[layer];
  }
  differences_[static_cast<size_t>(row)] = {.num_unequal_routers = static_cast<int32_t>(num_unequal),
                                            .num_rerouted_routers = static_cast<int32_t>(num_rerouted),
                                            .num_shared_ids = static_cast<int64_t>(num_shared)};
}

Agreement RowComparer::of_row(const RowDifference& difference) const {
  return {.num_rows = 1,
          .num_unequal_rows = difference.num_unequal_routers > 0 ? 1 : 0,
          .num_rerouted_rows = difference.num_rerouted_routers > 0 ? 1 : 0,
          .num_routers = num_layers_,
          .num_unequal_routers = difference.num_unequal_routers,
          .num_rerouted_routers = difference.num_rerouted_routers,
          .num_ids = num_layers_ * top_k_,
          .num_shared_ids = difference.num_shared_ids};
}

void RowComparer::add_to(std::vector<Agreement>& by_layer) const {
  for (size_t layer = 0; layer < by_layer.size(); ++layer) {
    by_layer[layer] += {.num_rows = num_rows_,
                        .num_unequal_rows = sums_unequal_[layer],
                        .num_rerouted_rows = sums_rerouted_[layer],
                        .num_routers = num_rows_,
                        .num_unequal_routers = sums_unequal_[layer],
                        .num_rerouted_routers = sums_rerouted_[layer],
                        .num_ids = num_rows_ * top_k_,
                        .num_shared_ids = num_equal_rows_ * top_k_ + sums_shared_[layer]};
  }
}

}  // namespace moetape::inline v0
