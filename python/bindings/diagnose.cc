#include "moetape/diagnose.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "moetape/canary.h"
#include "sequences.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kCanaryDoc =
    R"(Routes whose ids say whose they are: each list of top_k experts encodes (sequence, position, layer).

Sent through an engine or a trainer in place of real routes, a list that lies at a wrong place names the place that it
came from. Lists are valid and load the experts evenly. max_length: positions of a sequence; default: the largest power
of two, at most 2^20, that leaves 64 sequences. Raises CapacityError, with the figures, where the lists of the spec
carry no sequence of that length. A value; any thread.)";

constexpr const char* kCheckDoc =
    R"(Looks whether each row of ids [rows, layers, k] holds what belongs there.

ids: any integer array, any strides; what the trainer got. row_ids: [rows], (sequence + 1) << 32 | position of the token
at each row, 0 and -1 for padding, as for replay.Plan.from_row_ids. layers: global layers of the columns; default: all of
the spec. max_runs: how many runs of wrong lists are kept. Raises WrongShapeError, OutOfRangeError for a row id or layer
that the canary does not know.)";

constexpr const char* kReportDoc =
    R"(What Canary.check found. str() gives the runs, one a line: "layer 17 row 4096: wants sequence 0 position 8192, got
position 8193".)";

constexpr const char* kDiagnosisDoc =
    R"(Why two records that should agree do not. str() gives the causes with what share of the rows each explains.)";

nb::tuple place_tuple(const CanaryPlace& place) {
  return nb::make_tuple(place.sequence, place.position, place.layer);
}

nb::object optional_place(const std::optional<CanaryPlace>& place) {
  return place ? nb::object(place_tuple(*place)) : nb::none();
}

ListsView lists_view(const Array& ids) {
  ids.require_dims(3, "[rows, layers, k]");
  return {ids.data(),   ids.type(),   ids.shape(0),
          ids.shape(1), ids.shape(2), {ids.stride(0), ids.stride(1), ids.stride(2)}};
}

CanaryReport check(const Canary& self, ArrayArg ids_arg, ArrayArg row_ids_arg, OptionalArrayArg layers_arg,
                   IntArg max_runs) {
  const Array ids(ids_arg.object, "ids");
  const Integers<int64_t> row_ids(row_ids_arg.object, "row_ids");
  std::optional<Integers<int32_t>> layers;
  if (!layers_arg.object.is_none()) layers.emplace(layers_arg.object, "layers");
  const ListsView view = lists_view(ids);
  const int64_t most = max_runs.get("max_runs");
  return unwrap(long_call(ids.size_bytes(), [&] {
    return self.check(view, row_ids.span(), layers ? layers->span() : std::span<const int32_t>(), most);
  }));
}

Routes make_routes(const Canary& self, IntArg sequence_arg, IntArg length_arg, IntArg start_arg) {
  const int64_t sequence = sequence_arg.get("sequence");
  const int64_t length = length_arg.get("length");
  const int64_t start = start_arg.get("start");
  return unwrap(long_call(work_bytes(length, self.spec().row_bytes()),
                          [&] { return self.routes(sequence, length, start); }));
}

void bind_report(nb::module_& m) {
  nb::class_<CanaryRun>(m, "CanaryRun", "Lists of one layer that follow each other and are wrong in one way.")
      .def_ro("layer", &CanaryRun::layer, "Global.")
      .def_ro("first_row", &CanaryRun::first_row, "Of the array.")
      .def_ro("num_rows", &CanaryRun::num_rows)
      .def_prop_ro(
          "wanted", [](const CanaryRun& self) { return place_tuple(self.wanted); },
          nb::sig("def wanted(self) -> tuple[int, int, int]"), "(sequence, position, layer) of the first.")
      .def_prop_ro(
          "found", [](const CanaryRun& self) { return optional_place(self.found); },
          nb::sig("def found(self) -> tuple[int, int, int] | None"),
          "What the first holds; None = no list of the canary.");
  nb::class_<CanaryReport>(m, "CanaryReport", kReportDoc)
      .def_ro("num_right", &CanaryReport::num_right, "Lists, as all of these.")
      .def_ro("num_reordered", &CanaryReport::num_reordered, "At their place, their ids in another order.")
      .def_ro("num_misplaced", &CanaryReport::num_misplaced, "Of another place.")
      .def_ro("num_unreadable", &CanaryReport::num_unreadable, "No lists of this canary.")
      .def_ro("num_padding", &CanaryReport::num_padding, "Rows without a row id: not looked at.")
      .def_ro("num_runs", &CanaryReport::num_runs)
      .def_ro("runs", &CanaryReport::runs, "Of misplaced and unreadable lists, by layer, then row.")
      .def_prop_ro("all_right", &CanaryReport::all_right)
      .def("__str__", &CanaryReport::text)
      .def("__repr__", [](const CanaryReport& self) {
        return fmt::format("CanaryReport({} right, {} reordered, {} misplaced, {} unreadable)",
                           self.num_right, self.num_reordered, self.num_misplaced, self.num_unreadable);
      });
}

void bind_canary(nb::module_& m) {
  nb::class_<Canary>(m, "Canary", kCanaryDoc)
      .def(
          "__init__",
          [](Canary* self, ObjectArg<RouteSpec> spec, OptionalIntArg max_length) {
            new (self) Canary(unwrap(Canary::create(spec.get("spec"), max_length.get("max_length"))));
          },
          "spec"_a, "max_length"_a = nb::none())
      .def_prop_ro("spec", &Canary::spec, "The RouteSpec.")
      .def_prop_ro("max_length", &Canary::max_length, "Positions of a sequence.")
      .def_prop_ro("num_sequences", &Canary::num_sequences)
      .def("routes", &make_routes, "sequence"_a, "length"_a, "start"_a = 0,
           "Rows at positions [start, start + length) of a sequence. Raises CapacityError beyond max_length "
           "and num_sequences.")
      .def(
          "decode",
          [](const Canary& self, ArrayArg ids_arg) {
            const Integers<int32_t> ids(ids_arg.object, "ids");
            return optional_place(self.decode(ids.span()));
          },
          "ids"_a, nb::sig("def decode(self, ids: numpy.typing.ArrayLike) -> tuple[int, int, int] | None"),
          "The (sequence, position, layer) that top_k ids encode, in any order; None for a list that this\n"
          "canary has not made.")
      .def("check", &check, "ids"_a, "row_ids"_a, "layers"_a = nb::none(), "max_runs"_a = 64, kCheckDoc)
      .def("__repr__", [](const Canary& self) {
        return fmt::format("Canary({} sequences of {} positions)", self.num_sequences(), self.max_length());
      });
  m.def(
      "canary",
      [](ObjectArg<RouteSpec> spec, IntArg sequence, IntArg length) {
        return make_routes(unwrap(Canary::create(spec.get("spec"))), sequence, length, IntArg{{nb::int_(0)}});
      },
      "spec"_a, "sequence"_a, "length"_a, "Canary(spec).routes(sequence, length).");
}

nb::dict expert_maps(const Cause& self) {
  nb::dict result;
  for (const auto& [layer, experts] : self.experts) result[nb::cast(layer)] = experts;
  return result;
}

void bind_cause(nb::module_& m) {
  nb::class_<RowMove>(m, "RowMove", "Rows of b that hold rows of a.")
      .def_ro("sequence", &RowMove::sequence, "Of b, counted from 0.")
      .def_ro("position", &RowMove::position)
      .def_ro("from_sequence", &RowMove::from_sequence, "Of a.")
      .def_ro("from_position", &RowMove::from_position)
      .def_ro("num_rows", &RowMove::num_rows)
      .def("__repr__", [](const RowMove& self) {
        return fmt::format(
            "RowMove(sequence={}, position={}, from_sequence={}, from_position={}, num_rows={})",
            self.sequence, self.position, self.from_sequence, self.from_position, self.num_rows);
      });
  nb::class_<Cause>(m, "Cause", "One way in which record b differs from record a.")
      .def_prop_ro(
          "kind", [](const Cause& self) { return std::string(cause_name(self.kind)); },
          "'rows_shifted', 'rows_elsewhere', 'rows_transposed', 'zigzag', 'contiguous', 'layers_shifted',\n"
          "'layers_elsewhere', 'layers_constant', 'experts_mapped' or 'columns_reordered'.")
      .def_ro("text", &Cause::text, "What b does, in one sentence.")
      .def_ro("num_rows", &Cause::num_rows, "Out of place when this cause was looked for.")
      .def_ro("num_explained", &Cause::num_explained, "Of these, in place if b is read so.")
      .def_prop_ro("share", &Cause::share, "Explained / rows.")
      .def_ro("shift", &Cause::shift, "Of rows_shifted, in positions, and layers_shifted.")
      .def_ro("size", &Cause::size, "Ranks, or sequences of a micro-batch.")
      .def_ro("moves", &Cause::moves, "The first places where rows moved.")
      .def_ro(
          "layers", &Cause::layers,
          "(layer of b, layer of a or -1) of kinds of layers, and where a cause is about some layers only.")
      .def_prop_ro("experts", &expert_maps, nb::sig("def experts(self) -> dict[int, list[int]]"),
                   "Of experts_mapped, by layer of b: a's expert for each of b's, -1 = not seen.")
      .def("__repr__", [](const Cause& self) {
        return fmt::format("Cause({}: {}; {} of {} rows)", cause_name(self.kind), self.text,
                           self.num_explained, self.num_rows);
      });
}

Diagnosis diagnose_records(RoutesListArg a_arg, RoutesListArg b_arg, IntArg max_rows) {
  const std::vector<Routes> a = a_arg.get("a");
  const std::vector<Routes> b = b_arg.get("b");
  const DiagnoseOptions options{.max_rows = max_rows.get("max_rows")};
  nb::gil_scoped_release release;
  Result<Diagnosis> diagnosis = diagnose(a, b, options);
  nb::gil_scoped_acquire acquire;
  return unwrap(std::move(diagnosis));
}

}  // namespace

void bind_diagnose(nb::module_& m) {
  bind_report(m);
  bind_canary(m);
  bind_cause(m);
  nb::class_<Diagnosis>(m, "Diagnosis", kDiagnosisDoc)
      .def_ro("num_rows", &Diagnosis::num_rows, "Valid in both, at one position.")
      .def_ro("num_in_place", &Diagnosis::num_in_place,
              "Of these, rows with the same experts in half of their layers or more.")
      .def_ro("num_rows_only_in_a", &Diagnosis::num_rows_only_in_a)
      .def_ro("num_rows_only_in_b", &Diagnosis::num_rows_only_in_b)
      .def_ro("num_rows_left_out", &Diagnosis::num_rows_left_out, "Beyond max_rows: not looked at.")
      .def_ro("num_unexplained", &Diagnosis::num_unexplained, "Rows out of place that no cause explains.")
      .def_ro("unexplained_layers", &Diagnosis::unexplained_layers,
              "Layers of b that differ where most others agree, and that no cause explains.")
      .def_ro("causes", &Diagnosis::causes)
      .def_prop_ro("in_place", &Diagnosis::in_place,
                   "Nothing is out of place, and no cause was found: not that all ids are equal (compare).")
      .def("__str__", &Diagnosis::text)
      .def("__repr__", [](const Diagnosis& self) {
        return fmt::format("Diagnosis({} of {} rows in place, {} causes)", self.num_in_place, self.num_rows,
                           self.causes.size());
      });
  m.def("diagnose_records", &diagnose_records, "a"_a, "b"_a, "max_rows"_a,
        "The Diagnosis of two lists of Routes; moetape.diagnose takes arrays, too.");
}

}  // namespace moetape::bindings
