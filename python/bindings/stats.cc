#include "moetape/stats.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "sums.h"
#include "sums_state.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kBalanceDoc =
    R"(How evenly a load (how often each of E experts was chosen) is spread. Made by moetape.balance.)";

constexpr const char* kStatsDoc =
    R"(What records hold, and how evenly they load the experts: sums over valid rows, so that those of parts merge into
that of the whole. Memory is bounded by the spec and by how many different versions there are. Made whole by
moetape.stats.)";

constexpr const char* kStatsFunctionDoc =
    R"(The Stats of one record, or of an iterable of them, which is not kept. Long records release the GIL.

Raises InvalidArgumentError for an empty iterable, SpecMismatchError.)";

// A copy: what is added later does not show in it.
nb::object load_array(const RouteSpec& spec, const Load& load) {
  auto owner = std::make_shared<Load>(load);
  owner->resize(static_cast<size_t>(spec.num_moe_layers()) * static_cast<size_t>(spec.num_experts()));
  return numpy_view(owner->data(), IntType::kInt64, {spec.num_moe_layers(), spec.num_experts()}, owner,
                    Access::kReadOnly);
}

nb::list load_windows(const RouteSpec& spec, const Series<Load>& series) {
  return windows_of(series, [&](const Load& load) { return load_array(spec, load); });
}

std::optional<Balance> balance(ArrayArg load_arg) {
  const Integers<int64_t> load(load_arg.object, "load");
  for (const int64_t times : load.span()) {
    if (times < 0) raise(ErrorCode::kInvalidArgument, "load: expected counts of 0 or more, got {}", times);
  }
  return balance_of(load.span());
}

nb::dict balances(const Stats& stats) {
  std::vector<std::optional<Balance>> layers;
  for (int32_t column = 0; column < stats.spec.num_moe_layers(); ++column) {
    layers.push_back(balance_of(stats.layer_load(stats.load, column)));
  }
  return by_layer(stats.spec, layers);
}

nb::dict sizes(const Stats& stats) {
  const Stats::Bytes bytes = stats.bytes();
  nb::dict result;
  result["narrow"] = bytes.narrow;
  result["bitpacked"] = bytes.bitpacked;
  result["int32"] = bytes.int32;
  return result;
}

Stats stats_of(RecordsArg routes_arg) {
  Records records(routes_arg, "routes");
  std::optional<Stats> stats;
  while (const std::optional<Routes> routes = records.next()) {
    if (!stats) stats = unwrap(Stats::create(routes->spec()));
    unwrap(long_call(work_of(*routes), [&] { return stats->add(*routes); }));
  }
  if (!stats) raise(ErrorCode::kInvalidArgument, "routes: expected at least one record, got none");
  return *std::move(stats);
}

void bind_balance(nb::module_& m) {
  nb::class_<Balance>(m, "Balance", kBalanceDoc)
      .def_ro("max_over_mean", &Balance::max_over_mean, "Busiest expert / mean, 1 .. E; MaxVio is this - 1.")
      .def_ro("variation", &Balance::variation, "Standard deviation / mean.")
      .def_ro("entropy", &Balance::entropy, "Of the shares, / log E: 1 when even, 0 when one expert has all.")
      .def_ro("gini", &Balance::gini, "0 when even, 1 - 1/E when one expert has all.")
      .def_ro("num_unused", &Balance::num_unused, "Experts that were never chosen.")
      .def("__repr__", [](const Balance& self) {
        return fmt::format(
            "Balance(max_over_mean={:.4g}, variation={:.4g}, entropy={:.4g}, gini={:.4g}, "
            "num_unused={})",
            self.max_over_mean, self.variation, self.entropy, self.gini, self.num_unused);
      });
  m.def("balance", &balance, "load"_a,
        "The Balance of a load, integers [experts] of 0 or more; None where nothing was chosen.");
}

void bind_sums(nb::class_<Stats>& stats) {
  stats.def_ro("spec", &Stats::spec, "The RouteSpec.")
      .def_ro("num_sequences", &Stats::num_sequences, "Records added.")
      .def_prop_ro("num_rows", &Stats::num_rows)
      .def_prop_ro("num_valid_rows", &Stats::num_valid_rows)
      .def_prop_ro(
          "missing", [](const Stats& self) { return reason_counts(self.rows_by_reason); },
          nb::sig("def missing(self) -> dict[str, int]"), "Missing rows by reason.")
      .def_prop_ro(
          "rows_by_version", [](const Stats& self) { return self.rows_by_version; },
          "Valid rows; None = rows that carry no version.")
      .def_prop_ro(
          "load", [](const Stats& self) { return load_array(self.spec, self.load); },
          nb::sig("def load(self) -> numpy.typing.NDArray[numpy.int64]"),
          "How often each expert was chosen, [layers, num_experts]; a copy.")
      .def_prop_ro(
          "load_by_version", [](const Stats& self) { return load_windows(self.spec, self.load_by_version); },
          nb::sig("def load_by_version(self) -> list[tuple[int, int, numpy.typing.NDArray[numpy.int64]]]"),
          "(first version, one behind the last, load): at most 64 windows of one width, a power of two.")
      .def_prop_ro(
          "load_by_row", [](const Stats& self) { return load_windows(self.spec, self.load_by_row); },
          nb::sig("def load_by_row(self) -> list[tuple[int, int, numpy.typing.NDArray[numpy.int64]]]"),
          "The same over rows in the order in which they were added, missing ones too.")
      .def_prop_ro("balance", &balances, nb::sig("def balance(self) -> dict[int, Balance | None]"),
                   "Of `load`, by global layer; None where nothing was chosen.")
      .def_prop_ro(
          "reuse", [](const Stats& self) { return by_layer(self.spec, self.reuse); },
          nb::sig("def reuse(self) -> dict[int, Agreement]"),
          "By global layer: every valid row against the row before it. overlap is the share of experts that\n"
          "neighbouring tokens have in common (by chance: top_k / num_experts).")
      .def_prop_ro("bytes", &sizes, nb::sig("def bytes(self) -> dict[str, int]"),
                   "All rows in each form: narrow (as kept), bitpacked, int32.");
}

}  // namespace

void bind_stats(nb::module_& m) {
  bind_balance(m);
  nb::class_<Stats> stats(m, "Stats", kStatsDoc);
  stats
      .def(
          "__init__",
          [](Stats* self, ObjectArg<RouteSpec> spec) {
            new (self) Stats(unwrap(Stats::create(spec.get("spec"))));
          },
          "spec"_a)
      .def(
          "add", [](Stats& self, ObjectArg<Routes> routes) { unwrap(self.add(routes.get("routes"))); },
          "routes"_a,
          "One sequence, or a part of one. Keeps the GIL. Raises SpecMismatchError; a failed call adds "
          "nothing.")
      .def(
          "merge", [](Stats& self, ObjectArg<Stats> other) { unwrap(self.merge(other.get("other"))); },
          "other"_a,
          "Sums of both; along load_by_row the two lie side by side, as of ranks that ran at the same time.\n"
          "Raises SpecMismatchError.")
      .def(
          "__eq__",
          [](const Stats& self, ObjectArg<Stats> other) {
            const Stats* sums = other.get_if();
            return sums != nullptr && self == *sums;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__",
           [](const Stats& self) {
             return fmt::format("Stats({} sequences, {} rows, {} valid)", self.num_sequences, self.num_rows(),
                                self.num_valid_rows());
           })
      .def("__getstate__", &stats_state)
      .def("__setstate__",
           [](Stats& self, const SumsState& state) { new (&self) Stats(stats_from_state(state)); });
  stats.attr("__hash__") = nb::none();
  bind_sums(stats);
  m.def("stats", &stats_of, "routes"_a, kStatsFunctionDoc);
}

}  // namespace moetape::bindings
