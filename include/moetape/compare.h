// Compare: how far two records of the same tokens agree.
//
// A router is one layer of one row. A router is *unequal* where its two lists differ in an id or in the order
// of ids, and *rerouted* where they differ as sets (as multisets where ids may repeat); rerouted implies
// unequal. Only rows that are valid in both records are compared; all others are counted, and why they are
// missing.
//
// Everything here is a sum, or made of sums: what is kept does not depend on the order in which records were
// added, values of parts merge into the value of the whole, and memory is bounded by the spec, the number of
// different versions and the number of different tokens. Plain values: one thread at a time changes one.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

// Sums over rows that were compared; a row is unequal or rerouted if at least one of its routers is. For one
// layer, rows and routers are the same. The rates are empty where nothing was compared.
struct Agreement {
  int64_t num_rows = 0;
  int64_t num_unequal_rows = 0;
  int64_t num_rerouted_rows = 0;
  int64_t num_routers = 0;
  int64_t num_unequal_routers = 0;
  int64_t num_rerouted_routers = 0;
  int64_t num_ids = 0;         // top_k for every router
  int64_t num_shared_ids = 0;  // of these, ids that stand in both lists

  std::optional<double> unequal_rows_rate() const;
  std::optional<double> rerouted_rows_rate() const;
  std::optional<double> unequal_routers_rate() const;
  std::optional<double> rerouted_routers_rate() const;
  std::optional<double> overlap() const;  // shared ids / ids: the mean overlap of the sets

  Agreement& operator+=(const Agreement& other);
  bool operator==(const Agreement&) const = default;
};

// Sums along an axis (positions, versions, rows) in windows of one width, a power of two. There is a bounded
// number of them: the width doubles when they would be more, and is the smallest that will do for what was
// added. windows[i] covers [start + i * width, start + (i + 1) * width); start is a multiple of width.
template <class Sum>
struct Series {
  int64_t start = 0;
  int64_t width = 1;
  std::vector<Sum> windows = {};
  bool operator==(const Series&) const = default;
};

inline constexpr int64_t kMostWindows = 64;

// Versions under which a row was computed; empty = it carries none.
struct VersionPair {
  std::optional<uint32_t> a = {};
  std::optional<uint32_t> b = {};
  auto operator<=>(const VersionPair&) const = default;
};

struct ReroutedRow {
  int64_t sequence = 0;
  int64_t position = 0;
  std::optional<int32_t> token = {};  // that was fed there, if known
  int32_t num_rerouted_routers = 0;
  int32_t num_unequal_routers = 0;
  bool operator==(const ReroutedRow&) const = default;
};

struct CompareOptions {
  int64_t max_rerouted_rows = 32;  // how many rows are kept by name
  bool operator==(const CompareOptions&) const = default;
};

struct Comparison {
  // kInvalidArgument for a negative max_rerouted_rows, kOutOfMemory.
  static Result<Comparison> create(const RouteSpec& spec, const CompareOptions& options = {});

  // Two records of one sequence, row by row where positions agree; their spans may differ. `sequence` is what
  // rerouted_rows call it (default: the number of pairs added so far). kSpecMismatch when a fingerprint is
  // another; kConflict names the first position at which both carry a token and the two differ. A failed call
  // adds nothing, but after kOutOfMemory the value is of no more use.
  Status add(const Routes& a, const Routes& b, std::optional<int64_t> sequence = {});

  // As if what was added to `other` had been added here. kSpecMismatch, kInvalidArgument for other options.
  Status merge(const Comparison& other);

  // Token ids by their rerouted routers, most first, then by id; those with none are left out.
  std::vector<std::pair<int32_t, Agreement>> most_rerouted_tokens(int64_t most) const;

  RouteSpec spec;
  CompareOptions options = {};
  int64_t num_sequences = 0;  // pairs added

  // Positions inside the span of a, of b or of both: compared (total.num_rows), or one of these.
  int64_t num_rows_only_in_a = 0;  // valid in a; in b missing or outside its span
  int64_t num_rows_only_in_b = 0;
  int64_t num_rows_in_neither = 0;
  // Why rows at those positions are not valid, by Reason; kGap outside the span.
  std::array<int64_t, kNumReasons> missing_in_a = {};
  std::array<int64_t, kNumReasons> missing_in_b = {};

  Agreement total = {};
  std::vector<Agreement> by_layer = {};  // one for each of spec.layers()
  Series<Agreement> by_position = {};
  std::map<VersionPair, Agreement> by_version = {};
  std::unordered_map<int32_t, Agreement> by_token = {};  // rows whose token either record carries
  std::vector<int64_t> rows_by_rerouted_routers = {};    // [layers + 1]: rows with 0, 1, … rerouted routers
  // Rows with the most rerouted routers first, then the most unequal ones, then by sequence and position;
  // at most options.max_rerouted_rows, none without a rerouted router.
  std::vector<ReroutedRow> rerouted_rows = {};

  bool operator==(const Comparison&) const = default;
};

}  // namespace moetape::inline v0
