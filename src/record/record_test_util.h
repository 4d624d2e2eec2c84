// Specs, ids and shorthands for this room's tests.
#pragma once

#include <string>
#include <vector>

#include "moetape/recorder.h"
#include "store/store_test_util.h"

namespace moetape::inline v0 {

// Layers 1 and 3 of a stack, 2 of 8 experts.
inline RouteSpecFields two_layers() {
  RouteSpecFields fields;
  fields.layers = {1, 3};
  fields.top_k = 2;
  fields.num_experts = 8;
  return fields;
}

using Ids = std::vector<std::vector<int64_t>>;  // [rows][columns]

// Captures Ids as int64.
inline Status capture(Recorder& recorder, int32_t layer, const Ids& ids, int lane = 0, int64_t offset = 0) {
  const int64_t columns = ids.empty() ? recorder.spec().top_k() : static_cast<int64_t>(ids[0].size());
  std::vector<int64_t> flat;
  for (const auto& row : ids) flat.insert(flat.end(), row.begin(), row.end());
  const IdsView view = {flat.data(), IntType::kInt64, static_cast<int64_t>(ids.size()), columns, columns, 1};
  return recorder.capture(layer, view, lane, offset);
}

// Valid rows as ids over all layers, missing ones as their reason.
inline std::vector<std::string> shown(const Store& store, const std::vector<int64_t>& slots) {
  const Routes routes = value_of(store.read(Slots(slots)));
  std::vector<std::string> rows;
  for (int64_t i = 0; i < routes.num_rows(); ++i) {
    const Reason reason = routes.reasons()[static_cast<size_t>(i)];
    if (reason != Reason::kValid) {
      rows.emplace_back(reason_name(reason));
      continue;
    }
    std::string text;
    const auto row = routes.row(i);
    const auto bytes = static_cast<size_t>(routes.spec().id_bytes());
    for (size_t b = 0; b < row.size(); b += bytes) {
      int id = static_cast<int>(row[b]);
      if (bytes == 2) id += static_cast<int>(row[b + 1]) << 8;
      if (!text.empty()) text.append(" ");
      text.append(std::to_string(id));
    }
    rows.push_back(text);
  }
  return rows;
}

}  // namespace moetape::inline v0
