// What host and device tell each other about one step, and where a lane lies: plain values, the same on both
// sides. No CUDA header is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moetape/array.h"
#include "moetape/recorder.h"

namespace moetape::inline v0::cuda {

// What the lane holds where no id stands. Between begin and commit every id of it is poison, the type's
// minimum, until a router or a capture writes it.
inline constexpr int kPadding = -1;      // any id below 0, as capture hands it on
inline constexpr int kDidNotFit = -2;    // an id that the lane's type cannot hold
inline constexpr int kSharedWrong = -3;  // stands for an id: a shared column of the row holds a routed id

// Entries of a step that are no slots.
inline constexpr int64_t kNotOurs = -2;  // a row of another rank

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxWarpsPerBlock = 8;
inline constexpr int32_t kMaxTopK = 128;
inline constexpr int32_t kMaxLayers = 32'767;
inline constexpr int32_t kLayersPerWord =
    16;  // so many layers end at a 16-byte boundary of a row, whatever K

// A lane's measures; fixed for life.
struct Shape {
  int32_t num_layers;
  int32_t top_k;
  int32_t num_experts;
  int32_t id_bytes;          // in the store: 1 or 2
  int32_t lane_id_bytes;     // in the lane: 2 or 4
  int32_t layers_per_chunk;  // of a row that a warp works on at a time; a multiple of kLayersPerWord
  int32_t distinct;
  int64_t max_rows;

  constexpr int32_t scratch_bytes() const { return layers_per_chunk * top_k * lane_id_bytes; }  // of a warp
};

// Blocks and warps of one commit; the same for every step, since a graph bakes it in.
struct Geometry {
  int32_t num_blocks;
  int32_t warps_per_block;
};

enum class StepMode : uint32_t {
  kIdle,    // nothing was prepared: only poison is put back
  kCommit,  // rows go to their slots
  kRefuse,  // the slots named are refused
};

inline constexpr uint32_t kNoOffender = UINT32_MAX;

// Written by the device into pinned host memory when a step is done; `serial` last. The number of unwritten
// rows of every layer follows where any is.
struct StepReport {
  uint64_t serial;
  uint32_t num_refused;
  uint32_t num_no_slot;
  uint32_t num_out_of_range;
  uint32_t offender_row;   // kNoOffender: none
  int32_t offender_layer;  // its column; -1 = none
  int32_t offender_fault;
  int64_t offender_value;
  uint32_t num_by_fault[kNumRowFaults];
  uint32_t any_unwritten;
  uint32_t abandoned;  // the step was never launched, and its slots are refused
};

// In device memory, written by one copy when a step is prepared; idle again when it was done. `count` entries
// (int64) follow, unless the slots are the device's own and in order, and then, if has_versions, `count`
// versions (uint32).
struct alignas(16) StepHeader {
  StepMode mode;
  uint32_t version;
  uint64_t step;
  uint64_t serial;
  int64_t src;  // rows [src, src + count) of the batch may be this rank's
  int64_t count;
  int64_t extent;            // rows [0, extent) are put back to poison
  int64_t dst;               // token of row src, where there are no entries
  const void* device_slots;  // by token; null: the entries are slots, and kNotOurs
  StepReport* report;        // as the device sees it
  uint32_t wide_slots;       // int64
  uint32_t has_tokens;       // the entries are tokens, -1 = not ours
  uint32_t has_versions;
  uint32_t lands;  // `landed` becomes the step
};

// Counts of the step under way, in device memory; zero between steps.
struct Tally {
  uint32_t blocks_done;
  uint32_t num_refused;
  uint32_t num_no_slot;
  uint32_t num_out_of_range;
  uint32_t rows_left;  // UINT32_MAX - the first refused row
  uint32_t any_unwritten;
  uint32_t num_by_fault[kNumRowFaults];
};

// Why a row was refused; one a row, in device memory.
struct RowRecord {
  int32_t layer;
  int32_t fault;
  int64_t value;
};

// Where rows and stamps go: the store, mapped, or records in device memory that the host places later
// ({row, stamp, slot}, one a row of the step).
struct Target {
  std::byte* rows;
  int64_t row_pitch;  // in bytes
  std::byte* stamps;
  int64_t stamp_pitch;
};

struct CommitArgs {
  Shape shape;
  Geometry geometry;
  std::byte* lane;  // [layer][max_rows][top_k]
  StepHeader* header;
  Tally* tally;
  uint32_t* unwritten;  // by layer; rows
  RowRecord* records;   // by row
  Target target;
  uint64_t* landed;  // null where the host places
  int64_t num_slots;
  int64_t pad_slot;
  bool packs;          // the target is records
  bool abandons;       // refuses a step that was prepared and not launched; else it does nothing
  int64_t graph_rows;  // that captures of a graph wrote, whatever the step's layout says
};

// Ids of a router, [layers][rows][columns], in device memory, into rows [offset, …) of a lane.
struct CaptureArgs {
  Shape shape;
  std::byte* lane;
  IdsView ids;
  int64_t layer_stride;  // in elements
  int32_t first_layer;
  int32_t num_layers;
  int64_t offset;
  const int32_t* to_logical;  // null: the ids are logical
  int64_t map_size;

  constexpr int64_t num_elements() const { return int64_t{num_layers} * ids.num_rows * shape.top_k; }
};

// Rows [0, num_rows) of every layer become poison.
struct PoisonArgs {
  Shape shape;
  std::byte* lane;
  int64_t num_rows;

  constexpr int64_t num_elements() const { return int64_t{shape.num_layers} * num_rows * shape.top_k; }
};

}  // namespace moetape::inline v0::cuda
