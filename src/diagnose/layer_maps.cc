#include "diagnose/layer_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMostRows = 512;
constexpr size_t kSketchSize = 64;
constexpr double kLeastShare = 0.3;

// How far each column of b agrees with each of a, 0 .. 1.
class Scores {
 public:
  explicit Scores(const Records& records)
      : num_in_a_(records.a.num_layers()),
        shares_(static_cast<size_t>(records.a.num_layers() * records.b.num_layers())) {}

  double& at(int64_t in_b, int64_t in_a) { return shares_[static_cast<size_t>(in_b * num_in_a_ + in_a)]; }
  double mean() const {
    double sum = 0;
    for (const double share : shares_) sum += share;
    return sum / static_cast<double>(shares_.size());
  }

 private:
  int64_t num_in_a_;
  std::vector<double> shares_;
};

Scores score_rows(const Records& records, std::span<const int64_t> rows) {
  Scores scores(records);
  int64_t num_rows = 0;
  const size_t step = std::max<size_t>(rows.size() / static_cast<size_t>(kMostRows), 1);
  for (size_t at = 0; at < rows.size(); at += step) {
    const int64_t row = rows[at];
    if (!records.a.has(row)) continue;
    ++num_rows;
    for (int32_t in_b = 0; in_b < records.b.num_layers(); ++in_b) {
      for (int32_t in_a = 0; in_a < records.a.num_layers(); ++in_a) {
        if (records.b.list(row, in_b) == records.a.list(row, in_a)) ++scores.at(in_b, in_a);
      }
    }
  }
  for (int32_t in_b = 0; in_b < records.b.num_layers(); ++in_b) {
    for (int32_t in_a = 0; in_a < records.a.num_layers(); ++in_a) {
      scores.at(in_b, in_a) /= static_cast<double>(std::max<int64_t>(num_rows, 1));
    }
  }
  return scores;
}

// The smallest numbers of a column's lists, each once.
std::vector<uint64_t> sketch(const RecordSide& side, int32_t column) {
  std::vector<uint64_t> smallest;
  const auto keep = [&] {
    std::ranges::sort(smallest);
    const auto same = std::ranges::unique(smallest);
    smallest.erase(same.begin(), same.end());
    if (smallest.size() > kSketchSize) smallest.resize(kSketchSize);
  };
  uint64_t bound = UINT64_MAX;
  for (int64_t row = 0; row < std::ssize(side.rows); ++row) {
    const uint64_t list = side.list(row, column);
    if (!side.has(row) || list >= bound) continue;
    smallest.push_back(list);
    if (smallest.size() < 8 * kSketchSize) continue;
    keep();
    if (smallest.size() == kSketchSize) bound = smallest.back();
  }
  keep();
  return smallest;
}

// The share of the smallest lists of both that stand in both.
double overlap(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  size_t num_looked_at = 0;
  size_t num_shared = 0;
  for (size_t in_a = 0, in_b = 0; in_a < a.size() && in_b < b.size() && num_looked_at < kSketchSize;
       ++num_looked_at) {
    if (a[in_a] == b[in_b]) ++num_shared;
    const bool next_a = a[in_a] <= b[in_b];
    const bool next_b = b[in_b] <= a[in_a];
    in_a += next_a ? 1 : 0;
    in_b += next_b ? 1 : 0;
  }
  return num_looked_at == 0 ? 0 : static_cast<double>(num_shared) / static_cast<double>(num_looked_at);
}

Scores score_bags(const Records& records) {
  Scores scores(records);
  std::vector<std::vector<uint64_t>> of_a;
  for (int32_t in_a = 0; in_a < records.a.num_layers(); ++in_a) of_a.push_back(sketch(records.a, in_a));
  for (int32_t in_b = 0; in_b < records.b.num_layers(); ++in_b) {
    const std::vector<uint64_t> of_b = sketch(records.b, in_b);
    for (size_t in_a = 0; in_a < of_a.size(); ++in_a) {
      scores.at(in_b, static_cast<int64_t>(in_a)) = overlap(of_a[in_a], of_b);
    }
  }
  return scores;
}

std::string shift_text(int64_t shift) {
  return fmt::format("layer l of b holds layer l {} {} of a", shift < 0 ? "-" : "+", std::abs(shift));
}

// Columns of b whose layers are `shift` away by their numbers, or by their places among the MoE layers.
ColumnMap shifted(const Records& records, int64_t shift, bool by_place, const std::vector<bool>& wanted) {
  ColumnMap from(records.b.layers.size(), -1);
  for (size_t column = 0; column < from.size(); ++column) {
    if (!wanted[column]) continue;
    int64_t in_a = static_cast<int64_t>(column) + shift;
    if (!by_place) {
      const auto found = std::ranges::find(records.a.layers, records.b.layers[column] + shift);
      in_a = found == records.a.layers.end() ? -1 : found - records.a.layers.begin();
    }
    if (in_a >= 0 && in_a < records.a.num_layers()) from[column] = static_cast<int32_t>(in_a);
  }
  return from;
}

double mean_score(Scores& scores, const ColumnMap& from) {
  double sum = 0;
  int64_t num_columns = 0;
  for (size_t column = 0; column < from.size(); ++column) {
    if (from[column] < 0) continue;
    sum += scores.at(static_cast<int64_t>(column), from[column]);
    ++num_columns;
  }
  return num_columns == 0 ? 0 : sum / static_cast<double>(num_columns);
}

// One that leaves at least half of the layers something to hold.
std::optional<LayerMap> best_shift(const Records& records, Scores& scores, double least, bool by_place,
                                   const std::vector<bool>& wanted) {
  const int64_t most = by_place ? std::max(records.a.num_layers(), records.b.num_layers())
                                : std::max(records.a.layers.back(), records.b.layers.back());
  const int64_t num_wanted = std::min<int64_t>(std::ranges::count(wanted, true), records.a.num_layers());
  double best = least;
  std::optional<LayerMap> map;
  for (int64_t distance = 1; distance <= 2 * most; ++distance) {
    const int64_t shift = distance % 2 == 1 ? (distance + 1) / 2 : -distance / 2;  // the smallest ones first
    ColumnMap from = shifted(records, shift, by_place, wanted);
    if (std::ssize(pairs_of(from)) * 2 < num_wanted) continue;
    const double score = mean_score(scores, from);
    if (score <= best) continue;
    best = score;
    map = LayerMap{
        .from = std::move(from), .is_shift = true, .log2_tries = std::log2(2.0 * static_cast<double>(most))};
    if (!by_place) map->shift = shift;
    map->text = by_place ? fmt::format("the n-th MoE layer of b holds the (n {} {})-th of a",
                                       shift < 0 ? "-" : "+", std::abs(shift))
                         : shift_text(shift);
  }
  return map;
}

// Each column of b for itself, where one of a stands out.
LayerMap best_columns(const Records& records, Scores& scores, double least, const std::vector<bool>& wanted) {
  LayerMap map{.from = ColumnMap(records.b.layers.size(), -1), .text = "layers of b hold other layers of a"};
  for (int64_t in_b = 0; in_b < records.b.num_layers(); ++in_b) {
    if (!wanted[static_cast<size_t>(in_b)]) continue;
    int64_t best = 0;
    double second_score = 0;
    for (int64_t in_a = 1; in_a < records.a.num_layers(); ++in_a) {
      const double score = scores.at(in_b, in_a);
      if (score > scores.at(in_b, best)) {
        second_score = scores.at(in_b, best);
        best = in_a;
      } else {
        second_score = std::max(second_score, score);
      }
    }
    if (scores.at(in_b, best) < std::max(least, 2 * second_score)) continue;
    map.from[static_cast<size_t>(in_b)] = static_cast<int32_t>(best);
    map.log2_tries += std::log2(static_cast<double>(records.a.num_layers()));
  }
  return map;
}

bool is_identity(const ColumnMap& from, const ColumnMap& same) {
  for (size_t column = 0; column < from.size(); ++column) {
    if (from[column] >= 0 && from[column] != same[column]) return false;
  }
  return true;
}

bool is_constant(const RecordSide& side, int32_t column) {
  constexpr int64_t kFewestRows = 8;
  uint64_t candidate = 0;  // the list of more than half of the rows, if there is one
  int64_t lead = 0;
  for (int64_t row = 0; row < std::ssize(side.rows); ++row) {
    if (!side.has(row)) continue;
    if (lead == 0) candidate = side.list(row, column);
    lead += side.list(row, column) == candidate ? 1 : -1;
  }
  int64_t num_rows = 0;
  int64_t num_equal = 0;
  for (int64_t row = 0; row < std::ssize(side.rows); ++row) {
    if (!side.has(row)) continue;
    ++num_rows;
    if (side.list(row, column) == candidate) ++num_equal;
  }
  return num_rows >= kFewestRows && num_equal * 20 >= num_rows * 19;
}

}  // namespace

ColumnMap same_layers(const Records& records) {
  return shifted(records, 0, false, std::vector<bool>(records.b.layers.size(), true));
}

std::vector<LayerMap> likely_layer_maps(const Records& records, std::span<const int64_t> rows,
                                        const std::vector<bool>& wanted) {
  const ColumnMap same = same_layers(records);
  std::vector<LayerMap> maps;
  std::vector<LayerMap> loose;
  for (Scores scores : {score_rows(records, rows), score_bags(records)}) {
    const double least = std::max(kLeastShare, 3 * scores.mean());
    for (const bool by_place : {false, true}) {
      auto map = best_shift(records, scores, least, by_place, wanted);
      if (map && !is_identity(map->from, same)) maps.push_back(*std::move(map));
    }
    LayerMap map = best_columns(records, scores, least, wanted);
    if (!is_identity(map.from, same)) loose.push_back(std::move(map));
  }
  std::ranges::move(loose, std::back_inserter(maps));
  return maps;
}

std::vector<int32_t> constant_columns(const Records& records) {
  const ColumnMap same = same_layers(records);
  std::vector<int32_t> columns;
  for (int32_t column = 0; column < records.b.num_layers(); ++column) {
    const int32_t in_a = same[static_cast<size_t>(column)];
    if (is_constant(records.b, column) && (in_a < 0 || !is_constant(records.a, in_a))) {
      columns.push_back(column);
    }
  }
  return columns;
}

}  // namespace moetape::inline v0
