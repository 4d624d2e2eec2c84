// How the layers of a spec stand in a row of a wire form. All counts are ids.
#pragma once

#include <cstdint>
#include <vector>

#include "moetape/spec.h"
#include "moetape/wire.h"

namespace moetape::inline v0::wire {

// Neighbouring MoE layers: `count` ids, at `recorded` in a recorded row and at `sent` in a row of the form.
struct ColumnRun {
  int64_t recorded = 0;
  int64_t sent = 0;
  int64_t count = 0;
};

// Layers without a record: zeros in a row of the form.
struct ColumnGap {
  int64_t sent = 0;
  int64_t count = 0;
};

struct Columns {
  int64_t recorded = 0;  // ids of a recorded row
  int64_t sent = 0;      // ids of a row of the form
  int64_t skipped = 0;   // ids of the form in front of them
  std::vector<ColumnRun> runs;
  std::vector<ColumnGap> gaps;

  // Rows of both kinds are the same ids, so that a block of them is one run.
  bool same() const { return gaps.empty(); }
};

// Layers of a row of the form.
int32_t num_layers(const RouteSpec& spec, LayerAxis axis);

Columns make_columns(const RouteSpec& spec, LayerAxis axis);

// The recorded ids [first, end) alone, in a row of the form that begins with the first and ends with the
// last.
Columns part_of(const Columns& columns, int64_t first, int64_t end);

}  // namespace moetape::inline v0::wire
