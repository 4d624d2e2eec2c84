// Pipeline stages: which layers' routes a rank needs, by global layer number. Free functions, any thread.
//
// A model is cut into size · virtual_size chunks of consecutive layers; chunk v·size + r, in the model's
// order, is virtual stage v of rank r. So the layers of a rank that has several are not consecutive.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moetape/error.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

struct PipelineSplit {
  int32_t size = 1;
  int32_t virtual_size = 1;
  // Layers of the first and last rank, all its chunks together, where they differ from the rest.
  std::optional<int32_t> first = {};
  std::optional<int32_t> last = {};
  // The embedding and the loss count as a layer of the first and last chunk. Not beside first and last.
  bool embedding = false;
  bool loss = false;
};

// Layers of every chunk, in the model's order, as Megatron-core cuts. kInvalidArgument where it does not come
// out even.
Result<std::vector<int32_t>> pipeline_chunks(int32_t num_layers, const PipelineSplit& split);

// The spec's layers that rank `rank` of `size` holds, in all its chunks or in one virtual stage, ascending:
// for Plan::from_row_ids. May be none. `chunks`: layers of every chunk, from pipeline_chunks() or from a
// layout of one's own. kInvalidArgument for chunks that are no multiple of size, or have fewer layers than
// the spec asks for; kOutOfRange for a rank or virtual stage that does not exist.
Result<std::vector<int32_t>> pipeline_layers(const RouteSpec& spec, std::span<const int32_t> chunks,
                                             int32_t size, int32_t rank,
                                             std::optional<int32_t> virtual_stage = {});

}  // namespace moetape::inline v0
