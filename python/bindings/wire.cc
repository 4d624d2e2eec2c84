#include "moetape/wire.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <string>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "moetape/buffer.h"
#include "store.h"
#include "wire_args.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kEncodeSignature =
    "def encode(routes: Routes | RowSource, dialect: str, missing: str | None = None, *, dtype: object = "
    "None, "
    "layers: str | None = None, prompt_rows: int = 0) -> typing.Any";

constexpr const char* kEncodeDoc =
    R"(What engines and trainers send, in a dialect of moetape.wire.DIALECTS: str, bytes ("npy") or an array.

routes: Routes, or Store.rows(...) for gathering and encoding in one pass. Most dialects cannot say "missing":
missing rows raise MissingRowsError unless missing= names what stands for them, "zeros" (expert 0 in all columns) or
"distinct" (experts 0 to top_k - 1). dtype and layers ("all" or "moe") choose where a dialect has a choice;
prompt_rows: of "vllm-split", how many rows are the prompt's. Long calls release the GIL.)";

constexpr const char* kDecodeDoc =
    R"(Routes of what an engine sent: text or file (str or bytes), or an array [rows, layers, top_k].

start: position of the first row (None: as the form says, else 0). rows: how many are expected (WrongShapeError if
another number comes). version: of the policy, if known. dtype: of ids where the form does not say it. known_from: rows
at lower positions are not known to the sender; they come out missing, and what stands there is not looked at.
surplus_rows: last rows that belong to no token that was fed, left out. Strict: CorruptDataError names the place and
what stood there; ids are checked as in Routes.from_ids; a column of a dense layer must be zero. Long calls release
the GIL.)";

constexpr const char* kDecodeRowsDoc =
    R"(The rows of a str or bytes, decoded as they are pulled: by Plan.apply, encode or TapeWriter.append.

The arguments are those of decode. Nothing of the text's size is made, and what stands in rows that are not pulled is
not looked at; "vllm-split", "lightllm", "prime-rl", "skyrl", "megatron" and tapes are decoded at once.)";

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

// The text is written where the str will have it, which is cut where the form may take less than its bound.
nb::object encode_text(RowSource& source, Dialect dialect, const EncodeOptions& options, size_t size) {
  PyObject* text = PyUnicode_New(static_cast<Py_ssize_t>(size), 127);
  if (text == nullptr) {
    PyErr_Clear();
    raise(ErrorCode::kOutOfMemory, "encode: the system has no {} bytes for the text", size);
  }
  nb::object owner = nb::steal(text);
  const std::span<char> out(reinterpret_cast<char*>(PyUnicode_1BYTE_DATA(text)), size);
  const size_t written = unwrap(
      long_call(static_cast<int64_t>(size), [&] { return encode_into(source, dialect, out, options); }));
  if (written == size) return owner;
  return nb::steal(PyUnicode_Substring(text, 0, static_cast<Py_ssize_t>(written)));
}

nb::object encode_bytes(RowSource& source, Dialect dialect, const EncodeOptions& options, size_t size) {
  nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!bytes.is_valid()) {
    PyErr_Clear();
    raise(ErrorCode::kOutOfMemory, "encode: the system has no {} bytes for the file", size);
  }
  const std::span<char> out(PyBytes_AS_STRING(bytes.ptr()), size);
  unwrap(long_call(static_cast<int64_t>(size), [&] { return encode_into(source, dialect, out, options); }));
  return bytes;
}

nb::object encode_array(RowSource& source, Dialect dialect, const EncodeOptions& options, size_t size) {
  const ArrayForm form = unwrap(array_form(source.spec(), source.num_rows(), dialect, options));
  Buffer buffer = unwrap(Buffer::allocate(static_cast<int64_t>(size)));
  const std::span<char> out(reinterpret_cast<char*>(buffer.mutable_data()), size);
  unwrap(long_call(static_cast<int64_t>(size), [&] { return encode_into(source, dialect, out, options); }));
  return numpy_view(buffer.data(), form.type, {form.shape[0], form.shape[1], form.shape[2]}, buffer.owner(),
                    Access::kWritable);
}

// Of Routes, or of a RowSource.
template <class Rows>
nb::object encode_unsized(Rows& rows, Dialect dialect, const EncodeOptions& options) {
  const int64_t work = work_bytes(rows.num_rows(), rows.spec().row_bytes());
  const std::string form = unwrap(long_call(work, [&] { return encode(rows, dialect, options); }));
  if (dialect_info(dialect).kind == FormKind::kText) return nb::str(form.data(), form.size());
  return nb::bytes(form.data(), form.size());
}

nb::object encode_source(RowSource& source, Dialect dialect, const EncodeOptions& options) {
  if (!dialect_info(dialect).sized) return encode_unsized(source, dialect, options);
  const size_t size =
      unwrap(encoded_size(source.spec(), source.num_rows(), dialect, options, source.start()));
  switch (dialect_info(dialect).kind) {
    case FormKind::kText:
      return encode_text(source, dialect, options, size);
    case FormKind::kBytes:
      return encode_bytes(source, dialect, options, size);
    case FormKind::kArray:
      return encode_array(source, dialect, options, size);
  }
  raise(ErrorCode::kUnsupported, "encode: no form of this kind");
}

std::optional<LayerAxis> layers_from(OptionalStrArg layers) {
  const std::optional<std::string_view> name = layers.get("layers");
  if (!name) return std::nullopt;
  if (*name == "all") return LayerAxis::kAll;
  if (*name == "moe") return LayerAxis::kMoe;
  raise(ErrorCode::kInvalidArgument, "layers: expected all, moe or None, got \"{}\"", *name);
}

nb::object encode_any(EncodableArg routes, StrArg dialect_arg, OptionalStrArg missing, AnyArg dtype,
                      OptionalStrArg layers, IntArg prompt_rows) {
  const Dialect dialect = unwrap(dialect_from_name(dialect_arg.get("dialect")));
  const EncodeOptions options = {.missing = missing_from(missing),
                                 .type = optional_type(dtype),
                                 .layers = layers_from(layers),
                                 .prompt_rows = prompt_rows.get("prompt_rows")};
  if (const Routes* value = ObjectArg<Routes>{{routes.object}}.get_if()) {
    if (!dialect_info(dialect).sized) return encode_unsized(*value, dialect, options);
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

Routes decode_any(EncodedArg data, StrArg dialect_arg, ObjectArg<RouteSpec> spec_arg, OptionalIntArg start,
                  OptionalIntArg rows, OptionalIntArg version, AnyArg dtype, IntArg known_from,
                  IntArg surplus_rows) {
  const Dialect dialect = unwrap(dialect_from_name(dialect_arg.get("dialect")));
  const RouteSpec& spec = spec_arg.get("spec");
  const DecodeOptions options = DecodeArgs{start, rows, version, dtype, known_from, surplus_rows}.options();
  if (!Text::is_text(data.object)) return decode_array_object(data.object, dialect, spec, options);
  const Text text(data.object, "data");
  return unwrap(long_call(text.size(), [&] { return decode(text.view(), dialect, spec, options); }));
}

// A str or bytes stays as it is; the caller keeps it alive.
std::unique_ptr<RowsHandle> decode_lazily(TextArg data, StrArg dialect_arg, ObjectArg<RouteSpec> spec_arg,
                                          OptionalIntArg start, OptionalIntArg rows, AnyArg dtype,
                                          IntArg known_from, IntArg surplus_rows) {
  const Dialect dialect = unwrap(dialect_from_name(dialect_arg.get("dialect")));
  const DecodeOptions options =
      DecodeArgs{start, rows, {{nb::none()}}, dtype, known_from, surplus_rows}.options();
  if (PyByteArray_Check(data.object.ptr())) raise_wrong_type("data", "str or bytes", data.object);
  const Text text(data.object, "data");
  const RouteSpec& spec = spec_arg.get("spec");
  auto handle = std::make_unique<RowsHandle>();
  handle->source =
      unwrap(long_call(text.size(), [&] { return decode_rows(text.view(), dialect, spec, options); }));
  return handle;
}

}  // namespace

void bind_wire(nb::module_& m) {
  nb::list names;
  for (int i = 0; i < kNumDialects; ++i) {
    const std::string_view name = dialect_name(static_cast<Dialect>(i));
    names.append(nb::str(name.data(), name.size()));
  }
  m.attr("DIALECTS") = nb::tuple(names);
  m.def("encode", &encode_any, "routes"_a, "dialect"_a, "missing"_a = nb::none(), nb::kw_only(),
        "dtype"_a = nb::none(), "layers"_a = nb::none(), "prompt_rows"_a = 0, nb::sig(kEncodeSignature),
        kEncodeDoc);
  m.def("decode", &decode_any, "data"_a, "dialect"_a, nb::kw_only(), "spec"_a, "start"_a = nb::none(),
        "rows"_a = nb::none(), "version"_a = nb::none(), "dtype"_a = nb::none(), "known_from"_a = 0,
        "surplus_rows"_a = 0, kDecodeDoc);
  m.def("decode_rows", &decode_lazily, "data"_a, "dialect"_a, nb::kw_only(), "spec"_a, "start"_a = nb::none(),
        "rows"_a = nb::none(), "dtype"_a = nb::none(), "known_from"_a = 0, "surplus_rows"_a = 0,
        nb::keep_alive<0, 1>(), kDecodeRowsDoc);
}

}  // namespace moetape::bindings
