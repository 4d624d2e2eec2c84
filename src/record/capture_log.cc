#include "record/capture_log.h"

#include <algorithm>

#include "base/fail.h"

namespace moetape::inline v0 {

CaptureLog::CaptureLog(const RouteSpec& spec, int64_t max_rows)
    : spec_(spec),
      max_rows_(max_rows),
      extents_(static_cast<size_t>(spec.num_moe_layers())),
      captured_(static_cast<size_t>(spec.num_moe_layers())) {
  for (auto& extents : extents_) extents.reserve(4);
}

void CaptureLog::clear() {
  for (auto& extents : extents_) extents.clear();
  std::fill(captured_.begin(), captured_.end(), uint8_t{0});
  fault_.reset();
  touched_ = false;
}

void CaptureLog::fail_step(const Error& error) {
  touched_ = true;
  if (!fault_) fault_ = error;
}

Result<int32_t> CaptureLog::add(int32_t layer, const IdsView& ids, int64_t offset) {
  MOETAPE_ASSIGN(const int32_t column, spec_.column_of(layer));
  touched_ = true;
  Status status = check(layer, ids, offset);
  if (status) status = add_extent(layer, column, {offset, offset + ids.num_rows});
  if (!status) {
    fail_step(status.error());
    return Failure(std::move(status).error());
  }
  return column;
}

Status CaptureLog::check(int32_t layer, const IdsView& ids, int64_t offset) const {
  const int64_t top_k = spec_.top_k();
  const int64_t all_columns = top_k + spec_.shared_columns();
  if (ids.num_columns != top_k && ids.num_columns != all_columns) {
    return spec_.shared_columns() == 0
               ? fail(ErrorCode::kWrongShape, "ids of layer {}: expected {} columns (top_k), got {}", layer,
                      top_k, ids.num_columns)
               : fail(ErrorCode::kWrongShape,
                      "ids of layer {}: expected {} columns (top_k) or {} (with shared columns), got {}",
                      layer, top_k, all_columns, ids.num_columns);
  }
  if (offset < 0) {
    return fail(ErrorCode::kOutOfRange, "offset of layer {}: expected 0 or more, got {}", layer, offset);
  }
  if (offset > max_rows_ || ids.num_rows > max_rows_ - offset) {
    return fail(ErrorCode::kCapacity, "layer {}: needs {} rows, the lane has {} (max_rows)", layer,
                static_cast<uint64_t>(offset) + static_cast<uint64_t>(ids.num_rows), max_rows_);
  }
  return {};
}

Status CaptureLog::add_extent(int32_t layer, int32_t column, Extent extent) {
  auto& extents = extents_[static_cast<size_t>(column)];
  captured_[static_cast<size_t>(column)] = 1;
  if (extent.begin == extent.end) return {};
  auto next = std::find_if(extents.begin(), extents.end(), [&](Extent e) { return e.end >= extent.begin; });
  const auto overlap = std::find_if(next, extents.end(), [&](Extent e) { return e.end > extent.begin; });
  if (overlap != extents.end() && overlap->begin < extent.end) {
    return fail(ErrorCode::kAlreadyCaptured,
                "layer {} rows [{}, {}) already captured in this step; got rows [{}, {})", layer,
                std::max(overlap->begin, extent.begin), std::min(overlap->end, extent.end), extent.begin,
                extent.end);
  }
  if (next != extents.end() && next->end == extent.begin) {
    next->end = extent.end;
    if (const auto behind = next + 1; behind != extents.end() && behind->begin == next->end) {
      next->end = behind->end;
      extents.erase(behind);
    }
  } else if (next != extents.end() && next->begin == extent.end) {
    next->begin = extent.begin;
  } else {
    extents.insert(next, extent);
  }
  return {};
}

template <class Wrong>
std::vector<int32_t> CaptureLog::layers_where(Wrong wrong) const {
  std::vector<int32_t> layers;
  for (size_t column = 0; column < extents_.size(); ++column) {
    if (wrong(column)) layers.push_back(spec_.layers()[column]);
  }
  return layers;
}

Result<int64_t> CaptureLog::finish(const std::vector<uint8_t>* elsewhere) const {
  if (fault_) return Failure(*fault_);
  const auto absent = [&](size_t column) {
    return elsewhere != nullptr && (*elsewhere)[column] != 0 && captured_[column] == 0;
  };
  const auto uncaptured =
      layers_where([&](size_t column) { return captured_[column] == 0 && !absent(column); });
  if (!uncaptured.empty()) {
    return fail(ErrorCode::kNotCaptured, "layers [{}]: expected ids in this step, got none",
                fmt::join(uncaptured, ", "));
  }
  int64_t rows = 0;
  for (const auto& extents : extents_) rows = std::max(rows, extents.empty() ? 0 : extents.back().end);
  const auto partial = layers_where([&](size_t column) {
    const auto& extents = extents_[column];
    if (absent(column)) return false;
    const bool whole = extents.size() == 1 && extents[0].begin == 0 && extents[0].end == rows;
    return !whole && !(rows == 0 && extents.empty());
  });
  if (!partial.empty()) {
    return fail(ErrorCode::kWrongShape, "layers [{}]: expected rows [0, {}) as other layers have, got fewer",
                fmt::join(partial, ", "), rows);
  }
  return rows;
}

}  // namespace moetape::inline v0
