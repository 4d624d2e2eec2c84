#include "moetape/wire.h"

#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "store.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kEncodeDoc =
    R"(The text that engines and trainers send: dialect "sglang", "vllm" or "lightllm".

routes: Routes, or Store.rows(...) for gathering and encoding in one pass. These dialects cannot say "missing":
missing rows raise MissingRowsError unless missing= names what stands for them, "zeros" (expert 0 in all columns) or
"distinct" (experts 0 to top_k - 1). Long calls release the GIL.)";

constexpr const char* kDecodeDoc =
    R"(Routes of what an engine sent: text (str or bytes), or an array [rows, layers, top_k].

start: position of the first row. rows: how many are expected (WrongShapeError if another number comes). version:
of the policy, if known. Strict: CorruptDataError names the place and what stood there; ids are checked as in
Routes.from_ids; a column of a dense layer must be zero. Long calls release the GIL.)";

struct EncodableArg : Arg {
  static constexpr auto kStubName = nb::detail::make_caster<Routes>::Name + nb::detail::const_name(" | ") +
                                    nb::detail::make_caster<RowsHandle>::Name;
};

struct EncodedArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("str | bytes | numpy.typing.ArrayLike");
};

MissingFill missing_from(OptionalStrArg missing) {
  const std::optional<std::string_view> name = missing.get("missing");
  if (!name) return MissingFill::kRefuse;
  if (*name == "zeros") return MissingFill::kZeros;
  if (*name == "distinct") return MissingFill::kDistinct;
  raise(ErrorCode::kInvalidArgument, "missing: expected zeros, distinct or None, got \"{}\"", *name);
}

// The text is written where the str will have it.
nb::str encode_source(RowSource& source, Dialect dialect, const EncodeOptions& options) {
  const size_t size = unwrap(encoded_size(source.spec(), source.num_rows(), dialect));
  nb::str text = nb::steal<nb::str>(PyUnicode_New(static_cast<Py_ssize_t>(size), 127));
  if (!text.is_valid()) {
    PyErr_Clear();
    raise(ErrorCode::kOutOfMemory, "encode: the system has no {} bytes for the text", size);
  }
  const std::span<char> out(reinterpret_cast<char*>(PyUnicode_1BYTE_DATA(text.ptr())), size);
  unwrap(long_call(static_cast<int64_t>(size), [&] { return encode_into(source, dialect, out, options); }));
  return text;
}

nb::str encode_any(EncodableArg routes, StrArg dialect_arg, OptionalStrArg missing) {
  const Dialect dialect = unwrap(dialect_from_name(dialect_arg.get("dialect")));
  const EncodeOptions options = {.missing = missing_from(missing)};
  if (const Routes* value = ObjectArg<Routes>{{routes.object}}.get_if()) {
    RoutesSource source(*value);
    return encode_source(source, dialect, options);
  }
  if (RowsHandle* rows = ObjectArg<RowsHandle>{{routes.object}}.get_if()) {
    const Busy busy(&rows->busy, "routes");
    return encode_source(*rows->source, dialect, options);
  }
  raise_wrong_type("routes", "Routes or RowSource", routes.object);
}

Routes decode_array_object(nb::handle object, Dialect dialect, const RouteSpec& spec,
                           const DecodeOptions& options) {
  const nb::object ordered = in_c_order(object, "data");
  const Array array(ordered, "data");
  array.require_dims(3, "text, or an array [rows, layers, top_k]");
  const int64_t shape[] = {array.shape(0), array.shape(1), array.shape(2)};
  return unwrap(long_call(array.size_bytes(), [&] {
    return decode_array(array.data(), array.type(), shape, dialect, spec, options);
  }));
}

Routes decode_any(EncodedArg data, StrArg dialect_arg, ObjectArg<RouteSpec> spec_arg, IntArg start,
                  OptionalIntArg rows, OptionalIntArg version) {
  const Dialect dialect = unwrap(dialect_from_name(dialect_arg.get("dialect")));
  const RouteSpec& spec = spec_arg.get("spec");
  DecodeOptions options;
  options.start = start.get("start");
  options.num_rows = rows.get("rows");
  if (!version.object.is_none()) {
    options.version = static_cast<uint32_t>(IntArg{{version.object}}.get("version", 0, kMaxVersion));
  }
  std::string_view text;
  std::optional<Array> bytes;
  PyObject* object = data.object.ptr();
  if (PyUnicode_Check(object)) {
    text = StrArg{{data.object}}.get("data");
  } else if (PyBytes_Check(object) || PyByteArray_Check(object)) {
    const Array& array = bytes.emplace(data.object, "data");
    text = {static_cast<const char*>(array.data()), static_cast<size_t>(array.size())};
  } else {
    return decode_array_object(data.object, dialect, spec, options);
  }
  const auto size = static_cast<int64_t>(text.size());
  return unwrap(long_call(size, [&] { return decode(text, dialect, spec, options); }));
}

}  // namespace

void bind_wire(nb::module_& m) {
  m.def("encode", &encode_any, "routes"_a, "dialect"_a, "missing"_a = nb::none(), kEncodeDoc);
  m.def("decode", &decode_any, "data"_a, "dialect"_a, nb::kw_only(), "spec"_a, "start"_a = 0,
        "rows"_a = nb::none(), "version"_a = nb::none(), kDecodeDoc);
}

}  // namespace moetape::bindings
