#include "moetape/replay.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "moetape/buffer.h"
#include "plan_sources.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(The rows that one rank's routers need, cut by the trainer's own slicing. A value; any thread.)";

constexpr const char* kFromRowIdsDoc = R"(The plan of the rows that a rank holds.

row_ids: int64, one-dimensional: (sequence + 1) << 32 | position, cut by the code that cuts the tokens; 0 and -1 are
padding. int32 is refused (WrongTypeError), since ids do not fit. Or a RowIds. layers: 0-based global indices in the
order in which apply gives them, none of them for a stage of dense layers; default: all of the spec's. Raises InvalidArgumentError for an id that is neither, or stands twice.)";

constexpr const char* kApplyDoc = R"((ids, uses): ids [layers, rows, top_k] of `dtype`, uses uint8 [rows].

sources[s] holds sequence s: Routes, or a RowSource (decode_rows, Store.rows), which is pulled as its rows are needed. Or
a Tape, on which sequence s is sequences[s], or s; only the rows and layer groups that the plan needs are read. uses says for each row FILL (padding), REPLAYED or LIVE (no record: the router decides);
ids of the last and first kind are rotating distinct ones. dtype: int16, int32, int64, or an unsigned type that holds
the ids, by name or as NumPy's or torch's. out: a writable C-order array of that shape and type to write into.
first_expert: where the rotation begins; a different one for plans that are applied side by side keeps their padding
from loading the same experts. Raises SpecMismatchError, and OutOfRangeError for a sequence without a source or a layer
not recorded. Long calls release the GIL.)";

std::optional<std::vector<int32_t>> layers_from(OptionalArrayArg arg) {
  if (arg.object.is_none()) return std::nullopt;
  const Integers<int32_t> list(arg.object, "layers");
  return std::vector<int32_t>(list.span().begin(), list.span().end());
}

Plan from_row_ids(ArrayArg row_ids_arg, OptionalArrayArg layers_arg) {
  std::optional<std::vector<int32_t>> layers = layers_from(layers_arg);
  if (const RowIds* rows = ObjectArg<RowIds>{{row_ids_arg.object}}.get_if()) {
    return unwrap(Plan::from_row_ids(rows->ids(), std::move(layers)));
  }
  const Array array(row_ids_arg.object, "row_ids");
  array.require_dims(1, "one dimension");
  if (array.type() != IntType::kInt64) {
    raise(ErrorCode::kWrongType, "row_ids: expected int64, got {}", int_type_name(array.type()));
  }
  const Integers<int64_t> row_ids(row_ids_arg.object, "row_ids");
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

std::pair<nb::object, nb::object> apply(const Plan& self, SourcesArg sources_arg, AnyArg dtype,
                                        OptionalArrayArg out_arg, IntArg first_expert_arg,
                                        OptionalArrayArg sequences) {
  const PlanSources sources(sources_arg, sequences);
  const IntType type = int_type_from(dtype.object, "dtype");
  const RouteSpec& spec = sources.spec();
  const int64_t num_layers = self.layers() ? std::ssize(*self.layers()) : spec.num_moe_layers();
  const int64_t first_expert = first_expert_arg.get("first_expert");
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
  unwrap(long_call(static_cast<int64_t>(target.bytes.size()), [&] {
    return sources.with(
        [&](const auto&... from) { return self.apply(from..., type, target.bytes, use_span, first_expert); });
  }));
  return {target.array, uses.array};
}

std::vector<std::tuple<int64_t, int64_t, int64_t>> needs(const Plan& self) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> result;
  for (const RowSpan& need : self.needs()) result.emplace_back(need.sequence, need.start, need.end);
  return result;
}

nb::object expert_load(const Plan& self, SourcesArg sources_arg, OptionalArrayArg sequences) {
  const PlanSources sources(sources_arg, sequences);
  const auto load =
      std::make_shared<std::vector<int64_t>>(unwrap(long_call(work_bytes(self.num_rows(), 1 << 10), [&] {
        return sources.with_routes([&](const auto&... from) { return self.expert_load(from...); });
      })));
  const int64_t num_experts = sources.spec().num_experts();
  return numpy_view(load->data(), IntType::kInt64, {std::ssize(*load) / num_experts, num_experts}, load,
                    Access::kWritable);
}

int64_t verify(const Plan& self, SourcesArg sources_arg, ArrayArg tokens_arg, OptionalArrayArg sequences) {
  const PlanSources sources(sources_arg, sequences);
  const Integers<int32_t> tokens(tokens_arg.object, "tokens");
  return unwrap(
      sources.with_routes([&](const auto&... from) { return self.verify(from..., tokens.span()); }));
}

nb::object row_ids_of(const Plan& self) {
  const auto ids = std::make_shared<std::vector<int64_t>>(self.row_ids());
  return numpy_view(ids->data(), IntType::kInt64, {self.num_rows()}, ids, Access::kWritable);
}

using State = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

// A pickle holds what the plan was made from; reading one checks it again.
State get_state(const Plan& self) {
  return nb::borrow<State>(nb::make_tuple(row_ids_of(self), self.layers()));
}

void set_state(Plan& self, const State& state) {
  if (state.size() != 2)
    raise(ErrorCode::kCorruptData, "Plan: expected a pickle of 2 values, got {}", state.size());
  const nb::object row_ids = state[0];
  const nb::object layers = state[1];
  new (&self) Plan(from_row_ids({{row_ids}}, {{layers}}));
}

std::string repr(const Plan& self) {
  if (!self.layers()) return fmt::format("Plan({} rows)", self.num_rows());
  return fmt::format("Plan({} rows, layers=[{}])", self.num_rows(), fmt::join(*self.layers(), ", "));
}

}  // namespace

void bind_replay(nb::module_& m) {
  nb::class_<Plan> plan(m, "Plan", kClassDoc);
  plan.def_static("from_row_ids", &from_row_ids, "row_ids"_a, "layers"_a = nb::none(), kFromRowIdsDoc)
      .def(
          "apply", &apply, "sources"_a, "dtype"_a = "int64", "out"_a = nb::none(), "first_expert"_a = 0,
          "sequences"_a = nb::none(),
          nb::sig(
              "def apply(self, sources: Tape | collections.abc.Iterable[Routes | RowSource], dtype: object = "
              "'int64', out: numpy.typing.ArrayLike | None = None, first_expert: int = 0, "
              "sequences: numpy.typing.ArrayLike | None = None) -> "
              "tuple[numpy.typing.NDArray[numpy.integer], numpy.typing.NDArray[numpy.uint8]]"),
          kApplyDoc)
      .def("needs", &needs,
           "[(sequence, start, end)]: the smallest spans of positions that cover what this rank needs.")
      .def(
          "verify", &verify, "sources"_a, "tokens"_a, "sequences"_a = nb::none(),
          "The number of rows whose alignment this proves: tokens[i] is the token at row i of this rank. "
          "Raises\n"
          "ConflictError naming the first row whose source has another token there. Sources without tokens,\n"
          "positions outside them, and padding prove nothing.")
      .def("expert_load", &expert_load, "sources"_a, "sequences"_a = nb::none(),
           nb::sig("def expert_load(self, sources: Tape | collections.abc.Iterable[Routes | RowSource], "
                   "sequences: numpy.typing.ArrayLike | None = None) -> "
                   "numpy.typing.NDArray[numpy.int64]"),
           "How many recorded rows each expert will get, int64 [layers, num_experts], before the step: to "
           "pack\n"
           "micro-batches. Rows without a record are not counted.")
      .def_prop_ro("row_ids", &row_ids_of, nb::sig("def row_ids(self) -> numpy.typing.NDArray[numpy.int64]"),
                   "What the plan was made from, padding as 0; a new array.")
      .def_prop_ro("num_rows", &Plan::num_rows, "Rows of this rank.")
      .def_prop_ro("layers", &Plan::layers, "Global layers in the order of apply; None = all of the spec's.")
      .def(
          "__eq__",
          [](const Plan& self, ObjectArg<Plan> other) {
            const Plan* other_plan = other.get_if();
            return other_plan != nullptr && self == *other_plan;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &repr)
      .def("__getstate__", &get_state)
      .def("__setstate__", &set_state);
  plan.attr("__hash__") = nb::none();
  m.attr("FILL") = static_cast<int>(RowUse::kFill);
  m.attr("REPLAYED") = static_cast<int>(RowUse::kReplayed);
  m.attr("LIVE") = static_cast<int>(RowUse::kLive);
}

}  // namespace moetape::bindings
