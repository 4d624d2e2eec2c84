#include "wire_args.h"

namespace moetape::bindings {

bool Text::is_text(nb::handle object) {
  return PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) || PyByteArray_Check(object.ptr());
}

Text::Text(nb::handle object, const char* name) {
  if (!is_text(object)) raise_wrong_type(name, "str, bytes or bytearray", object);
  if (PyUnicode_Check(object.ptr())) {
    view_ = StrArg{{object}}.get(name);
    return;
  }
  const Array& array = bytes_.emplace(object, name);
  view_ = {static_cast<const char*>(array.data()), static_cast<size_t>(array.size())};
}

DecodeOptions DecodeArgs::options() const {
  DecodeOptions options;
  options.start = start.get("start");
  options.num_rows = rows.get("rows");
  if (!version.object.is_none()) {
    options.version = static_cast<uint32_t>(IntArg{{version.object}}.get("version", 0, kMaxVersion));
  }
  options.type = optional_type(dtype);
  options.known_from = known_from.get("known_from");
  options.surplus_rows = surplus_rows.get("surplus_rows");
  return options;
}

std::optional<IntType> optional_type(AnyArg dtype) {
  if (dtype.object.is_none()) return std::nullopt;
  return int_type_from(dtype.object, "dtype");
}

}  // namespace moetape::bindings
