// A layer's buffer as Python has it.
#pragma once

#include <nanobind/nanobind.h>

#include "moetape/recorder.h"

namespace moetape::bindings {

namespace nb = nanobind;

struct BufferHandle {
  LayerBuffer buffer;
  nb::object recorder;  // whose memory it is
};

}  // namespace moetape::bindings
