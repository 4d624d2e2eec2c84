// IdGroup: one tensor of ids: which columns of a row it holds, and how a row of them is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moetape/tape.h"
#include "tape/metadata.h"

namespace moetape::inline v0::tape {

// A value; any thread.
class IdGroup {
 public:
  // Of group `group` of a tape, or -1 where it has none.
  static IdGroup of(const Description& description, int group);

  const std::string& name() const { return name_; }
  std::string_view dtype() const;
  std::vector<int64_t> shape(int64_t num_rows) const;
  int64_t stored_row_bytes() const { return stored_row_bytes_; }
  // Columns of the spec's rows.
  std::span<const int32_t> columns() const { return columns_; }
  // A stored row is a row of memory.
  bool stores_rows_as_they_are() const { return whole_row_ && codec_ == Codec::kNone; }
  bool stores_ids_as_they_are() const { return codec_ == Codec::kNone; }

  // Stores whole rows [count, L, K]. Gives a view of `rows` or of `scratch`.
  std::span<const std::byte> store(const std::byte* rows, int64_t count,
                                   std::vector<std::byte>& scratch) const;

  // Bits behind a stored row's ids, at the top of its last byte.
  int spare_bits() const;

  // Where columns of this group go in wider or narrower rows.
  struct Move {
    int64_t from;  // bytes in a row of the group
    int64_t to;    // bytes in a row of the result
    int64_t bytes;
  };
  // Of those of the group's columns that `wanted` (ascending columns of the spec) names.
  std::vector<Move> moves_to(std::span<const int32_t> wanted) const;
  // Unpacks stored rows and moves their parts into `rows`, `row_bytes` each.
  void restore(const std::byte* stored, int64_t count, std::span<const Move> moves, std::byte* rows,
               int64_t row_bytes, std::vector<std::byte>& scratch) const;

 private:
  IdGroup() = default;

  std::string name_;
  std::vector<int32_t> columns_;
  Codec codec_ = Codec::kNone;
  bool whole_row_ = true;
  int32_t top_k_ = 0;
  int32_t id_bytes_ = 1;
  int32_t id_bits_ = 8;
  int64_t full_row_bytes_ = 0;
  int64_t row_bytes_ = 0;  // of the group, unpacked
  int64_t stored_row_bytes_ = 0;
};

}  // namespace moetape::inline v0::tape
