#include <algorithm>
#include <tuple>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "compare/pair_adder.h"
#include "compare/series.h"
#include "moetape/compare.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

Status check_tokens(const Routes& a, const Routes& b) {
  if (!a.has_tokens() || !b.has_tokens()) return {};
  const int64_t end = std::min(a.end(), b.end());
  for (int64_t position = std::max(a.start(), b.start()); position < end; ++position) {
    const int32_t in_a = a.tokens()[static_cast<size_t>(position - a.start())];
    const int32_t in_b = b.tokens()[static_cast<size_t>(position - b.start())];
    if (in_a == in_b) continue;
    return fail(
        ErrorCode::kConflict,
        "b: position {}: expected token {}, which a has there, got {}: these are no records of the same "
        "tokens",
        position, in_a, in_b);
  }
  return {};
}

template <class Map>
void add_map(Map& to, const Map& from) {
  for (const auto& [key, agreement] : from) to[key] += agreement;
}

}  // namespace

Result<Comparison> Comparison::create(const RouteSpec& spec, const CompareOptions& options) {
  if (options.max_rerouted_rows < 0) {
    return fail(ErrorCode::kInvalidArgument, "max_rerouted_rows: expected 0 or more, got {}",
                options.max_rerouted_rows);
  }
  return guard_memory("comparison", [&]() -> Result<Comparison> {
    const auto num_layers = static_cast<size_t>(spec.num_moe_layers());
    Comparison comparison{.spec = spec, .options = options};
    comparison.by_layer.resize(num_layers);
    comparison.rows_by_rerouted_routers.resize(num_layers + 1);
    return comparison;
  });
}

Status Comparison::add(const Routes& a, const Routes& b, std::optional<int64_t> sequence) {
  MOETAPE_TRY(check_same_spec("a", spec, a.spec()));
  MOETAPE_TRY(check_same_spec("b", spec, b.spec()));
  MOETAPE_TRY(check_tokens(a, b));
  return guard_memory("comparison", [&]() -> Status {
    PairAdder(*this, a, b, sequence.value_or(num_sequences)).add();
    return {};
  });
}

Status Comparison::merge(const Comparison& other) {
  MOETAPE_TRY(check_same_spec("other", spec, other.spec));
  if (options != other.options) {
    return fail(ErrorCode::kInvalidArgument, "other: expected max_rerouted_rows of {}, got {}",
                options.max_rerouted_rows, other.options.max_rerouted_rows);
  }
  return guard_memory("comparison", [&]() -> Status {
    num_sequences += other.num_sequences;
    num_rows_only_in_a += other.num_rows_only_in_a;
    num_rows_only_in_b += other.num_rows_only_in_b;
    num_rows_in_neither += other.num_rows_in_neither;
    add_counts(missing_in_a, other.missing_in_a);
    add_counts(missing_in_b, other.missing_in_b);
    total += other.total;
    for (size_t layer = 0; layer < by_layer.size(); ++layer) by_layer[layer] += other.by_layer[layer];
    add_series(by_position, other.by_position, kMostWindows);
    add_map(by_version, other.by_version);
    add_map(by_token, other.by_token);
    add_counts(rows_by_rerouted_routers, other.rows_by_rerouted_routers);
    const std::vector<ReroutedRow> rows = other.rerouted_rows;  // which may be our own
    for (const ReroutedRow& row : rows) keep_rerouted(*this, row);
    return {};
  });
}

std::vector<std::pair<int32_t, Agreement>> Comparison::most_rerouted_tokens(int64_t most) const {
  std::vector<std::pair<int32_t, Agreement>> tokens;
  for (const auto& entry : by_token) {
    if (entry.second.num_rerouted_routers > 0) tokens.emplace_back(entry);
  }
  std::ranges::sort(tokens, {}, [](const auto& entry) {
    return std::tuple(-entry.second.num_rerouted_routers, entry.first);
  });
  if (std::ssize(tokens) > most) tokens.resize(static_cast<size_t>(std::max<int64_t>(most, 0)));
  return tokens;
}

}  // namespace moetape::inline v0
