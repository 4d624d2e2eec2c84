// CaptureLog: which rows of which layer came in a step, and what was structurally wrong. The same for lanes
// on the CPU and on a device. One thread at a time. Steady state allocates nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moetape/array.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

// Rows [begin, end) of a batch.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
};

class CaptureLog {
 public:
  CaptureLog(const RouteSpec& spec, int64_t max_rows);

  // Forgets everything.
  void clear();
  bool touched() const { return touched_; }

  // The column of a layer whose rows [offset, offset + ids.num_rows) come now. What is wrong is returned,
  // and, unless the layer is not in the spec, remembered.
  Result<int32_t> add(int32_t layer, const IdsView& ids, int64_t offset);
  // Remembers a fault that the caller found in this step; the first one counts.
  void fail_step(const Error& error);

  // The rows of the batch, if every layer has rows [0, n) with one n. Layers of which `elsewhere`, by column,
  // is not 0 may be absent. 0 rows where nothing came.
  Result<int64_t> finish(const std::vector<uint8_t>* elsewhere = nullptr) const;
  bool captured(int32_t column) const { return captured_[static_cast<size_t>(column)] != 0; }

 private:
  Status check(int32_t layer, const IdsView& ids, int64_t offset) const;
  Status add_extent(int32_t layer, int32_t column, Extent extent);
  template <class Wrong>
  std::vector<int32_t> layers_where(Wrong wrong) const;  // of the columns that are

  RouteSpec spec_;
  int64_t max_rows_;
  std::vector<std::vector<Extent>> extents_;  // by column, disjoint, ascending, joined where they touch
  std::vector<uint8_t> captured_;             // by column; a capture of no rows counts
  std::optional<Error> fault_;
  bool touched_ = false;
};

}  // namespace moetape::inline v0
