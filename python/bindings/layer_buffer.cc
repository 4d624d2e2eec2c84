#include "layer_buffer.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>

#include "args.h"
#include "module.h"

namespace moetape::bindings {
namespace {

nb::object exported(const BufferHandle& self) {
  const std::array<size_t, 2> shape = {static_cast<size_t>(self.buffer.num_rows),
                                       static_cast<size_t>(self.buffer.num_columns)};
  const nb::dlpack::dtype dtype =
      self.buffer.type == IntType::kInt16 ? nb::dtype<int16_t>() : nb::dtype<int32_t>();
  return nb::cast(nb::ndarray<>(self.buffer.data, shape.size(), shape.data(), self.recorder, nullptr, dtype,
                                nb::device::cuda::value, self.buffer.device));
}

nb::dict array_interface(const BufferHandle& self) {
  nb::dict result;
  result["shape"] = nb::make_tuple(self.buffer.num_rows, self.buffer.num_columns);
  result["typestr"] = self.buffer.type == IntType::kInt16 ? "<i2" : "<i4";
  result["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(self.buffer.data), false);
  result["version"] = 3;
  result["strides"] = nb::none();
  return result;
}

}  // namespace

void bind_layer_buffer(nb::module_& m) {
  nb::class_<BufferHandle>(
      m, "LayerBuffer",
      "One layer's rows of a lane in device memory, [max_rows, top_k], int16 or int32. At a fixed\n"
      "address; keeps the recorder alive. torch.from_dlpack(buffer) is a tensor of it.")
      .def_prop_ro("data_ptr",
                   [](const BufferHandle& self) { return reinterpret_cast<uintptr_t>(self.buffer.data); })
      .def_prop_ro(
          "shape",
          [](const BufferHandle& self) {
            return nb::make_tuple(self.buffer.num_rows, self.buffer.num_columns);
          },
          nb::sig("def shape(self) -> tuple[int, int]"))
      .def_prop_ro("dtype",
                   [](const BufferHandle& self) { return std::string(int_type_name(self.buffer.type)); })
      .def_prop_ro("device",
                   [](const BufferHandle& self) { return fmt::format("cuda:{}", self.buffer.device); })
      .def_prop_ro("__cuda_array_interface__", &array_interface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"))
      .def(
          "__dlpack__",
          [](const BufferHandle& self, const nb::args& args, const nb::kwargs& kwargs) {
            return exported(self).attr("__dlpack__")(*args, **kwargs);
          },
          nb::sig("def __dlpack__(self, *args: object, **kwargs: object) -> object"))
      .def(
          "__dlpack_device__", [](const BufferHandle& self) { return nb::make_tuple(2, self.buffer.device); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace moetape::bindings
