// A recorder on a simulated device, for this folder's tests.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "record/cuda/cuda_recorder.h"
#include "record/cuda/simulated_device.h"
#include "record/record_test_util.h"

namespace moetape::inline v0::cuda {

inline Result<std::unique_ptr<Recorder>> make_simulated(const std::shared_ptr<Store>& store,
                                                        RecorderOptions options,
                                                        const std::shared_ptr<SimulatedDevice>& device) {
  if (!options.cuda) options.cuda.emplace();
  MOETAPE_ASSIGN(auto impl, make_recorder(store, options, device));
  return Recorder::Impl::wrap(std::move(impl));
}

// int64 ids in the device's memory.
inline IdsView on_device(SimulatedDevice& device, const Ids& ids, int32_t top_k) {
  const int64_t columns = ids.empty() ? top_k : static_cast<int64_t>(ids[0].size());
  std::vector<int64_t> flat;
  for (const auto& row : ids) flat.insert(flat.end(), row.begin(), row.end());
  return {device.upload(flat), IntType::kInt64, static_cast<int64_t>(ids.size()), columns, columns, 1};
}

// What a router does with a layer's buffer: int16 ids of rows [first, …).
inline Status write_buffer(SimulatedDevice& device, const LayerBuffer& buffer, const Ids& ids,
                           StreamHandle stream = nullptr, int64_t first = 0) {
  std::vector<int16_t> flat;
  for (const auto& row : ids) flat.insert(flat.end(), row.begin(), row.end());
  const auto bytes = static_cast<int64_t>(flat.size() * sizeof(int16_t));
  return device.copy(static_cast<int16_t*>(buffer.data) + first * buffer.num_columns, device.upload(flat),
                     bytes, stream);
}

}  // namespace moetape::inline v0::cuda
