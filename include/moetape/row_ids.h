// Row ids: whose token stands at which row of a batch.
//
// A row id is (sequence + 1) << 32 | position; 0 is padding. A trainer that cuts an int64 array of them with
// the very code that cuts its tokens has said exactly which rows a rank holds (replay.h). RowIds makes the
// same array without that code, from the lengths of the sequences and the set-up, for whoever must know the
// rows before the trainer runs: to fetch them, or to pack micro-batches.
//
//   RowIds::from_lengths({3, 5}) → pad_each(4) → zigzag(2, rank) → pad(16) → split(2, tp_rank)
//
// Values: every function gives a new one, and functions are called in the order in which the trainer does the
// same to its tokens. Any thread. kOutOfMemory, and kCapacity for more than kMaxRows rows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0 {

constexpr int64_t row_id(int64_t sequence, int64_t position) { return (sequence + 1) << 32 | position; }

// Sequences are counted from 0 and below 2^31 - 1, positions are below 2^32.
inline constexpr int64_t kMaxSequences = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxPositions = int64_t{1} << 32;
// Rows of a RowIds.
inline constexpr int64_t kMaxRows = int64_t{1} << 28;

// Positions [start, end) of a sequence.
struct RowSpan {
  int64_t sequence = 0;
  int64_t start = 0;
  int64_t end = 0;
  bool operator==(const RowSpan&) const = default;
};

enum class Side : uint8_t { kRight, kLeft };

class RowIds {
 public:
  // One segment for each sequence, of all its positions; or for each span, in this order. kInvalidArgument
  // for a length below 0, an end before its start, and what no row id can say.
  static Result<RowIds> from_lengths(std::span<const int64_t> lengths);
  static Result<RowIds> from_spans(std::span<const RowSpan> spans);
  // cu_seqlens of packed sequences, [0, ascending …]: one segment for each, as from_lengths.
  static Result<RowIds> from_cu_seqlens(std::span<const int64_t> cu_seqlens);

  // All rows, and where segments begin in them: segment i is rows [offsets()[i], offsets()[i + 1]).
  std::span<const int64_t> ids() const { return ids_; }
  std::span<const int64_t> offsets() const { return offsets_; }
  int64_t num_rows() const { return static_cast<int64_t>(ids_.size()); }
  int64_t num_segments() const { return static_cast<int64_t>(offsets_.size()) - 1; }

  // These segments in this order: a micro-batch. kOutOfRange.
  Result<RowIds> take(std::span<const int64_t> segments) const;

  // Each segment on its own ----------------------------------------------------------------------------
  // To a multiple, or to a length, one for all or one a segment. kInvalidArgument for a multiple below 1,
  // kWrongShape for a segment that is longer, or another number of lengths.
  Result<RowIds> pad_each(int64_t multiple, Side side = Side::kRight) const;
  Result<RowIds> pad_each_to(std::span<const int64_t> lengths, Side side = Side::kRight) const;
  // Context parallelism: rank r of n takes parts r and 2n-1-r of 2n equal ones (balanced under a causal
  // mask), or part r of n. kWrongShape, naming it, for a segment that has no such parts: pad first. One rank
  // takes all.
  Result<RowIds> zigzag_each(int64_t size, int64_t rank) const;
  Result<RowIds> split_each(int64_t size, int64_t rank) const;

  // All rows together ----------------------------------------------------------------------------------
  // Padding behind the last row, which the last segment takes in. Errors as above.
  Result<RowIds> pad(int64_t multiple) const;
  Result<RowIds> pad_to(int64_t num_rows) const;
  // Part r of n equal ones: sequence parallelism, and context parallelism that cuts the joined batch.
  // Segments are cut where the part is. kWrongShape if there are no such parts.
  Result<RowIds> split(int64_t size, int64_t rank) const;
  // From row b·S + s (segments one behind the other) to row s·B + b, for segments of one length
  // (kWrongShape). One segment is left.
  Result<RowIds> sequence_major() const;
  // Row i of the result is row index[i], or padding for -1; one segment. kOutOfRange.
  Result<RowIds> gather(std::span<const int64_t> index) const;

  bool operator==(const RowIds&) const = default;

 private:
  RowIds(std::vector<int64_t> ids, std::vector<int64_t> offsets)
      : ids_(std::move(ids)), offsets_(std::move(offsets)) {}
  static RowIds one_segment(std::vector<int64_t> ids);
  std::span<const int64_t> segment(int64_t index) const;
  Result<RowIds> pad_segments(std::span<const int64_t> lengths, Side side) const;
  Status check_parts(int64_t num_parts) const;  // of every segment

  std::vector<int64_t> ids_;
  std::vector<int64_t> offsets_;  // ascending, from 0 to num_rows()
};

}  // namespace moetape::inline v0
