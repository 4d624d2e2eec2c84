#include "wire/columns.h"

namespace moetape::inline v0::wire {

Columns make_columns(const RouteSpec& spec, bool all_layers) {
  const int64_t top_k = spec.top_k();
  Columns columns;
  columns.recorded = spec.num_moe_layers() * top_k;
  if (!all_layers) {
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
