// LayerMaps: which layer of a each layer of b holds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "diagnose/records.h"

namespace moetape::inline v0 {

// Layers of one number.
ColumnMap same_layers(const Records& records);

struct LayerMap {
  ColumnMap from = {};
  bool is_shift = false;
  std::optional<int64_t> shift = {};  // of layer numbers; none for a shift by place among the MoE layers
  std::string text = {};
  double log2_tries = 0;  // how many maps were open
};

// Maps that make the columns of b (given by `wanted`) agree with other ones of a than those of the same
// number; the simplest first. Rows are compared as they stand, and as bags of lists in any order.
std::vector<LayerMap> likely_layer_maps(const Records& records, std::span<const int64_t> rows,
                                        const std::vector<bool>& wanted);

// Columns of b in which nearly all rows hold the same list, while a's layer of that number, if any, varies.
std::vector<int32_t> constant_columns(const Records& records);

}  // namespace moetape::inline v0
