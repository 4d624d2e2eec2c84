#include "moetape/replay.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "moetape/buffer.h"
#include "sequences.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(The rows that one rank's routers need, cut by the trainer's own slicing. A value; any thread.)";

constexpr const char* kFromRowIdsDoc = R"(The plan of the rows that a rank holds.

row_ids: int64, one-dimensional: (sequence + 1) << 32 | position, cut by the code that cuts the tokens; 0 and -1 are
padding. int32 is refused (WrongTypeError), since ids do not fit. layers: 0-based global indices in the order in which
apply gives them; default: all of the spec's. Raises InvalidArgumentError for an id that is neither, or stands twice.)";

constexpr const char* kApplyDoc = R"((ids, uses): ids [layers, rows, top_k] of `dtype`, uses uint8 [rows].

sources[s] holds sequence s. uses says for each row FILL (padding), REPLAYED or LIVE (no record: the router decides);
ids of the last and first kind are rotating distinct ones. dtype: int16, int32, int64, or an unsigned type that holds
the ids, by name or as NumPy's or torch's. out: a writable C-order array of that shape and type to write into. Raises SpecMismatchError, and
OutOfRangeError for a sequence without a source or a layer not recorded. Long calls release the GIL.)";

Plan from_row_ids(ArrayArg row_ids_arg, OptionalArrayArg layers_arg) {
  const Array array(row_ids_arg.object, "row_ids");
  array.require_dims(1, "one dimension");
  if (array.type() != IntType::kInt64) {
    raise(ErrorCode::kWrongType, "row_ids: expected int64, got {}", int_type_name(array.type()));
  }
  const Integers<int64_t> row_ids(row_ids_arg.object, "row_ids");
  std::vector<int32_t> layers;
  if (!layers_arg.object.is_none()) {
    const Integers<int32_t> list(layers_arg.object, "layers");
    layers.assign(list.span().begin(), list.span().end());
    if (layers.empty()) raise(ErrorCode::kInvalidArgument, "layers: expected None or at least one, got none");
  }
  return unwrap(
      long_call(array.size_bytes(), [&] { return Plan::from_row_ids(row_ids.span(), std::move(layers)); }));
}

// Where apply writes to: the caller's array or a new one.
struct Target {
  nb::object array;
  std::span<std::byte> bytes;
};

Target new_target(IntType type, std::initializer_list<int64_t> shape) {
  int64_t bytes = int_type_bytes(type);
  for (const int64_t size : shape) bytes *= size;
  Buffer buffer = unwrap(Buffer::allocate(bytes));
  return {numpy_view(buffer.data(), type, shape, buffer.owner(), Access::kWritable),
          {buffer.mutable_data(), static_cast<size_t>(bytes)}};
}

Target target_in(const Array& out, nb::handle object, IntType type, const std::string& shape) {
  if (out.type() != type) {
    raise(ErrorCode::kWrongType, "out: expected {}, got {}", int_type_name(type), int_type_name(out.type()));
  }
  if (out.shape_text() != shape) {
    raise(ErrorCode::kWrongShape, "out: expected shape {}, got {}", shape, out.shape_text());
  }
  if (!out.contiguous() || (out.mutable_data() == nullptr && out.size() > 0)) {
    raise(ErrorCode::kInvalidArgument, "out: expected a writable array in C order, got one that is {}",
          out.contiguous() ? "read-only" : "strided");
  }
  return {nb::borrow(object),
          {static_cast<std::byte*>(out.mutable_data()), static_cast<size_t>(out.size_bytes())}};
}

std::pair<nb::object, nb::object> apply(const Plan& self, RoutesListArg sources_arg, AnyArg dtype,
                                        OptionalArrayArg out_arg) {
  const std::vector<Routes> sources = sources_arg.get("sources");
  if (sources.empty()) raise(ErrorCode::kInvalidArgument, "sources: expected at least one Routes, got none");
  const IntType type = int_type_from(dtype.object, "dtype");
  const RouteSpec& spec = sources.front().spec();
  const auto num_layers =
      self.layers().empty() ? int64_t{spec.num_moe_layers()} : static_cast<int64_t>(self.layers().size());
  std::optional<Array> out;
  Target target;
  if (out_arg.object.is_none()) {
    target = new_target(type, {num_layers, self.num_rows(), spec.top_k()});
  } else {
    out.emplace(out_arg.object, "out");
    target = target_in(*out, out_arg.object, type,
                       fmt::format("[{}, {}, {}]", num_layers, self.num_rows(), spec.top_k()));
  }
  Target uses = new_target(IntType::kUint8, {self.num_rows()});
  const std::span<RowUse> use_span(reinterpret_cast<RowUse*>(uses.bytes.data()), uses.bytes.size());
  unwrap(long_call(static_cast<int64_t>(target.bytes.size()),
                   [&] { return self.apply(sources, type, target.bytes, use_span); }));
  return {target.array, uses.array};
}

std::vector<std::tuple<int64_t, int64_t, int64_t>> needs(const Plan& self) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> result;
  for (const Need& need : self.needs()) result.emplace_back(need.sequence, need.start, need.end);
  return result;
}

void verify(const Plan& self, RoutesListArg sources_arg, ArrayArg tokens_arg) {
  const std::vector<Routes> sources = sources_arg.get("sources");
  const Integers<int32_t> tokens(tokens_arg.object, "tokens");
  unwrap(self.verify(sources, tokens.span()));
}

std::vector<int32_t> layers(const Plan& self) { return {self.layers().begin(), self.layers().end()}; }

}  // namespace

void bind_replay(nb::module_& m) {
  nb::class_<Plan>(m, "Plan", kClassDoc)
      .def_static("from_row_ids", &from_row_ids, "row_ids"_a, "layers"_a = nb::none(), kFromRowIdsDoc)
      .def("apply", &apply, "sources"_a, "dtype"_a = "int64", "out"_a = nb::none(),
           nb::sig("def apply(self, sources: collections.abc.Iterable[Routes], dtype: object = 'int64', "
                   "out: numpy.typing.ArrayLike | None = None) -> "
                   "tuple[numpy.typing.NDArray[numpy.integer], numpy.typing.NDArray[numpy.uint8]]"),
           kApplyDoc)
      .def("needs", &needs,
           "[(sequence, start, end)]: the smallest spans of positions that cover what this rank needs.")
      .def(
          "verify", &verify, "sources"_a, "tokens"_a,
          "Proves the alignment: tokens[i] is the token at row i of this rank. Raises ConflictError naming "
          "the\n"
          "first row whose source has another token there. Sources without tokens and padding prove nothing.")
      .def_prop_ro("num_rows", &Plan::num_rows, "Rows of this rank.")
      .def_prop_ro("layers", &layers, "Global layers in the order of apply; empty = all of the spec's.");
  m.attr("FILL") = static_cast<int>(RowUse::kFill);
  m.attr("REPLAYED") = static_cast<int>(RowUse::kReplayed);
  m.attr("LIVE") = static_cast<int>(RowUse::kLive);
}

}  // namespace moetape::bindings
