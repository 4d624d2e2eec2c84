#include "moetape/compare.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

#include "args.h"
#include "module.h"
#include "sums.h"
#include "sums_state.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kAgreementDoc =
    R"(Sums over rows that were compared. A router is one layer of one row; it is *unequal* where its two lists differ
in an id or in the order of ids, *rerouted* where they differ as sets. A row is unequal or rerouted if one of its
routers is. Rates are None where nothing was compared.)";

constexpr const char* kComparisonDoc =
    R"(How far records of the same tokens agree: sums, so that those of parts merge into that of the whole.

max_rerouted_rows: how many rows are kept by name. Memory is bounded by the spec and by how many different versions and
tokens there are. Made whole by moetape.compare.)";

constexpr const char* kAddDoc =
    R"(Two records of one sequence, row by row where positions agree; their spans may differ. Keeps the GIL.

sequence: what rerouted_rows call the pair; default: the number of pairs added so far. Raises SpecMismatchError for
another fingerprint, ConflictError naming the first position at which both carry a token and the two differ. A failed
call adds nothing.)";

constexpr const char* kCompareDoc =
    R"(The Comparison of two records: Routes of the same tokens, or iterables of them, pair after pair.

Iterables are walked in step and not kept, so records larger than memory can be compared. Raises WrongShapeError where
one ends before the other, InvalidArgumentError if both are empty, SpecMismatchError, ConflictError. Long pairs release
the GIL.)";

std::string percent(std::optional<double> rate) {
  return rate ? fmt::format("{:.2f} %", *rate * 100) : "none";
}

std::string agreement_repr(const Agreement& sums) {
  return fmt::format("Agreement({} rows, {} rerouted; {} routers, {} unequal, {} rerouted; overlap {})",
                     sums.num_rows, percent(sums.rerouted_rows_rate()), sums.num_routers,
                     percent(sums.unequal_routers_rate()), percent(sums.rerouted_routers_rate()),
                     percent(sums.overlap()));
}

std::string comparison_repr(const Comparison& comparison) {
  return fmt::format("Comparison({} sequences, {}, only in a: {} rows, only in b: {})",
                     comparison.num_sequences, agreement_repr(comparison.total),
                     comparison.num_rows_only_in_a, comparison.num_rows_only_in_b);
}

std::string rerouted_row_repr(const ReroutedRow& row) {
  return fmt::format(
      "ReroutedRow(sequence={}, position={}, token={}, num_rerouted_routers={}, num_unequal_routers={})",
      row.sequence, row.position, row.token ? fmt::format("{}", *row.token) : "None",
      row.num_rerouted_routers, row.num_unequal_routers);
}

CompareOptions options_from(IntArg max_rerouted_rows) {
  return {.max_rerouted_rows = max_rerouted_rows.get("max_rerouted_rows")};
}

Comparison compare_records(RecordsArg a_arg, RecordsArg b_arg, IntArg max_rerouted_rows) {
  const CompareOptions options = options_from(max_rerouted_rows);
  Records a_records(a_arg, "a");
  Records b_records(b_arg, "b");
  std::optional<Comparison> comparison;
  int64_t num_pairs = 0;
  for (;; ++num_pairs) {
    const std::optional<Routes> a = a_records.next();
    const std::optional<Routes> b = b_records.next();
    if (a.has_value() != b.has_value()) {
      raise(ErrorCode::kWrongShape, "{0}: expected as many records as {1}, got {2}, and {1} has more",
            a ? "b" : "a", a ? "a" : "b", num_pairs);
    }
    if (!a) break;
    if (!comparison) comparison = unwrap(Comparison::create(a->spec(), options));
    unwrap(long_call(work_of(*a) + work_of(*b), [&] { return comparison->add(*a, *b); }));
  }
  if (!comparison)
    raise(ErrorCode::kInvalidArgument, "a, b: expected at least one pair of records, got none");
  return *std::move(comparison);
}

nb::dict by_version(const Comparison& comparison) {
  nb::dict result;
  for (const auto& [versions, sums] : comparison.by_version)
    result[nb::make_tuple(versions.a, versions.b)] = sums;
  return result;
}

void bind_agreement(nb::module_& m) {
  nb::class_<Agreement>(m, "Agreement", kAgreementDoc)
      .def_ro("num_rows", &Agreement::num_rows, "Rows compared: valid in both.")
      .def_ro("num_unequal_rows", &Agreement::num_unequal_rows)
      .def_ro("num_rerouted_rows", &Agreement::num_rerouted_rows)
      .def_ro("num_routers", &Agreement::num_routers, "Rows x layers.")
      .def_ro("num_unequal_routers", &Agreement::num_unequal_routers)
      .def_ro("num_rerouted_routers", &Agreement::num_rerouted_routers)
      .def_ro("num_ids", &Agreement::num_ids, "top_k for every router.")
      .def_ro("num_shared_ids", &Agreement::num_shared_ids, "Of these, ids that stand in both lists.")
      .def_prop_ro("unequal_rows_rate", &Agreement::unequal_rows_rate)
      .def_prop_ro("rerouted_rows_rate", &Agreement::rerouted_rows_rate)
      .def_prop_ro("unequal_routers_rate", &Agreement::unequal_routers_rate)
      .def_prop_ro("rerouted_routers_rate", &Agreement::rerouted_routers_rate)
      .def_prop_ro("overlap", &Agreement::overlap, "Shared ids / ids: the mean overlap of the sets.")
      .def(
          "__eq__",
          [](const Agreement& self, ObjectArg<Agreement> other) {
            const Agreement* sums = other.get_if();
            return sums != nullptr && self == *sums;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &agreement_repr)
      .attr("__hash__") = nb::none();
  nb::class_<ReroutedRow>(m, "ReroutedRow", "One of the rows with the most rerouted routers.")
      .def_ro("sequence", &ReroutedRow::sequence)
      .def_ro("position", &ReroutedRow::position)
      .def_ro("token", &ReroutedRow::token, "That was fed there; None when not known.")
      .def_ro("num_rerouted_routers", &ReroutedRow::num_rerouted_routers)
      .def_ro("num_unequal_routers", &ReroutedRow::num_unequal_routers)
      .def("__repr__", &rerouted_row_repr);
}

void bind_sums(nb::class_<Comparison>& comparison) {
  comparison.def_ro("spec", &Comparison::spec, "The RouteSpec.")
      .def_ro("num_sequences", &Comparison::num_sequences, "Pairs added.")
      .def_ro("num_rows_only_in_a", &Comparison::num_rows_only_in_a,
              "Rows valid in a; in b missing or outside its span.")
      .def_ro("num_rows_only_in_b", &Comparison::num_rows_only_in_b)
      .def_ro("num_rows_in_neither", &Comparison::num_rows_in_neither,
              "Rows inside the span of a or b, and valid in none.")
      .def_prop_ro(
          "missing_in_a", [](const Comparison& self) { return reason_counts(self.missing_in_a); },
          nb::sig("def missing_in_a(self) -> dict[str, int]"),
          "Rows that are not valid in a, by reason; gap outside its span.")
      .def_prop_ro(
          "missing_in_b", [](const Comparison& self) { return reason_counts(self.missing_in_b); },
          nb::sig("def missing_in_b(self) -> dict[str, int]"))
      .def_prop_ro(
          "total", [](const Comparison& self) { return self.total; }, "Over all rows and layers.")
      .def_prop_ro(
          "by_layer", [](const Comparison& self) { return by_layer(self.spec, self.by_layer); },
          nb::sig("def by_layer(self) -> dict[int, Agreement]"), "By global layer.")
      .def_prop_ro(
          "by_position",
          [](const Comparison& self) {
            return windows_of(self.by_position, [](const Agreement& sums) { return sums; });
          },
          nb::sig("def by_position(self) -> list[tuple[int, int, Agreement]]"),
          "(start, end, sums): at most 64 windows of positions, of one width, a power of two.")
      .def_prop_ro("by_version", &by_version,
                   nb::sig("def by_version(self) -> dict[tuple[int | None, int | None], Agreement]"),
                   "By the versions of a and b; None = a row that carries none.")
      .def_prop_ro(
          "by_token",
          [](const Comparison& self) {
            return std::map<int32_t, Agreement>(self.by_token.begin(), self.by_token.end());
          },
          "By the token fed, for rows whose token either record carries.")
      .def_prop_ro(
          "rows_by_rerouted_routers", [](const Comparison& self) { return self.rows_by_rerouted_routers; },
          "Rows with 0, 1, ... rerouted routers, [layers + 1].")
      .def_prop_ro(
          "rerouted_rows", [](const Comparison& self) { return self.rerouted_rows; },
          "Rows with the most rerouted routers first, then the most unequal ones, then by sequence and "
          "position.");
}

}  // namespace

void bind_compare(nb::module_& m) {
  bind_agreement(m);
  nb::class_<Comparison> comparison(m, "Comparison", kComparisonDoc);
  comparison
      .def(
          "__init__",
          [](Comparison* self, ObjectArg<RouteSpec> spec, IntArg max_rerouted_rows) {
            new (self)
                Comparison(unwrap(Comparison::create(spec.get("spec"), options_from(max_rerouted_rows))));
          },
          "spec"_a, "max_rerouted_rows"_a = 32)
      .def(
          "add",
          [](Comparison& self, ObjectArg<Routes> a, ObjectArg<Routes> b, OptionalIntArg sequence) {
            unwrap(self.add(a.get("a"), b.get("b"), sequence.get("sequence")));
          },
          "a"_a, "b"_a, "sequence"_a = nb::none(), kAddDoc)
      .def(
          "merge",
          [](Comparison& self, ObjectArg<Comparison> other) { unwrap(self.merge(other.get("other"))); },
          "other"_a,
          "As if what was added to `other` had been added here. Raises SpecMismatchError, and\n"
          "InvalidArgumentError for another max_rerouted_rows.")
      .def(
          "most_rerouted_tokens",
          [](const Comparison& self, IntArg most) { return self.most_rerouted_tokens(most.get("most")); },
          "most"_a,
          "(token, sums) of the tokens with the most rerouted routers, most first; those with none are left "
          "out.")
      .def(
          "__eq__",
          [](const Comparison& self, ObjectArg<Comparison> other) {
            const Comparison* sums = other.get_if();
            return sums != nullptr && self == *sums;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &comparison_repr)
      .def("__getstate__", &comparison_state)
      .def("__setstate__", [](Comparison& self, const SumsState& state) {
        new (&self) Comparison(comparison_from_state(state));
      });
  bind_sums(comparison);
  comparison.attr("__hash__") = nb::none();
  m.def("compare", &compare_records, "a"_a, "b"_a, "max_rerouted_rows"_a = 32, kCompareDoc);
}

}  // namespace moetape::bindings
