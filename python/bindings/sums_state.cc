#include "sums_state.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"

namespace moetape::bindings {
namespace {

using Counts = std::array<int64_t, 8>;
using Reasons = std::array<int64_t, kNumReasons>;
template <class Item>
using SeriesState = std::tuple<int64_t, int64_t, std::vector<Item>>;
using VersionState = std::tuple<std::optional<uint32_t>, std::optional<uint32_t>, Counts>;
using RowState = std::tuple<int64_t, int64_t, std::optional<int32_t>, int32_t, int32_t>;
using ComparisonFields =
    std::tuple<int64_t, std::array<int64_t, 4>, Reasons, Reasons, Counts, std::vector<Counts>,
               SeriesState<Counts>, std::vector<VersionState>, std::vector<std::pair<int32_t, Counts>>,
               std::vector<int64_t>, std::vector<RowState>>;
using StatsFields = std::tuple<int64_t, Reasons, std::vector<std::pair<std::optional<uint32_t>, int64_t>>,
                               Load, SeriesState<Load>, SeriesState<Load>, std::vector<Counts>>;

void require_state(bool fits, const char* what) {
  if (!fits) raise(ErrorCode::kCorruptData, "state: expected {}", what);
}

Counts counts_of(const Agreement& sums) {
  return {sums.num_rows,    sums.num_unequal_rows,    sums.num_rerouted_rows,
          sums.num_routers, sums.num_unequal_routers, sums.num_rerouted_routers,
          sums.num_ids,     sums.num_shared_ids};
}

Agreement agreement_of(const Counts& counts) {
  return {counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], counts[7]};
}

std::vector<Counts> counts_of(const std::vector<Agreement>& sums) {
  std::vector<Counts> result;
  for (const Agreement& one : sums) result.push_back(counts_of(one));
  return result;
}

std::vector<Agreement> agreements_of(const std::vector<Counts>& counts) {
  std::vector<Agreement> result;
  for (const Counts& one : counts) result.push_back(agreement_of(one));
  return result;
}

// Windows as no series has them would be read outside their array.
template <class Sum>
Series<Sum> series_of(int64_t start, int64_t width, std::vector<Sum> windows) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  require_state(width > 0 && std::has_single_bit(static_cast<uint64_t>(width)) && start >= 0 &&
                    start % width == 0 && std::ssize(windows) <= kMostWindows &&
                    std::ssize(windows) - 1 <= (kLast - start) / width,
                "windows of a series");
  return {.start = start, .width = width, .windows = std::move(windows)};
}

Series<Load> load_series(SeriesState<Load>& state, size_t num_counts) {
  auto& [start, width, windows] = state;
  for (const Load& load : windows) {
    require_state(load.empty() || load.size() == num_counts, "a load of this spec in every window");
  }
  return series_of(start, width, std::move(windows));
}

template <class Fields>
std::pair<RouteSpec, Fields> unpack(const SumsState& state) {
  require_state(state.size() == 2, "a spec and its sums");
  const nb::object spec = state[0];
  Fields fields;
  require_state(nb::try_cast(nb::object(state[1]), fields), "sums of integers");
  return {ObjectArg<RouteSpec>{{spec}}.get("spec"), std::move(fields)};
}

template <class Fields>
SumsState pack(const RouteSpec& spec, const Fields& fields) {
  return nb::borrow<SumsState>(nb::make_tuple(spec, fields));
}

}  // namespace

SumsState comparison_state(const Comparison& comparison) {
  std::vector<VersionState> versions;
  for (const auto& [pair, sums] : comparison.by_version)
    versions.emplace_back(pair.a, pair.b, counts_of(sums));
  std::vector<std::pair<int32_t, Counts>> tokens;
  for (const auto& [token, sums] : comparison.by_token) tokens.emplace_back(token, counts_of(sums));
  std::vector<RowState> rows;
  for (const ReroutedRow& row : comparison.rerouted_rows) {
    rows.emplace_back(row.sequence, row.position, row.token, row.num_rerouted_routers,
                      row.num_unequal_routers);
  }
  const Series<Agreement>& positions = comparison.by_position;
  return pack(
      comparison.spec,
      ComparisonFields(comparison.options.max_rerouted_rows,
                       {comparison.num_sequences, comparison.num_rows_only_in_a,
                        comparison.num_rows_only_in_b, comparison.num_rows_in_neither},
                       comparison.missing_in_a, comparison.missing_in_b, counts_of(comparison.total),
                       counts_of(comparison.by_layer),
                       {positions.start, positions.width, counts_of(positions.windows)}, std::move(versions),
                       std::move(tokens), comparison.rows_by_rerouted_routers, std::move(rows)));
}

Comparison comparison_from_state(const SumsState& state) {
  auto [spec, fields] = unpack<ComparisonFields>(state);
  auto& [max_rerouted_rows, rows, missing_in_a, missing_in_b, total, layers, positions, versions, tokens,
         by_rerouted, rerouted_rows] = fields;
  Comparison comparison = unwrap(Comparison::create(spec, {.max_rerouted_rows = max_rerouted_rows}));
  require_state(layers.size() == comparison.by_layer.size() &&
                    by_rerouted.size() == comparison.rows_by_rerouted_routers.size() &&
                    std::ssize(rerouted_rows) <= max_rerouted_rows,
                "one sum for every layer");
  comparison.num_sequences = rows[0];
  comparison.num_rows_only_in_a = rows[1];
  comparison.num_rows_only_in_b = rows[2];
  comparison.num_rows_in_neither = rows[3];
  comparison.missing_in_a = missing_in_a;
  comparison.missing_in_b = missing_in_b;
  comparison.total = agreement_of(total);
  comparison.by_layer = agreements_of(layers);
  comparison.by_position =
      series_of(std::get<0>(positions), std::get<1>(positions), agreements_of(std::get<2>(positions)));
  for (const auto& [a, b, counts] : versions) comparison.by_version[{a, b}] = agreement_of(counts);
  for (const auto& [token, counts] : tokens) comparison.by_token[token] = agreement_of(counts);
  comparison.rows_by_rerouted_routers = std::move(by_rerouted);
  for (const auto& [sequence, position, token, rerouted, unequal] : rerouted_rows) {
    comparison.rerouted_rows.push_back({sequence, position, token, rerouted, unequal});
  }
  return comparison;
}

SumsState stats_state(const Stats& stats) {
  return pack(
      stats.spec,
      StatsFields(stats.num_sequences, stats.rows_by_reason,
                  {stats.rows_by_version.begin(), stats.rows_by_version.end()}, stats.load,
                  {stats.load_by_version.start, stats.load_by_version.width, stats.load_by_version.windows},
                  {stats.load_by_row.start, stats.load_by_row.width, stats.load_by_row.windows},
                  counts_of(stats.reuse)));
}

Stats stats_from_state(const SumsState& state) {
  auto [spec, fields] = unpack<StatsFields>(state);
  auto& [num_sequences, rows_by_reason, versions, load, by_version, by_row, reuse] = fields;
  Stats stats = unwrap(Stats::create(spec));
  require_state(load.size() == stats.load.size() && reuse.size() == stats.reuse.size(),
                "a load of this spec");
  stats.num_sequences = num_sequences;
  stats.rows_by_reason = rows_by_reason;
  stats.rows_by_version = {versions.begin(), versions.end()};
  stats.load_by_version = load_series(by_version, load.size());
  stats.load_by_row = load_series(by_row, load.size());
  stats.load = std::move(load);
  stats.reuse = agreements_of(reuse);
  return stats;
}

}  // namespace moetape::bindings
