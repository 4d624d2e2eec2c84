#include "diagnose/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "diagnose/evidence.h"

namespace moetape::inline v0 {
namespace {

constexpr int kMostRounds = 4;
constexpr size_t kFewestRows = 4;
constexpr int64_t kFewestInPlace = 16;
constexpr size_t kMostMoves = 8;
constexpr int64_t kShortestRun = 8;
constexpr size_t kMostShifts = 8;

using Rows = std::vector<int64_t>;

ColumnMap restricted(const ColumnMap& map, const std::vector<bool>& columns) {
  ColumnMap result(map);
  for (size_t column = 0; column < result.size(); ++column) {
    if (!columns[column]) result[column] = -1;
  }
  return result;
}

Rows explained_by(const Records& records, const Rows& rows, const std::vector<int64_t>& from,
                  const ColumnPairs& columns) {
  Rows explained;
  for (const int64_t row : rows) {
    if (holds(records, row, from[static_cast<size_t>(row)], columns)) explained.push_back(row);
  }
  return explained;
}

// Whether a full count may be worth its time: some of the rows, and of the columns.
bool is_promising(const Records& records, const Rows& rows, const std::vector<int64_t>& from,
                  const ColumnPairs& columns) {
  constexpr size_t kMostRows = 128;
  constexpr size_t kMostColumns = 16;
  ColumnPairs some;
  const size_t column_step = (columns.size() + kMostColumns - 1) / kMostColumns;
  for (size_t i = 0; i < columns.size(); i += column_step) some.push_back(columns[i]);
  const size_t row_step = (rows.size() + kMostRows - 1) / kMostRows;
  size_t num_looked_at = 0;
  size_t num_explained = 0;
  for (size_t i = 0; i < rows.size(); i += row_step, ++num_looked_at) {
    if (holds(records, rows[i], from[static_cast<size_t>(rows[i])], some)) ++num_explained;
  }
  return num_explained > 0 && num_explained * 8 >= num_looked_at;
}

void take_out(Rows& rows, const Rows& taken) {
  Rows rest;
  std::ranges::set_difference(rows, taken, std::back_inserter(rest));
  rows = std::move(rest);
}

std::vector<int32_t> layers_of(const RecordSide& side, std::span<const int32_t> columns) {
  std::vector<int32_t> layers;
  for (const int32_t column : columns) layers.push_back(side.layers[static_cast<size_t>(column)]);
  return layers;
}

std::string experts_text(const Records& records, const ExpertMaps& maps) {
  constexpr size_t kMostExamples = 4;
  const auto& [column, map] = *maps.begin();
  std::vector<std::string> examples;
  int64_t num_moved = 0;
  for (size_t id = 0; id < map.size(); ++id) {
    if (map[id] < 0 || map[id] == static_cast<int32_t>(id)) continue;
    ++num_moved;
    if (examples.size() < kMostExamples) examples.push_back(fmt::format("b's {} is a's {}", id, map[id]));
  }
  const bool one_map =
      maps.size() > 1 && std::ranges::all_of(maps, [&](const auto& entry) { return entry.second == map; });
  return fmt::format("b numbers the experts of {} layers otherwise{}; layer {}: {} experts, {}{}",
                     maps.size(), one_map ? ", all alike" : "", records.b.layers[static_cast<size_t>(column)],
                     num_moved, fmt::join(examples, ", "), num_moved > std::ssize(examples) ? ", ..." : "");
}

}  // namespace

Search::Search(Records records)
    : records_(std::move(records)), same_(same_layers(records_)), same_pairs_(pairs_of(same_)) {}

Diagnosis Search::run() && {
  find_constant_layers();
  Rows rows = sort_rows();
  const std::vector<bool> all(records_.b.layers.size(), true);
  for (int round = 0; round < kMostRounds && explain(rows, all, true); ++round) {
  }
  diagnosis_.num_unexplained = std::ssize(rows);
  explain_layers();
  find_order();
  return std::move(diagnosis_);
}

void Search::find_constant_layers() {
  const std::vector<int32_t> columns = constant_columns(records_);
  if (columns.empty()) return;
  for (const int32_t column : columns) same_[static_cast<size_t>(column)] = -1;
  same_pairs_ = pairs_of(same_);
  const auto num_rows =
      std::ranges::count_if(records_.b.rows, [](const std::byte* row) { return row != nullptr; });
  const std::vector<int32_t> layers = layers_of(records_.b, columns);
  Cause cause{.kind = CauseKind::kLayersConstant,
              .text = fmt::format("layers {} of b hold the same list in every row: nobody captured them",
                                  fmt::join(layers, ", ")),
              .num_rows = num_rows,
              .num_explained = num_rows};
  for (const int32_t layer : layers) cause.layers.emplace_back(layer, -1);
  diagnosis_.causes.push_back(std::move(cause));
}

// Counts all rows, and gives those that are out of place.
Search::Rows Search::sort_rows() {
  Rows out_of_place;
  Rows lonely;  // rows of b at whose index a has none
  for (int64_t row = 0; row < records_.num_rows; ++row) {
    const bool aligned = records_.aligned(row);
    const bool in_a = records_.a.has(row);
    const bool in_b = records_.b.has(row);
    if (!aligned) {
      diagnosis_.num_rows_only_in_a += in_a ? 1 : 0;
      diagnosis_.num_rows_only_in_b += in_b ? 1 : 0;
      if (in_b) out_of_place.push_back(row);
    } else if (in_a && in_b) {
      ++diagnosis_.num_rows;
      const bool constant = same_pairs_.empty() && !diagnosis_.causes.empty();
      if (constant) continue;  // said already
      (holds(records_, row, row, same_pairs_) ? in_place_ : out_of_place).push_back(row);
    } else if (in_a || in_b) {
      ++(in_a ? diagnosis_.num_rows_only_in_a : diagnosis_.num_rows_only_in_b);
      if (in_b) lonely.push_back(row);
    }
  }
  diagnosis_.num_in_place = std::ssize(in_place_);
  if (diagnosis_.num_rows == 0 && out_of_place.empty()) return lonely;
  std::vector<int64_t> from(static_cast<size_t>(records_.num_rows));
  std::iota(from.begin(), from.end(), int64_t{0});
  keep(in_place_, from, {same_pairs_, {}});
  return out_of_place;
}

bool Search::explain(Rows& rows, const std::vector<bool>& columns, bool all_columns) {
  if (rows.size() < kFewestRows) return false;
  return explain_by_maps(rows, columns, all_columns) || explain_by_experts(rows, columns);
}

bool Search::explain_by_maps(Rows& rows, const std::vector<bool>& columns, bool all_columns) {
  const Attempt best = best_attempt(rows, columns);
  if (best.explained.empty()) return false;
  const ColumnPairs pairs = pairs_of(best.layers.from);
  const double chance = chance_of(records_, rows, pairs);
  if (!is_evidence(std::ssize(best.explained), std::ssize(rows), chance, best.log2_tries)) return false;
  add_causes(best, std::ssize(rows), columns, all_columns);
  keep(best.explained, best.rows.from, {pairs, {}});
  take_out(rows, best.explained);
  return true;
}

Search::Attempt Search::best_attempt(const Rows& rows, const std::vector<bool>& columns) {
  Attempt best;
  const LayerMap same{.from = restricted(same_, columns)};
  const auto num_columns = static_cast<size_t>(std::ranges::count(columns, true));
  const auto is_enough = [&] { return best.num_lists * 10 >= rows.size() * num_columns * 9; };
  try_row_maps(rows, same, true, best);
  if (is_enough()) return best;
  for (const LayerMap& layers : likely_layer_maps(records_, rows, columns)) {
    try_row_maps(rows, layers, false, best);
    if (is_enough()) return best;
  }
  const bool is_shift = best.explained.empty() || best.rows.kind == CauseKind::kRowsShifted;
  if (is_shift) try_runs(rows, best.explained.empty() ? same : LayerMap(best.layers), best.same_layers, best);
  return best;
}

void Search::try_row_maps(const Rows& rows, const LayerMap& layers, bool same, Attempt& best) {
  const ColumnPairs pairs = pairs_of(layers.from);
  if (pairs.empty()) return;
  const bool is_simple = same || layers.is_shift;
  int64_t num_tried = 0;
  const auto consider = [&](RowMap map, bool same_rows) {
    ++num_tried;
    if (!is_promising(records_, rows, map.from, pairs)) return;
    Rows explained = explained_by(records_, rows, map.from, pairs);
    const size_t num_lists = explained.size() * pairs.size();
    // A map of every layer for itself must be worth more than the simple one.
    if (num_lists * 5 <= best.num_lists * (is_simple ? 5 : 6)) return;
    best = Attempt{layers, same, std::move(map), same_rows, std::move(explained), num_lists};
  };
  consider(shift_map(records_, 0), true);
  for (const int64_t shift : RowIndex(records_, pairs).likely_shifts(rows, kMostShifts)) {
    if (shift != 0) consider(shift_map(records_, shift), false);
  }
  num_tried += 2 * records_.num_rows;  // shifts that were not likely
  visit_row_maps(records_, [&](RowMap map) { consider(std::move(map), false); });
  best.log2_tries = best.layers.log2_tries + std::log2(static_cast<double>(num_tried));
}

// Rows moved by different distances; only long runs count, so that chance has little part in it.
void Search::try_runs(const Rows& rows, const LayerMap& layers, bool same, Attempt& best) {
  const ColumnPairs pairs = pairs_of(layers.from);
  if (pairs.empty()) return;
  const std::vector<int64_t> from = RowIndex(records_, pairs).runs(rows, kShortestRun);
  Attempt attempt{.layers = layers, .same_layers = same};
  attempt.log2_tries = layers.log2_tries + std::log2(static_cast<double>(records_.num_rows));
  attempt.rows.from.assign(static_cast<size_t>(records_.num_rows), -1);
  for (size_t i = 0; i < rows.size(); ++i) {
    attempt.rows.from[static_cast<size_t>(rows[i])] = from[i];
  }
  attempt.explained = explained_by(records_, rows, attempt.rows.from, pairs);
  if (attempt.explained.size() * 5 > best.explained.size() * 6) best = std::move(attempt);
}

std::vector<RowMove> Search::moves_of(const Attempt& attempt) const {
  std::vector<RowMove> moves;
  for (const int64_t row : attempt.explained) {
    const int64_t from = attempt.rows.from[static_cast<size_t>(row)];
    const int64_t in_b = records_.sequence_of(row);
    const int64_t in_a = records_.sequence_of(from);
    const RecordSequence& of_b = records_.sequences[static_cast<size_t>(in_b)];
    const RecordSequence& of_a = records_.sequences[static_cast<size_t>(in_a)];
    const RowMove move{in_b, of_b.start_b + row - of_b.first, in_a, of_a.start_a + from - of_a.first, 1};
    RowMove* last = moves.empty() ? nullptr : &moves.back();
    if (last != nullptr && last->sequence == move.sequence && last->from_sequence == move.from_sequence &&
        last->position + last->num_rows == move.position &&
        last->from_position + last->num_rows == move.from_position) {
      ++last->num_rows;
    } else {
      moves.push_back(move);
    }
  }
  return moves;
}

Cause Search::row_cause(const Attempt& attempt, int64_t num_rows) const {
  Cause cause{.kind = attempt.rows.kind,
              .text = attempt.rows.text,
              .num_rows = num_rows,
              .num_explained = std::ssize(attempt.explained),
              .size = attempt.rows.size,
              .moves = moves_of(attempt)};
  if (cause.kind == CauseKind::kRowsShifted) {
    const RowMove& first = cause.moves.front();
    cause.shift = first.from_position - first.position;
    const bool one_shift = std::ranges::all_of(cause.moves, [&](const RowMove& move) {
      return move.sequence == move.from_sequence && move.from_position - move.position == cause.shift;
    });
    if (one_shift) {
      cause.text = fmt::format("position p of b holds position p {} {} of a", cause.shift < 0 ? "-" : "+",
                               std::abs(cause.shift));
    } else {
      cause.kind = CauseKind::kRowsElsewhere;
      cause.shift = 0;
      cause.text = fmt::format("{} runs of rows of b stand at other places in a", cause.moves.size());
    }
  }
  if (cause.moves.size() > kMostMoves) cause.moves.resize(kMostMoves);
  return cause;
}

void Search::add_causes(const Attempt& attempt, int64_t num_rows, const std::vector<bool>& columns,
                        bool all_columns) {
  std::vector<std::pair<int32_t, int32_t>> layers;
  for (size_t column = 0; column < columns.size(); ++column) {
    if (!columns[column]) continue;
    const int32_t in_a = attempt.layers.from[column];
    layers.emplace_back(records_.b.layers[column],
                        in_a < 0 ? -1 : records_.a.layers[static_cast<size_t>(in_a)]);
  }
  // With neither moved, sequences did not meet, and their rows are where the other's are.
  if (!attempt.same_rows || attempt.same_layers) {
    Cause cause = row_cause(attempt, num_rows);
    if (!all_columns) cause.layers = layers;
    diagnosis_.causes.push_back(std::move(cause));
  }
  if (attempt.same_layers) return;
  diagnosis_.causes.push_back(
      {.kind = attempt.layers.shift ? CauseKind::kLayersShifted : CauseKind::kLayersElsewhere,
       .text = attempt.layers.text,
       .num_rows = num_rows,
       .num_explained = std::ssize(attempt.explained),
       .shift = attempt.layers.shift.value_or(0),
       .layers = std::move(layers)});
}

// Learns from every second row and is held against the others.
bool Search::explain_by_experts(Rows& rows, const std::vector<bool>& columns) {
  const ColumnPairs pairs = pairs_of(restricted(same_, columns));
  Rows lessons;
  Rows tests;
  for (size_t i = 0; i < rows.size(); ++i) (i % 2 == 0 ? lessons : tests).push_back(rows[i]);
  std::optional<ExpertMaps> maps = learn_experts(records_, lessons, pairs);
  if (!maps || maps->empty()) return false;
  std::vector<int64_t> from(static_cast<size_t>(records_.num_rows));
  std::iota(from.begin(), from.end(), int64_t{0});
  apply_experts(*maps, rows, records_);
  const Rows passed = explained_by(records_, tests, from, pairs);
  const bool found = is_evidence(std::ssize(passed), std::ssize(tests), chance_of(records_, tests, pairs), 0);
  Rows explained = found ? explained_by(records_, rows, from, pairs) : Rows();
  const auto num_rows = std::ssize(rows);
  take_out(rows, explained);
  number_lists(rows, records_.b);
  if (!found) return false;
  Cause cause{.kind = CauseKind::kExpertsMapped,
              .text = experts_text(records_, *maps),
              .num_rows = num_rows,
              .num_explained = std::ssize(explained)};
  for (const auto& [column, map] : *maps) {
    cause.experts.emplace(records_.b.layers[static_cast<size_t>(column)], map);
  }
  diagnosis_.causes.push_back(std::move(cause));
  keep(explained, from, {pairs, *std::move(maps)});
  return true;
}

// Single layers that differ in rows that are in place by the others.
void Search::explain_layers() {
  if (in_place_.size() < kFewestRows || std::ssize(in_place_) * 4 < diagnosis_.num_rows) return;
  std::vector<int64_t> num_equal(same_.size());
  int64_t total = 0;
  for (const auto& [of_b, of_a] : same_pairs_) {
    int64_t& equal = num_equal[static_cast<size_t>(of_b)];
    for (const int64_t row : in_place_) {
      if (records_.b.list(row, of_b) == records_.a.list(row, of_a)) ++equal;
    }
    total += equal;
  }
  const int64_t mean = total / std::ssize(same_pairs_);
  const auto is_odd = [&](int64_t equal) {
    return equal * 2 < mean && (equal == 0 || mean >= kFewestInPlace);
  };
  std::vector<bool> odd(same_.size(), false);
  std::vector<int32_t> odd_columns;
  for (const auto& [of_b, of_a] : same_pairs_) {
    if (!is_odd(num_equal[static_cast<size_t>(of_b)])) continue;
    odd[static_cast<size_t>(of_b)] = true;
    odd_columns.push_back(of_b);
  }
  if (odd_columns.empty()) return;
  Rows rows;
  const ColumnPairs pairs = pairs_of(restricted(same_, odd));
  std::ranges::copy_if(in_place_, std::back_inserter(rows),
                       [&](int64_t row) { return !holds(records_, row, row, pairs); });
  if (!explain(rows, odd, false)) diagnosis_.unexplained_layers = layers_of(records_.b, odd_columns);
}

void Search::find_order() {
  if (std::ssize(matches_) * 4 < diagnosis_.num_rows) return;  // too few: they may agree by chance
  if (auto cause = find_column_order(records_, matches_)) diagnosis_.causes.push_back(*std::move(cause));
}

void Search::keep(const Rows& explained, const std::vector<int64_t>& from, Reading reading) {
  readings_.push_back(std::make_unique<Reading>(std::move(reading)));
  for (const int64_t row : explained) {
    matches_.push_back({row, from[static_cast<size_t>(row)], readings_.back().get()});
  }
}

}  // namespace moetape::inline v0
