// The recorder whose lanes are on a device.
#pragma once

#include <memory>

#include "record/cuda/device.h"
#include "record/recorder_impl.h"

namespace moetape::inline v0::cuda {

// Of one lane, in pinned host memory; and of all lanes, on the device. kUnsupported for a spec that no device
// lane holds, kInvalidArgument for max_rows.
Result<int64_t> host_bytes(const RouteSpec& spec, const RecorderOptions& options);
Result<int64_t> device_bytes(const RouteSpec& spec, const RecorderOptions& options);

// Options whose common part was checked.
Result<std::unique_ptr<Recorder::Impl>> make_recorder(std::shared_ptr<Store> store,
                                                      const RecorderOptions& options,
                                                      std::shared_ptr<Device> device);

}  // namespace moetape::inline v0::cuda
