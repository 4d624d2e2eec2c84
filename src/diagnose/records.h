// Records: two records laid out in one line of rows, with a number for each list of experts.
//
// Sequences lie one behind the other, each over the positions of either side. Index i is the same position in
// both; where the two spans of a sequence do not meet, both begin at the same index, and `aligned` is false.
// Lists have equal numbers when they hold the same ids in any order (but for one pair in 2^64).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moetape/diagnose.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

uint64_t expert_number(int32_t id);  // whose sum over a list is the list's number

struct RecordSide {
  std::vector<int32_t> layers = {};
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int32_t id_bytes = 1;
  std::vector<const std::byte*> rows = {};  // null where there is no valid row
  std::vector<uint64_t> lists = {};         // [rows, layers]

  int64_t num_layers() const { return std::ssize(layers); }
  uint64_t list(int64_t row, int32_t column) const {
    return lists[static_cast<size_t>(row * num_layers() + column)];
  }
  bool has(int64_t row) const { return rows[static_cast<size_t>(row)] != nullptr; }
  int32_t id(int64_t row, int32_t column, int32_t k) const;
};

struct RecordSequence {
  int64_t first = 0;  // index
  int64_t num_rows = 0;
  int64_t start_a = 0;  // position at `first`
  int64_t start_b = 0;
  bool aligned = true;
};

struct Records {
  RecordSide a = {};
  RecordSide b = {};
  std::vector<RecordSequence> sequences = {};
  int64_t num_rows = 0;
  int64_t num_left_out = 0;

  int64_t sequence_of(int64_t row) const;
  bool aligned(int64_t row) const { return sequences[static_cast<size_t>(sequence_of(row))].aligned; }
};

// Of two sides of as many sequences, whose specs are those of the first.
Records lay_out(std::span<const Routes> a, std::span<const Routes> b, int64_t max_rows);

// Numbers the lists of these rows by their ids.
void number_lists(std::span<const int64_t> rows, RecordSide& side);

// For each column of b the column of a that it is compared with, or -1.
using ColumnMap = std::vector<int32_t>;
// Columns (of b, of a) that are compared.
using ColumnPairs = std::vector<std::pair<int32_t, int32_t>>;
ColumnPairs pairs_of(const ColumnMap& map);

// Whether row i of b holds row j of a: valid both, and half of the columns or more have the same experts.
bool holds(const Records& records, int64_t i, int64_t j, const ColumnPairs& columns);

}  // namespace moetape::inline v0
