#include "device_args.h"

#include <charconv>
#include <string>
#include <string_view>

namespace moetape::bindings {

std::optional<CudaOptions> cuda_options(nb::handle device, StrArg path_arg) {
  const std::string text = nb::str(device).c_str();
  const std::string_view path = path_arg.get("commit_path");
  if (path != "mapped" && path != "packed")
    raise(ErrorCode::kInvalidArgument, "commit_path: expected mapped or packed, got \"{}\"", path);
  if (text == "cpu") return std::nullopt;
  CudaOptions cuda;
  cuda.path = path == "mapped" ? CommitPath::kMapped : CommitPath::kPacked;
  const char* end = text.data() + text.size();
  const bool named = text.starts_with("cuda:");
  const auto parsed =
      named ? std::from_chars(text.data() + 5, end, cuda.device) : std::from_chars_result{end, {}};
  if ((named || text == "cuda") && parsed.ptr == end && parsed.ec == std::errc() && cuda.device >= 0)
    return cuda;
  raise(ErrorCode::kInvalidArgument, "device: expected cpu or cuda:N, got \"{}\"", text);
}

StreamHandle StreamArg::get() const {
  if (object.is_none()) return nullptr;
  nb::object handle = nb::borrow(object);
  if (nb::hasattr(object, "cuda_stream")) handle = object.attr("cuda_stream");
  // The word of an address may stand above what a signed one holds.
  if (!PyLong_Check(handle.ptr()) || PyBool_Check(handle.ptr()))
    raise_wrong_type("stream", "an int, an object with cuda_stream, or None", object);
  const unsigned long long address = PyLong_AsUnsignedLongLong(handle.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(ErrorCode::kOutOfRange, "stream: expected an address, got {}", nb::str(handle).c_str());
  }
  return reinterpret_cast<StreamHandle>(address);
}

}  // namespace moetape::bindings
