#include "wire/columns.h"

#include <algorithm>

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

Columns part_of(const Columns& columns, int64_t first, int64_t end) {
  Columns part;
  for (const ColumnRun& run : columns.runs) {
    const int64_t begin = std::max(first, run.recorded);
    const int64_t count = std::min(end, run.recorded + run.count) - begin;
    if (count <= 0) continue;
    const int64_t sent = run.sent + begin - run.recorded;
    if (part.runs.empty()) part.skipped = sent;
    const int64_t behind = sent - part.skipped;
    if (behind > part.sent) part.gaps.push_back({part.sent, behind - part.sent});
    part.runs.push_back({part.recorded, behind, count});
    part.recorded += count;
    part.sent = behind + count;
  }
  return part;
}

}  // namespace moetape::inline v0::wire
