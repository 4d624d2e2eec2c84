// What names a device and a stream of it in Python.
#pragma once

#include <optional>

#include "args.h"
#include "moetape/recorder.h"

namespace moetape::bindings {

// "cpu", "cuda", "cuda:1", or a torch.device.
struct DeviceArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("object");
};

// Nothing for the CPU.
std::optional<CudaOptions> cuda_options(nb::handle device, StrArg commit_path);

// An address, or what has one as cuda_stream (torch); None: the default stream.
struct StreamArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("object");
  StreamHandle get() const;
};

}  // namespace moetape::bindings
