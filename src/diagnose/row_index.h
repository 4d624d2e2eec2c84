// RowIndex: finds the rows of a that hold the same lists as a row of b.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "diagnose/records.h"

namespace moetape::inline v0 {

class RowIndex {
 public:
  // Over the columns that are compared: some groups of them, each of which must be equal as a whole, so that
  // rows are found although one layer in ten differs.
  RowIndex(const Records& records, const ColumnPairs& columns);

  // Some rows of a for row i of b, at most 4 * `most`; one may stand there more than once.
  void find(int64_t i, int64_t most, std::vector<int64_t>& rows) const;

  // The shifts in the line of rows that most of these rows of b speak for, most first.
  std::vector<int64_t> likely_shifts(std::span<const int64_t> rows, size_t most) const;

  // For each of these ascending rows of b the row of a that it holds, or -1: rows that lie together in both
  // records, `shortest` or more of them.
  std::vector<int64_t> runs(std::span<const int64_t> rows, int64_t shortest) const;

 private:
  using Entry = std::pair<uint64_t, int64_t>;  // key, row
  struct Group {
    size_t first = 0;  // of columns_
    size_t end = 0;
    std::vector<Entry> entries = {};
  };
  uint64_t key(const RecordSide& side, int64_t row, const Group& group, bool of_b) const;
  int64_t run_length(int64_t i, int64_t j, int64_t most) const;

  const Records& records_;
  const ColumnPairs& columns_;
  std::vector<Group> groups_;
};

}  // namespace moetape::inline v0
