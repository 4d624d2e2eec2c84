#include "wire/columns.h"

namespace moetape::inline v0::wire {

int32_t num_layers(const RouteSpec& spec, LayerAxis axis) {
  return axis == LayerAxis::kAll ? spec.num_layers() : spec.num_moe_layers();
}

Columns make_columns(const RouteSpec& spec, LayerAxis axis) {
  const int64_t top_k = spec.top_k();
  Columns columns;
  columns.recorded = spec.num_moe_layers() * top_k;
  if (axis == LayerAxis::kMoe) {
    columns.sent = columns.recorded;
    columns.runs.push_back({0, 0, columns.recorded});
    return columns;
  }
  columns.sent = spec.num_layers() * top_k;
  int64_t recorded = 0;
  int64_t end = 0;  // of the run before
  for (const int32_t layer : spec.layers()) {
    const int64_t sent = layer * top_k;
    if (sent == end && !columns.runs.empty()) {
      columns.runs.back().count += top_k;
    } else {
      if (sent > end) columns.gaps.push_back({end, sent - end});
      columns.runs.push_back({recorded, sent, top_k});
    }
    recorded += top_k;
    end = sent + top_k;
  }
  if (columns.sent > end) columns.gaps.push_back({end, columns.sent - end});
  return columns;
}

}  // namespace moetape::inline v0::wire
