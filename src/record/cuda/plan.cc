#include "record/cuda/plan.h"

#include <algorithm>

#include "base/fail.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int32_t kMaxScratchBytes = 4096;      // of a warp, unless 16 layers need more
constexpr int32_t kMaxSharedBytes = 48 * 1024;  // of a block, without asking
constexpr int32_t kBlocksPerMultiprocessor = 4;
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 2;
constexpr int32_t kMostExpertsInInt16 = 32'767;

constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr int32_t up_to_word(int32_t layers) {
  return (layers + kLayersPerWord - 1) / kLayersPerWord * kLayersPerWord;
}

}  // namespace

Result<LanePlan> LanePlan::make(const RouteSpec& spec, int64_t max_rows, CommitPath path) {
  if (max_rows < 1 || max_rows > kMaxRows) {
    return fail(ErrorCode::kInvalidArgument, "max_rows: expected 1 to {} on a device, got {}", kMaxRows,
                max_rows);
  }
  if (spec.top_k() > kMaxTopK || spec.num_moe_layers() > kMaxLayers) {
    return fail(ErrorCode::kUnsupported,
                "spec: expected at most {} ids a layer and {} layers on a device, got {} and {}", kMaxTopK,
                kMaxLayers, spec.top_k(), spec.num_moe_layers());
  }
  LanePlan plan = {};
  Shape& shape = plan.shape;
  shape.num_layers = spec.num_moe_layers();
  shape.top_k = spec.top_k();
  shape.num_experts = spec.num_experts();
  shape.id_bytes = spec.id_bytes();
  shape.lane_id_bytes = spec.num_experts() <= kMostExpertsInInt16 ? 2 : 4;
  shape.distinct = spec.distinct() ? 1 : 0;
  shape.max_rows = max_rows;
  const int32_t layer_bytes = shape.top_k * shape.lane_id_bytes;
  const int32_t fitting = kMaxScratchBytes / layer_bytes / kLayersPerWord * kLayersPerWord;
  shape.layers_per_chunk = std::min(std::max(fitting, kLayersPerWord), up_to_word(shape.num_layers));
  plan.packs = path == CommitPath::kPacked;
  plan.packed_stride = spec.row_stride() + 16;

  plan.header_at = aligned(shape.num_layers * max_rows * layer_bytes);
  plan.tally_at = plan.header_at + aligned(int64_t{sizeof(StepHeader)} + max_rows * 12);
  plan.records_at = plan.tally_at + aligned(int64_t{sizeof(Tally)} + shape.num_layers * int64_t{4});
  plan.packed_at = plan.records_at + aligned(max_rows * int64_t{sizeof(RowRecord)});
  plan.device_bytes = plan.packed_at + (plan.packs ? aligned(max_rows * plan.packed_stride) : 0);

  plan.report_at = aligned(int64_t{sizeof(StepHeader)} + max_rows * 12);
  plan.host_packed_at = plan.report_at + aligned(int64_t{sizeof(StepReport)} + shape.num_layers * int64_t{4});
  plan.step_bytes = plan.host_packed_at + (plan.packs ? aligned(max_rows * plan.packed_stride) : 0);
  return plan;
}

Geometry LanePlan::geometry(int num_multiprocessors) const {
  const int32_t warps = std::clamp(kMaxSharedBytes / shape.scratch_bytes(), 1, kMaxWarpsPerBlock);
  const int64_t blocks = (shape.max_rows + warps - 1) / warps;
  const int64_t most = int64_t{std::max(num_multiprocessors, 1)} * kBlocksPerMultiprocessor;
  return {static_cast<int32_t>(std::min(blocks, most)), warps};
}

}  // namespace moetape::inline v0::cuda
