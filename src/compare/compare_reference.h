// The slow, plain comparison and stats that tests compare with: one row, one list, one id at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "moetape/compare.h"
#include "moetape/stats.h"
#include "routes/routes_reference.h"

namespace moetape::inline v0 {

inline std::ostream& operator<<(std::ostream& out, const Agreement& sums) {
  return out << fmt::format("rows {}/{}/{}, routers {}/{}/{}, ids {}/{}", sums.num_rows,
                            sums.num_unequal_rows, sums.num_rerouted_rows, sums.num_routers,
                            sums.num_unequal_routers, sums.num_rerouted_routers, sums.num_ids,
                            sums.num_shared_ids);
}

inline std::ostream& operator<<(std::ostream& out, const ReroutedRow& row) {
  return out << fmt::format("sequence {} position {} token {}: {} rerouted, {} unequal", row.sequence,
                            row.position, row.token.value_or(-1), row.num_rerouted_routers,
                            row.num_unequal_routers);
}

template <class Sum>
std::ostream& operator<<(std::ostream& out, const Series<Sum>& series) {
  return out << fmt::format("from {}, {} windows of {}", series.start, series.windows.size(), series.width);
}

namespace reference {

using List = std::vector<int>;

inline List list_of(const RouteSpec& spec, const Row& row, int32_t layer) {
  const auto first = row.ids.begin() + layer * spec.top_k();
  return {first, first + spec.top_k()};
}

inline int64_t num_shared(const List& a, List b) {
  int64_t shared = 0;
  for (const int id : a) {
    const auto found = std::ranges::find(b, id);
    if (found == b.end()) continue;
    b.erase(found);
    ++shared;
  }
  return shared;
}

inline Agreement compare_lists(const List& a, const List& b) {
  const int64_t shared = num_shared(a, b);
  const int64_t unequal = a != b ? 1 : 0;
  const int64_t rerouted = shared != std::ssize(a) ? 1 : 0;
  return {1, unequal, rerouted, 1, unequal, rerouted, std::ssize(a), shared};
}

// The routers of one row together.
inline Agreement join_layers(std::span<const Agreement> layers) {
  Agreement row;
  for (const Agreement& layer : layers) row += layer;
  row.num_rows = 1;
  row.num_unequal_rows = std::min<int64_t>(row.num_unequal_rows, 1);
  row.num_rerouted_rows = std::min<int64_t>(row.num_rerouted_rows, 1);
  return row;
}

inline std::vector<Agreement> compare_rows(const RouteSpec& spec, const Row& a, const Row& b) {
  std::vector<Agreement> layers;
  for (int32_t layer = 0; layer < spec.num_moe_layers(); ++layer) {
    layers.push_back(compare_lists(list_of(spec, a, layer), list_of(spec, b, layer)));
  }
  return layers;
}

// Sums by value, cut into the fewest doublings that give at most `most` windows.
template <class Sum, class Add>
Series<Sum> series_of(const std::map<int64_t, Sum>& sums, int64_t most, Add add) {
  Series<Sum> series;
  if (sums.empty()) return series;
  const int64_t first = sums.begin()->first;
  const int64_t last = sums.rbegin()->first;
  while (last / series.width - first / series.width + 1 > most) series.width *= 2;
  series.start = first - first % series.width;
  series.windows.resize(static_cast<size_t>(last / series.width - first / series.width + 1));
  for (const auto& [value, sum] : sums) {
    add(series.windows[static_cast<size_t>((value - series.start) / series.width)], sum);
  }
  return series;
}

struct Pair {
  Table a;
  Table b;
};

inline void count_missing(const Row* a, const Row* b, Comparison& in) {
  const Reason in_a = a == nullptr ? Reason::kGap : a->reason;
  const Reason in_b = b == nullptr ? Reason::kGap : b->reason;
  if (in_a != Reason::kValid) ++in.missing_in_a[static_cast<size_t>(in_a)];
  if (in_b != Reason::kValid) ++in.missing_in_b[static_cast<size_t>(in_b)];
  if (in_a == Reason::kValid && in_b != Reason::kValid) ++in.num_rows_only_in_a;
  if (in_a != Reason::kValid && in_b == Reason::kValid) ++in.num_rows_only_in_b;
  if (in_a != Reason::kValid && in_b != Reason::kValid) ++in.num_rows_in_neither;
}

inline Comparison compare(const RouteSpec& spec, const CompareOptions& options, std::span<const Pair> pairs) {
  Comparison result{.spec = spec, .options = options, .num_sequences = std::ssize(pairs)};
  result.by_layer.resize(static_cast<size_t>(spec.num_moe_layers()));
  result.rows_by_rerouted_routers.resize(result.by_layer.size() + 1);
  std::map<int64_t, Agreement> by_position;
  for (int64_t sequence = 0; sequence < std::ssize(pairs); ++sequence) {
    const auto& [a, b] = pairs[static_cast<size_t>(sequence)];
    for (int64_t position = 0; position < std::max(a.end(), b.end()); ++position) {
      const Row* in_a = a.find(position);
      const Row* in_b = b.find(position);
      if (in_a == nullptr && in_b == nullptr) continue;
      count_missing(in_a, in_b, result);
      if (in_a == nullptr || in_a->reason != Reason::kValid) continue;
      if (in_b == nullptr || in_b->reason != Reason::kValid) continue;
      const std::vector<Agreement> layers = compare_rows(spec, *in_a, *in_b);
      const Agreement row = join_layers(layers);
      for (size_t layer = 0; layer < layers.size(); ++layer) result.by_layer[layer] += layers[layer];
      result.total += row;
      by_position[position] += row;
      result.by_version[{in_a->version, in_b->version}] += row;
      const std::optional<int32_t> token = in_a->token ? in_a->token : in_b->token;
      if (token) result.by_token[*token] += row;
      ++result.rows_by_rerouted_routers[static_cast<size_t>(row.num_rerouted_routers)];
      if (row.num_rerouted_rows == 0) continue;
      result.rerouted_rows.push_back({sequence, position, token,
                                      static_cast<int32_t>(row.num_rerouted_routers),
                                      static_cast<int32_t>(row.num_unequal_routers)});
    }
  }
  result.by_position =
      series_of(by_position, kMostWindows, [](Agreement& to, const Agreement& from) { to += from; });
  std::ranges::sort(result.rerouted_rows, [](const ReroutedRow& x, const ReroutedRow& y) {
    return std::tuple(y.num_rerouted_routers, y.num_unequal_routers, x.sequence, x.position) <
           std::tuple(x.num_rerouted_routers, x.num_unequal_routers, y.sequence, y.position);
  });
  if (std::ssize(result.rerouted_rows) > options.max_rerouted_rows) {
    result.rerouted_rows.resize(static_cast<size_t>(options.max_rerouted_rows));
  }
  return result;
}

// As if all were added one after another.
inline Stats stats(const RouteSpec& spec, std::span<const Table> tables, int64_t most_windows) {
  Stats result{.spec = spec, .num_sequences = std::ssize(tables)};
  const auto num_layers = static_cast<size_t>(spec.num_moe_layers());
  const auto num_experts = static_cast<size_t>(spec.num_experts());
  result.load.resize(num_layers * num_experts);
  result.reuse.resize(num_layers);
  std::map<int64_t, Load> by_version;
  std::map<int64_t, Load> by_row;
  int64_t num_rows = 0;
  const auto add = [](Load& to, const Load& from) {
    if (!from.empty()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  for (const Table& table : tables) {
    const Row* before = nullptr;
    for (const Row& row : table.rows) {
      Load load(result.load.size());
      ++result.rows_by_reason[static_cast<size_t>(row.reason)];
      for (size_t i = 0; i < row.ids.size(); ++i) {
        const size_t layer = i / static_cast<size_t>(spec.top_k());
        ++load[layer * num_experts + static_cast<size_t>(row.ids[i])];
      }
      add(result.load, load);
      if (row.reason == Reason::kValid) {
        ++result.rows_by_version[row.version];
        if (row.version) add(by_version[*row.version], load);
        if (before != nullptr && before->reason == Reason::kValid) {
          const std::vector<Agreement> layers = compare_rows(spec, row, *before);
          for (size_t layer = 0; layer < num_layers; ++layer) result.reuse[layer] += layers[layer];
        }
      }
      by_row[num_rows++] = row.reason == Reason::kValid ? load : Load();
      before = &row;
    }
  }
  result.load_by_version = series_of(by_version, most_windows, add);
  result.load_by_row = series_of(by_row, most_windows, add);
  return result;
}

}  // namespace reference
}  // namespace moetape::inline v0
