// Diagnose: why two records that should agree do not.
//
// A record is misplaced in few ways: rows of another position, sequence or rank, layers counted otherwise,
// micro-batches read in the other order, experts under other numbers, ids in another order. diagnose() tries
// them and says which one explains what share of the rows that disagree. It needs no more than the ids; where
// one record is a canary (canary.h), or the experts are many, little chance is left.
//
// A row is *in place* where at least half of its layers have the same experts in both records: two engines
// that round differently still agree in most layers, and wrong rows in next to none. A cause is named when it
// explains a quarter of the rows that are out of place, and at least 4, and when chance would do so less than
// once in 2^20 tries. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

enum class CauseKind : uint8_t {
  kRowsShifted,     // position p of b holds position p + shift of a, in one sequence
  kRowsElsewhere,   // runs of rows stand at other places, or in other sequences
  kRowsTransposed,  // row s * size + b of micro-batches was read as b * length + s, or the other way
  kZigzag,          // parts of zig-zag context parallelism in the order of `size` ranks
  kContiguous,      // parts of contiguous context parallelism in the order of `size` ranks
  kLayersShifted,   // layer l of b holds layer l + shift of a
  kLayersElsewhere,
  kLayersConstant,  // layers of b that hold one and the same list in every row: nobody captured them
  kExpertsMapped,   // b numbers the experts of each layer otherwise, as load balancing does
  kColumnsReordered,
};
inline constexpr int kNumCauseKinds = static_cast<int>(CauseKind::kColumnsReordered) + 1;
std::string_view cause_name(CauseKind kind);  // "rows_shifted"

// Rows of b that hold rows of a.
struct RowMove {
  int64_t sequence = 0;  // of b, counted from 0
  int64_t position = 0;
  int64_t from_sequence = 0;  // of a
  int64_t from_position = 0;
  int64_t num_rows = 0;
  bool operator==(const RowMove&) const = default;
};

struct Cause {
  CauseKind kind = CauseKind::kRowsShifted;
  std::string text = {};      // what b does, in one sentence
  int64_t num_rows = 0;       // out of place when this cause was looked for
  int64_t num_explained = 0;  // of these, in place if b is read so
  int64_t shift = 0;          // of kRowsShifted, kLayersShifted
  int64_t size = 0;           // ranks, or sequences of a micro-batch
  // The first places where rows moved, for the kinds of rows.
  std::vector<RowMove> moves = {};
  // Layers of b and where a has them, for the kinds of layers; -1: nowhere. For others, the layers of b that
  // the cause is about where these are not all.
  std::vector<std::pair<int32_t, int32_t>> layers = {};
  // By layer of b, of kExpertsMapped: a's expert for each of b's, -1 = not seen.
  std::map<int32_t, std::vector<int32_t>> experts = {};

  double share() const {
    return num_rows == 0 ? 0 : static_cast<double>(num_explained) / static_cast<double>(num_rows);
  }
  bool operator==(const Cause&) const = default;
};

struct Diagnosis {
  int64_t num_rows = 0;      // valid in both, at one position
  int64_t num_in_place = 0;  // of these
  int64_t num_rows_only_in_a = 0;
  int64_t num_rows_only_in_b = 0;
  int64_t num_rows_left_out = 0;  // beyond max_rows: not looked at
  int64_t num_unexplained = 0;    // rows out of place that no cause explains
  // Layers of b that differ where most others agree, and that no cause explains.
  std::vector<int32_t> unexplained_layers = {};
  std::vector<Cause> causes = {};

  // Nothing is out of place and no cause was found: not that all ids are equal (compare.h says that).
  bool in_place() const { return causes.empty() && num_unexplained == 0 && unexplained_layers.empty(); }
  // A few lines: what is out of place, the causes with their shares, "none found" where there is none.
  std::string text() const;
  bool operator==(const Diagnosis&) const = default;
};

struct DiagnoseOptions {
  int64_t max_rows = 131'072;  // looked at, from the first sequence on; memory is some 16 bytes a list
  bool operator==(const DiagnoseOptions&) const = default;
};

// Sequence i of a and of b are records of the same tokens, of any layers and numbers of experts, with one
// top_k and one spec a side (kSpecMismatch). kWrongShape for another number of sequences, kInvalidArgument
// for none and for max_rows below 1, kOutOfMemory.
Result<Diagnosis> diagnose(std::span<const Routes> a, std::span<const Routes> b,
                           const DiagnoseOptions& options = {});

}  // namespace moetape::inline v0
