#include "moetape/spec.h"

#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

using Layers = nb::typed<nb::tuple, int, nb::ellipsis>;
using State = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

constexpr const char* kClassDoc = R"(What is recorded of one stack of a model. An immutable value; any thread.

layers: global 0-based indices of the MoE layers, ascending. num_experts: the largest over the layers, at most
65,536; ids take 1 byte up to 256 experts, else 2. shared_columns: fused shared experts that ride behind the
top_k ids in what routers give. distinct: whether the ids of a row must differ. num_layers: layers of the whole
stack, default the last MoE layer + 1. excluded: MoE layers left out on purpose, with the reason.
Raises InvalidArgumentError naming the field that does not fit.)";

std::vector<int32_t> layer_list(nb::handle layers) {
  const Integers<int32_t> list(layers, "layers");
  return {list.span().begin(), list.span().end()};
}

std::map<int32_t, std::string> excluded_layers(nb::handle excluded) {
  std::map<int32_t, std::string> result;
  if (excluded.is_none()) return result;
  if (!PyDict_Check(excluded.ptr()))
    raise_wrong_type("excluded", "dict of layer and reason, or None", excluded);
  for (auto [layer, reason] : nb::borrow<nb::dict>(excluded)) {
    result.emplace(IntArg{{layer}}.as<int32_t>("excluded layer"), StrArg{{reason}}.get("excluded reason"));
  }
  return result;
}

std::string layers_text(std::span<const int32_t> layers) {
  const bool run = layers.back() - layers.front() + 1 == static_cast<int64_t>(layers.size());
  return run ? fmt::format("range({}, {})", layers.front(), layers.back() + 1) : fmt::format("{}", layers);
}

std::string repr(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  std::string text = fmt::format("RouteSpec(layers={}, top_k={}, num_experts={}", layers_text(fields.layers),
                                 fields.top_k, fields.num_experts);
  const auto add = [&text](const char* name, nb::object value) {
    text += fmt::format(", {}={}", name, nb::repr(value).c_str());
  };
  if (fields.stack != "target") add("stack", nb::cast(fields.stack));
  if (fields.shared_columns != 0) add("shared_columns", nb::cast(fields.shared_columns));
  if (!fields.distinct) add("distinct", nb::cast(fields.distinct));
  if (fields.num_layers != fields.layers.back() + 1) add("num_layers", nb::cast(fields.num_layers));
  if (!fields.excluded.empty()) add("excluded", nb::cast(fields.excluded));
  if (!fields.model.empty()) add("model", nb::cast(fields.model));
  return text + ")";
}

State get_state(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  return nb::borrow<State>(nb::make_tuple(fields.stack, fields.layers, fields.top_k, fields.num_experts,
                                          fields.shared_columns, fields.distinct, fields.num_layers,
                                          fields.excluded, fields.model));
}

void set_state(RouteSpec& spec, const State& state) {
  if (state.size() != 9) raise(ErrorCode::kCorruptData, "state: expected 9 fields, got {}", state.size());
  const auto object = [&state](size_t index) { return nb::object(state[index]); };
  RouteSpecFields fields;
  fields.stack = StrArg{{object(0)}}.get("stack");
  fields.layers = layer_list(object(1));
  fields.top_k = IntArg{{object(2)}}.as<int32_t>("top_k");
  fields.num_experts = IntArg{{object(3)}}.as<int32_t>("num_experts");
  fields.shared_columns = IntArg{{object(4)}}.as<int32_t>("shared_columns");
  fields.distinct = BoolArg{{object(5)}}.get("distinct");
  fields.num_layers = IntArg{{object(6)}}.as<int32_t>("num_layers");
  fields.excluded = excluded_layers(object(7));
  fields.model = StrArg{{object(8)}}.get("model");
  new (&spec) RouteSpec(unwrap(RouteSpec::create(std::move(fields))));
}

void init(RouteSpec* self, ArrayArg layers, IntArg top_k, IntArg num_experts, StrArg stack,
          IntArg shared_columns, BoolArg distinct, OptionalIntArg num_layers, const OptionalDictArg& excluded,
          StrArg model) {
  RouteSpecFields fields;
  fields.stack = stack.get("stack");
  fields.layers = layer_list(layers.object);
  fields.top_k = top_k.as<int32_t>("top_k");
  fields.num_experts = num_experts.as<int32_t>("num_experts");
  fields.shared_columns = shared_columns.as<int32_t>("shared_columns");
  fields.distinct = distinct.get("distinct");
  fields.num_layers =
      num_layers.object.is_none() ? 0 : IntArg{{num_layers.object}}.get("num_layers", 1, INT32_MAX);
  fields.excluded = excluded_layers(excluded.object);
  fields.model = model.get("model");
  new (self) RouteSpec(unwrap(RouteSpec::create(std::move(fields))));
}

void bind_properties(nb::class_<RouteSpec>& spec) {
  spec.def_prop_ro(
          "stack", [](const RouteSpec& self) { return self.fields().stack; }, "\"target\" or another.")
      .def_prop_ro(
          "layers",
          [](const RouteSpec& self) { return nb::borrow<Layers>(nb::tuple(nb::cast(self.fields().layers))); },
          "Global indices of the MoE layers.")
      .def_prop_ro("top_k", &RouteSpec::top_k, "Ids per token and layer.")
      .def_prop_ro("num_experts", &RouteSpec::num_experts, "Ids are below it.")
      .def_prop_ro("shared_columns", &RouteSpec::shared_columns,
                   "Columns behind the top_k ids that are cut off.")
      .def_prop_ro("distinct", &RouteSpec::distinct, "Whether the ids of a row differ.")
      .def_prop_ro("num_layers", &RouteSpec::num_layers, "Layers of the whole stack, dense ones included.")
      .def_prop_ro(
          "excluded", [](const RouteSpec& self) { return self.fields().excluded; },
          "MoE layers left out on purpose, with the reason.")
      .def_prop_ro(
          "model", [](const RouteSpec& self) { return self.fields().model; }, "Free text.")
      .def_prop_ro("num_moe_layers", &RouteSpec::num_moe_layers, "How many layers are recorded.")
      .def_prop_ro("id_bytes", &RouteSpec::id_bytes, "Bytes of one id: 1 up to 256 experts, else 2.")
      .def_prop_ro("row_bytes", &RouteSpec::row_bytes, "Bytes of one token's ids.")
      .def_prop_ro("fingerprint", &RouteSpec::fingerprint,
                   "64 bits over stack, num_layers, layers, top_k and num_experts.");
}

}  // namespace

void bind_spec(nb::module_& m) {
  nb::class_<RouteSpec> spec(m, "RouteSpec", kClassDoc);
  spec.def("__init__", &init, "layers"_a, "top_k"_a, "num_experts"_a, nb::kw_only(), "stack"_a = "target",
           "shared_columns"_a = 0, "distinct"_a = true, "num_layers"_a = nb::none(),
           "excluded"_a = nb::none(), "model"_a = "");
  bind_properties(spec);
  spec.def(
          "column_of",
          [](const RouteSpec& self, IntArg layer) {
            return unwrap(self.column_of(layer.as<int32_t>("layer")));
          },
          "layer"_a, "Where a global layer stands in a row. Raises OutOfRangeError if it is not recorded.")
      .def(
          "with_layers",
          [](const RouteSpec& self, ArrayArg layers) {
            return unwrap(self.with_layers(layer_list(layers.object)));
          },
          "layers"_a,
          "The same spec for some of its layers. Raises OutOfRangeError for one that is not recorded.")
      .def(
          "__eq__",
          [](const RouteSpec& self, ObjectArg<RouteSpec> other) {
            const RouteSpec* other_spec = other.get_if();
            return other_spec != nullptr && self == *other_spec;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const RouteSpec& self) { return static_cast<int64_t>(self.fingerprint() >> 1); })
      .def("__repr__", &repr)
      .def("__getstate__", &get_state)
      .def("__setstate__", &set_state);
  spec.def_static(
      "from_config",
      [](AnyArg config, const nb::kwargs& fields) {
        return nb::module_::import_("moetape.config").attr("spec_from_config")(config.object, **fields);
      },
      "config"_a, "fields"_a, nb::sig("def from_config(config: object, **fields: typing.Any) -> RouteSpec"),
      "The spec of a Hugging Face model: its configuration (an object or a dict), or the path of config.json "
      "or of\n"
      "the folder that holds it. `fields` are arguments of RouteSpec that replace what the configuration "
      "says.\n"
      "Raises InvalidArgumentError if the model has no MoE layers, UnsupportedError if it is not "
      "understood.");
}

}  // namespace moetape::bindings
