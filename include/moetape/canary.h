// Canary: routes whose ids say whose they are, to be sent through any trainer or engine in place of real
// ones.
//
// Each list of top_k experts encodes (sequence, position, layer), so that a list that lies at a wrong place
// names the place that it came from. Lists are valid: different experts, and all experts are used about
// equally often. The code is in the set, so that a list that was sorted on its way is still read; the order
// is a known one, so that it is noticed. The code depends on layers, top_k, num_experts and max_length only,
// and is the same everywhere.
//
// A list can be one of as many numbers as there are sets of top_k of num_experts (28 for 2 of 8), and it
// carries (sequence * max_length + position) * layers + column. Values, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

struct CanaryPlace {
  int64_t sequence = 0;
  int64_t position = 0;
  int32_t layer = 0;  // global
  bool operator==(const CanaryPlace&) const = default;
};

// Lists [first_row, first_row + num_rows) of one layer that are wrong in one way: `found` of the first one,
// later ones go on with it position by position as `wanted` does; empty = no list of this canary.
struct CanaryRun {
  int32_t layer = 0;
  int64_t first_row = 0;  // of the array
  int64_t num_rows = 0;
  CanaryPlace wanted = {};
  std::optional<CanaryPlace> found = {};
  bool operator==(const CanaryRun&) const = default;
};

// Every list is one of these.
struct CanaryReport {
  int64_t num_right = 0;
  int64_t num_reordered = 0;   // at its place, its ids in another order
  int64_t num_misplaced = 0;   // of another place
  int64_t num_unreadable = 0;  // no list of this canary
  int64_t num_padding = 0;     // rows without a row id: not looked at
  int64_t num_runs = 0;
  std::vector<CanaryRun> runs = {};  // of misplaced and unreadable lists, by layer, then row; the first ones

  bool all_right() const { return num_reordered + num_misplaced + num_unreadable == 0; }
  // "layer 17 rows 4096-4159: want sequence 0 position 8192, got position 8193", one line a run.
  std::string text() const;
  bool operator==(const CanaryReport&) const = default;
};

// Someone's array of ids: element (row, layer, k) stands at data + row * strides[0] + layer * strides[1] +
// k * strides[2] elements.
struct ListsView {
  const void* data = nullptr;
  IntType type = IntType::kInt64;
  int64_t num_rows = 0;
  int64_t num_layers = 0;
  int64_t top_k = 0;
  int64_t strides[3] = {};
};

class Canary {
 public:
  // max_length: positions of a sequence; by default the largest power of two, at most 2^20, that leaves 64
  // sequences. kCapacity, with the figures, when the lists carry no sequence of that length; kUnsupported for
  // top_k * num_experts above 2^22.
  static Result<Canary> create(const RouteSpec& spec, std::optional<int64_t> max_length = {});

  const RouteSpec& spec() const;
  int64_t max_length() const;
  int64_t num_sequences() const;

  // Rows at positions [start, start + length) of a sequence. kCapacity beyond max_length and num_sequences.
  Result<Routes> routes(int64_t sequence, int64_t length, int64_t start = 0) const;

  // The place that top_k ids encode, in any order; nothing for a list that this canary has not made.
  std::optional<CanaryPlace> decode(std::span<const int32_t> ids) const;

  // Looks whether each row holds what belongs there: row_ids (row_ids.h) say whose row it is, one a row; 0
  // and -1 are padding. `layers` are the global layers of the columns (default: all of the spec).
  // kWrongShape, kOutOfRange for a row id or layer that the canary does not know.
  Result<CanaryReport> check(const ListsView& ids, std::span<const int64_t> row_ids,
                             std::span<const int32_t> layers = {}, int64_t max_runs = 64) const;

 private:
  struct Data;
  explicit Canary(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// Of Canary::create(spec).
Result<Routes> canary(const RouteSpec& spec, int64_t sequence, int64_t length);

}  // namespace moetape::inline v0
