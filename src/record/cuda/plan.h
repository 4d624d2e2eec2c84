// LanePlan: where everything of one lane lies, in device memory and in pinned host memory. A value.
#pragma once

#include <cstdint>

#include "record/cuda/step.h"

namespace moetape::inline v0::cuda {

struct LanePlan {
  // kUnsupported for a spec that no device lane holds, kInvalidArgument for max_rows.
  static Result<LanePlan> make(const RouteSpec& spec, int64_t max_rows, CommitPath path);

  // Blocks and warps of a commit on a device of so many multiprocessors.
  Geometry geometry(int num_multiprocessors) const;

  Shape shape;
  bool packs;

  // Offsets in the lane's device memory, and its size.
  int64_t header_at;  // the ids are at 0
  int64_t tally_at;   // with the unwritten rows by layer behind
  int64_t records_at;
  int64_t packed_at;
  int64_t device_bytes;
  int64_t zeroed_bytes() const { return records_at - header_at; }

  // Of one step in pinned memory: the header and what follows, its report, its packed rows.
  int64_t report_at;
  int64_t host_packed_at;
  int64_t step_bytes;
  int64_t host_bytes() const { return step_bytes * kStepsInFlight; }

  // One packed row: its bytes, its stamp and its slot.
  int64_t packed_stride;
};

}  // namespace moetape::inline v0::cuda
