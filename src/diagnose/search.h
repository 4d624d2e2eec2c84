// Search: looks for the causes, for one diagnosis. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "diagnose/column_order.h"
#include "diagnose/layer_maps.h"
#include "diagnose/records.h"
#include "diagnose/row_index.h"
#include "diagnose/row_maps.h"
#include "moetape/diagnose.h"

namespace moetape::inline v0 {

class Search {
 public:
  explicit Search(Records records);
  Diagnosis run() &&;

 private:
  using Rows = std::vector<int64_t>;
  // A way to read rows of b, and the rows that are in place then.
  struct Attempt {
    LayerMap layers = {};
    bool same_layers = true;
    RowMap rows = {};
    bool same_rows = false;
    Rows explained = {};   // of b
    size_t num_lists = 0;  // of these rows, that are compared
    double log2_tries = 0;
  };

  void find_constant_layers();
  Rows sort_rows();
  // Names causes for some of these rows, and takes these rows out. False when none was found.
  bool explain(Rows& rows, const std::vector<bool>& columns, bool all_columns);
  bool explain_by_maps(Rows& rows, const std::vector<bool>& columns, bool all_columns);
  bool explain_by_experts(Rows& rows, const std::vector<bool>& columns);
  void explain_layers();
  void find_order();

  Attempt best_attempt(const Rows& rows, const std::vector<bool>& columns);
  void try_row_maps(const Rows& rows, const LayerMap& layers, bool same, Attempt& best);
  void try_runs(const Rows& rows, const LayerMap& layers, bool same, Attempt& best);
  void add_causes(const Attempt& attempt, int64_t num_rows, const std::vector<bool>& columns,
                  bool all_columns);
  Cause row_cause(const Attempt& attempt, int64_t num_rows) const;
  std::vector<RowMove> moves_of(const Attempt& attempt) const;
  void keep(const Rows& explained, const std::vector<int64_t>& from, Reading reading);

  Records records_;
  ColumnMap same_;
  ColumnPairs same_pairs_;
  Rows in_place_;
  Diagnosis diagnosis_ = {};
  std::vector<std::unique_ptr<Reading>> readings_ = {};
  std::vector<Match> matches_ = {};
};

}  // namespace moetape::inline v0
