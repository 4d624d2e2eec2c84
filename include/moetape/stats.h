// Stats: what a record holds, and how evenly it loads the experts.
//
// Sums over valid rows, like those of compare.h: parts merge into the whole, and memory is bounded by the
// spec and the number of different versions. Plain values: one thread at a time changes one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "moetape/compare.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

// How evenly `load` (times that each of E experts was chosen) is spread.
struct Balance {
  double max_over_mean = 0;  // 1 .. E; "MaxVio" of trainers is this - 1
  double variation = 0;      // standard deviation / mean, 0 .. sqrt(E - 1)
  double entropy = 0;        // of the shares, / log E: 1 when even, 0 when one expert has all; 1 for E = 1
  double gini = 0;           // 0 when even, 1 - 1 / E when one expert has all
  int32_t num_unused = 0;    // experts that were never chosen
  bool operator==(const Balance&) const = default;
};

// Empty where nothing was chosen.
std::optional<Balance> balance_of(std::span<const int64_t> load);

// Times that each expert was chosen, [layers, num_experts]; empty = never any.
using Load = std::vector<int64_t>;

struct Stats {
  // kOutOfMemory.
  static Result<Stats> create(const RouteSpec& spec);

  // One sequence, or a part of one; parts are sequences of their own. kSpecMismatch when the fingerprint is
  // another, kOutOfRange for an id that is no expert. A failed call adds nothing, but after kOutOfMemory the
  // value is of no more use.
  Status add(const Routes& routes);

  // Sums of both; along load_by_row the two lie side by side, as of ranks that ran at the same time.
  // kSpecMismatch.
  Status merge(const Stats& other);

  int64_t num_rows() const;
  int64_t num_valid_rows() const { return rows_by_reason[0]; }

  // The experts of layer spec.layers()[column] in `load` or a window of a series.
  std::span<const int64_t> layer_load(const Load& all_layers, int32_t column) const;

  // All rows in each form: as kept, as the codec bitpack of tapes keeps them in one group, as int32.
  struct Bytes {
    int64_t narrow = 0;
    int64_t bitpacked = 0;
    int64_t int32 = 0;
    bool operator==(const Bytes&) const = default;
  };
  Bytes bytes() const;

  RouteSpec spec;
  int64_t num_sequences = 0;
  std::array<int64_t, kNumReasons> rows_by_reason = {};  // [0] = valid
  // Valid rows; an empty version = they carry none.
  std::map<std::optional<uint32_t>, int64_t> rows_by_version = {};

  // How load moves, in windows of a Load each, fewer than kMostWindows where they would hold more than 2^22
  // counts: over versions (rows that carry none are only in `load`), and over the rows added before, missing
  // ones too.
  Load load = {};
  Series<Load> load_by_version = {};
  Series<Load> load_by_row = {};

  // By layer: every valid row against the row before it, if that is valid. overlap() is the share of experts
  // that neighbouring tokens have in common (chance: top_k / num_experts).
  std::vector<Agreement> reuse = {};

  bool operator==(const Stats&) const = default;
};

}  // namespace moetape::inline v0
