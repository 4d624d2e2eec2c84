#include "moetape/routes.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "sequences.h"
#include "sums.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

using Runs = std::vector<std::tuple<int64_t, int64_t, uint32_t>>;
using State = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

constexpr const char* kClassDoc =
    R"(The experts of a run of tokens at every MoE layer. An immutable value; any thread.

Row t holds the experts used when the token at position t was fed; rows cover positions [start, end). A row is
valid, or missing for a reason; the ids of a missing row are zero and mean nothing. Copies and slices share
memory. Made by Store.read, decode and Routes.from_ids.)";

IntType id_type(const RouteSpec& spec) { return spec.id_bytes() == 1 ? IntType::kUint8 : IntType::kUint16; }

int64_t num_bytes(const Routes& routes) { return routes.num_rows() * routes.spec().row_bytes(); }

// ---- views

nb::object ids(const Routes& routes) {
  const RouteSpec& spec = routes.spec();
  return numpy_view(routes.ids().data(), id_type(spec),
                    {routes.num_rows(), spec.num_moe_layers(), spec.top_k()}, routes.owner(),
                    Access::kReadOnly);
}

nb::object reasons(const Routes& routes) {
  return numpy_view(routes.reasons().data(), IntType::kUint8, {routes.num_rows()}, routes.owner(),
                    Access::kReadOnly);
}

nb::object valid(const Routes& routes) {
  bool* flags = nullptr;
  nb::object array = new_bool_array(routes.num_rows(), &flags);
  for (const Reason reason : routes.reasons()) *flags++ = reason == Reason::kValid;
  return array;
}

nb::object tokens(const Routes& routes) {
  if (!routes.has_tokens()) return nb::none();
  // The tokens have an owner of their own, which a copy of the routes keeps.
  auto owner = std::make_shared<const Routes>(routes);
  return numpy_view(routes.tokens().data(), IntType::kInt32, {routes.num_rows()}, owner, Access::kReadOnly);
}

Runs versions(const Routes& routes) {
  Runs runs;
  for (const VersionRun& run : routes.versions()) runs.emplace_back(run.start, run.end, run.version);
  return runs;
}

nb::dict missing(const Routes& routes) {
  return routes.complete() ? nb::dict() : reason_counts(routes.count_by_reason());
}

std::string repr(const Routes& routes) {
  std::string text = fmt::format("Routes([{}, {}), {} layers x {}", routes.start(), routes.end(),
                                 routes.spec().num_moe_layers(), routes.spec().top_k());
  if (!routes.complete()) text += fmt::format(", missing={}", nb::repr(missing(routes)).c_str());
  const Runs runs = versions(routes);
  if (!runs.empty()) text += fmt::format(", versions={}", nb::repr(nb::cast(runs)).c_str());
  return text + (routes.has_tokens() ? ", with tokens)" : ")");
}

// ---- from outside

Routes from_ids(ObjectArg<RouteSpec> spec_arg, ArrayArg ids_arg, IntArg start, OptionalArrayArg valid_arg,
                OptionalIntArg version, OptionalArrayArg tokens_arg) {
  const RouteSpec& spec = spec_arg.get("spec");
  const nb::object ordered = in_c_order(ids_arg.object, "ids");
  const Array array(ordered, "ids");
  const std::string axes = fmt::format("[rows, {}, {}]", spec.num_moe_layers(), spec.top_k());
  array.require_dims(3, axes.c_str());
  if (array.shape(1) != spec.num_moe_layers() || array.shape(2) != spec.top_k()) {
    raise(ErrorCode::kWrongShape, "ids: expected {}, got shape {}", axes, array.shape_text());
  }
  const int64_t num_rows = array.shape(0);

  Routes::Source source{.ids = array.data(), .type = array.type(), .num_rows = num_rows};
  std::optional<Flags> flags;
  if (!valid_arg.object.is_none()) {
    source.valid = flags.emplace(valid_arg.object, "valid").span();
    require_length("valid", num_rows, source.valid.size());
  }
  std::optional<Integers<int32_t>> token_ids;
  if (!tokens_arg.object.is_none()) {
    source.tokens = token_ids.emplace(tokens_arg.object, "tokens").span();
    require_length("tokens", num_rows, source.tokens.size());
  }
  if (!version.object.is_none()) {
    source.version = static_cast<uint32_t>(IntArg{{version.object}}.get("version", 0, kMaxVersion));
  }
  const int64_t first = start.get("start");
  return unwrap(long_call(array.size_bytes(), [&] { return Routes::from_ids(spec, first, source); }));
}

// ---- pickle

State get_state(const Routes& routes) {
  return nb::borrow<State>(nb::make_tuple(routes.spec(), routes.start(), ids(routes), reasons(routes),
                                          versions(routes), tokens(routes)));
}

void require_state(bool fits, const char* what) {
  if (!fits) raise(ErrorCode::kCorruptData, "state: {}", what);
}

void add_versions(RoutesBuilder& builder, std::span<const uint8_t> reason_bytes, int64_t start,
                  nb::handle object) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> runs;
  require_state(nb::try_cast(object, runs), "expected version runs of three integers");
  int64_t next = 0;
  for (const auto& [run_start, run_end, version] : runs) {
    require_state(run_start >= start && run_end > run_start && version >= 0 && version <= kMaxVersion,
                  "a version run that cannot be");
    const int64_t first = run_start - start;
    const int64_t count = run_end - run_start;
    require_state(first >= next && count <= static_cast<int64_t>(reason_bytes.size()) - first,
                  "a version run outside the rows");
    for (const uint8_t reason :
         reason_bytes.subspan(static_cast<size_t>(first), static_cast<size_t>(count))) {
      require_state(reason == 0, "a version run over missing rows");
    }
    builder.add_version(first, count, static_cast<uint32_t>(version));
    next = first + count;
  }
}

void set_state(Routes& self, const State& state) {
  require_state(state.size() == 6, "expected 6 fields");
  const nb::object spec_object = state[0], start_object = state[1], ids_object = state[2];
  const nb::object reasons_object = state[3], runs = state[4], tokens_object = state[5];
  const RouteSpec& spec = ObjectArg<RouteSpec>{{spec_object}}.get("spec");
  const int64_t start = IntArg{{start_object}}.get("start");

  const Array reason_array(reasons_object, "reasons");
  reason_array.require_dims(1, "one dimension");
  require_state(reason_array.type() == IntType::kUint8 && reason_array.contiguous(),
                "expected reasons as bytes");
  const std::span reason_bytes(static_cast<const uint8_t*>(reason_array.data()),
                               static_cast<size_t>(reason_array.shape(0)));
  bool* is_valid = nullptr;
  const nb::object flags = new_bool_array(reason_array.shape(0), &is_valid);
  for (const uint8_t reason : reason_bytes) {
    require_state(reason < kNumReasons, "an unknown reason");
    *is_valid++ = reason == 0;
  }
  const Routes checked = from_ids({{spec_object}}, {{ids_object}}, {{start_object}}, {{flags}},
                                  {{nb::none()}}, {{tokens_object}});

  RoutesBuilder builder = unwrap(RoutesBuilder::create(spec, start, checked.num_rows()));
  std::ranges::copy(checked.ids(), builder.ids());
  for (size_t i = 0; i < reason_bytes.size(); ++i)
    builder.reasons()[i] = static_cast<Reason>(reason_bytes[i]);
  add_versions(builder, reason_bytes, start, runs);
  if (checked.has_tokens()) builder.set_tokens({checked.tokens().begin(), checked.tokens().end()});
  new (&self) Routes(std::move(builder).finish());
}

// ---- operations

OnOverlap on_overlap_from(std::string_view name) {
  if (name == "must_agree") return OnOverlap::kMustAgree;
  if (name == "keep_first") return OnOverlap::kKeepFirst;
  if (name == "keep_last") return OnOverlap::kKeepLast;
  raise(ErrorCode::kInvalidArgument, "on_overlap: expected must_agree, keep_first or keep_last, got \"{}\"",
        name);
}

Routes extend(const Routes& self, ObjectArg<Routes> other_arg, StrArg on_overlap_arg) {
  const Routes& other = other_arg.get("other");
  const OnOverlap on_overlap = on_overlap_from(on_overlap_arg.get("on_overlap"));
  return unwrap(
      long_call(num_bytes(self) + num_bytes(other), [&] { return self.extend(other, on_overlap); }));
}

Routes without(const Routes& self, IntArg version_below) {
  const auto version = static_cast<uint32_t>(version_below.get("version_below", 0, kMaxVersion + 1));
  return unwrap(long_call(num_bytes(self), [&] { return self.without(version); }));
}

Routes merged(RoutesListArg parts_arg, Result<Routes> (*merge)(std::span<const Routes>)) {
  const std::vector<Routes> parts = parts_arg.get("parts");
  int64_t work = 0;
  for (const Routes& part : parts) work += num_bytes(part);
  return unwrap(long_call(work, [&] { return merge(parts); }));
}

Routes stitched(ArrayArg tokens_arg, CapturesArg captures_arg) {
  const Integers<int32_t> token_ids(tokens_arg.object, "tokens");
  const std::vector<Capture> captures = captures_arg.get("captures");
  int64_t work = 0;
  for (const Capture& capture : captures) work += num_bytes(capture.routes);
  return unwrap(long_call(work, [&] { return stitch(token_ids.span(), captures); }));
}

void bind_properties(nb::class_<Routes>& routes) {
  routes
      .def_prop_ro(
          "ids", &ids, nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.unsignedinteger]"),
          "Experts [rows, layers, top_k], uint8 or uint16, read-only, a view without a copy. Zero where a\n"
          "row is missing; see valid.")
      .def_prop_ro("valid", &valid, nb::sig("def valid(self) -> numpy.typing.NDArray[numpy.bool]"),
                   "Which rows hold ids, bool [rows].")
      .def_prop_ro("reasons", &reasons, nb::sig("def reasons(self) -> numpy.typing.NDArray[numpy.uint8]"),
                   "Why each row is missing, [rows]: an index into moetape.REASONS; 0 = valid. A view.")
      .def_prop_ro("tokens", &tokens, nb::sig("def tokens(self) -> numpy.typing.NDArray[numpy.int32] | None"),
                   "tokens[i] is the token fed at row i; None when not known. A view.")
      .def_prop_ro("start", &Routes::start, "Position of the first row.")
      .def_prop_ro("end", &Routes::end, "Position behind the last row.")
      .def_prop_ro("versions", &versions,
                   "(start, end, version) in positions, ascending; missing rows stand in none.")
      .def_prop_ro("spec", &Routes::spec, "The RouteSpec.")
      .def_prop_ro("complete", &Routes::complete, "Whether no row is missing.")
      .def_prop_ro("missing", &missing, nb::sig("def missing(self) -> dict[str, int]"),
                   "Count of missing rows by reason; empty when complete.");
}

void bind_operations(nb::class_<Routes>& routes) {
  routes
      .def(
          "slice",
          [](const Routes& self, IntArg start, IntArg end) {
            return unwrap(self.slice(start.get("start"), end.get("end")));
          },
          "start"_a, "end"_a,
          "Positions [start, end), sharing memory. Raises OutOfRangeError outside this span.")
      .def(
          "with_tokens",
          [](const Routes& self, ArrayArg tokens) {
            return unwrap(self.with_tokens(Integers<int32_t>(tokens.object, "tokens").span()));
          },
          "tokens"_a,
          "The same routes with the token fed at each row. Raises WrongShapeError for another count.")
      .def("extend", &extend, "other"_a, "on_overlap"_a = "must_agree",
           "Joined with `other` by position. Gaps become missing rows, a valid row beats a missing one; two "
           "valid\n"
           "rows must_agree (ConflictError names the position), or keep_first, keep_last. Raises "
           "SpecMismatchError;\n"
           "ConflictError where both carry tokens and these differ.")
      .def("without", &without, "version_below"_a,
           "Rows computed under an older version become missing. Rows of no version stay.")
      .def(
          "__eq__",
          [](const Routes& self, ObjectArg<Routes> other) {
            const Routes* routes_or_null = other.get_if();
            return routes_or_null != nullptr && self == *routes_or_null;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__len__", &Routes::num_rows)
      .def("__repr__", &repr)
      .def("__getstate__", &get_state)
      .def("__setstate__", &set_state);
  routes.attr("__hash__") = nb::none();
}

}  // namespace

void bind_routes(nb::module_& m) {
  nb::class_<Routes> routes(m, "Routes", kClassDoc);
  routes.def_static(
      "from_ids", &from_ids, "spec"_a, "ids"_a, "start"_a = 0, "valid"_a = nb::none(),
      "version"_a = nb::none(), "tokens"_a = nb::none(),
      "Routes of ids [rows, layers, top_k] from elsewhere, copied and checked. valid: bool [rows], rows with "
      "False\n"
      "are missing and their ids not looked at. version: of all valid rows. tokens: [rows]. Raises\n"
      "OutOfRangeError or InvalidArgumentError naming row, layer and value of an id that cannot be.");
  bind_properties(routes);
  bind_operations(routes);

  m.def(
      "merge_layers", [](RoutesListArg parts) { return merged(parts, &merge_layers); }, "parts"_a,
      "One Routes of stages that recorded disjoint layers over the same span.");
  m.def(
      "merge_rows", [](RoutesListArg parts) { return merged(parts, &merge_rows); }, "parts"_a,
      "One Routes of shares of rows of one spec; two valid rows must agree (ConflictError).");
  m.def("stitch", &stitched, "tokens"_a, "captures"_a,
        "The routes of `tokens` out of several turns of a conversation, (routes, sampled_from) each, where\n"
        "sampled_from is the position of the first token that the turn sampled. A row comes from the capture "
        "that\n"
        "sampled the next token, else from the latest one that fed the same tokens so far, else it is "
        "missing.\n"
        "Routes carry tokens (InvalidArgumentError).");
  nb::list reason_names;
  for (int i = 0; i < kNumReasons; ++i) {
    const std::string_view name = reason_name(static_cast<Reason>(i));
    reason_names.append(nb::str(name.data(), name.size()));
  }
  m.attr("REASONS") = nb::tuple(reason_names);
}

}  // namespace moetape::bindings
