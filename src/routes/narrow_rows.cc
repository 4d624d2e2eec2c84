#include "routes/narrow_rows.h"

#include <algorithm>

#include "simd/narrow.h"

namespace moetape::inline v0 {

std::optional<BadId> narrow_rows(const RouteSpec& spec, const void* ids, IntType type, int64_t num_rows,
                                 std::byte* out, uint8_t* faults) {
  const int64_t layers = spec.num_moe_layers();
  std::fill_n(faults, num_rows * layers, uint8_t{0});
  simd::NarrowJob job;
  job.ids = {.data = ids,
             .type = type,
             .num_rows = num_rows * layers,
             .num_columns = spec.top_k(),
             .row_stride = spec.top_k()};
  job.top_k = spec.top_k();
  job.num_experts = spec.num_experts();
  job.distinct = spec.distinct();
  job.out = out;
  job.out_stride = int64_t{spec.top_k()} * spec.id_bytes();
  job.faults = faults;
  const std::optional<simd::NarrowFault> fault = simd::narrow(job);
  if (!fault) return std::nullopt;
  return BadId{.row = fault->row / layers,
               .layer = spec.layers()[static_cast<size_t>(fault->row % layers)],
               .value = fault->value,
               .repeated = fault->fault == simd::kFaultRepeated};
}

}  // namespace moetape::inline v0
