// Lays rows out in the order of a plan: [row][layer][k], narrow, to [layer][row][k] of any type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "base/fail.h"
#include "moetape/array.h"
#include "moetape/spec.h"
#include "replay/rotation.h"
#include "simd/narrow.h"
#include "simd/widen.h"

namespace moetape::inline v0 {

// Rows are transposed in blocks: small enough to stay in the cache over all layers, large enough that every
// layer gets a long stretch at once.
constexpr int64_t kStretchBytes = 4096;
constexpr int64_t kMinBlockRows = 64;
constexpr int64_t kMaxBlockRows = 256;

inline int64_t block_rows(const RouteSpec& spec, IntType type) {
  return std::clamp(kStretchBytes / (spec.top_k() * int_type_bytes(type)), kMinBlockRows, kMaxBlockRows);
}

// Results of this size do not stay in the caches.
constexpr int64_t kStreamingBytes = int64_t{4} << 20;

// Experts whose ids the type can hold.
inline int64_t experts_that_fit(IntType type) {
  const int bits = 8 * int_type_bytes(type) - (int_type_signed(type) ? 1 : 0);
  return bits < 17 ? int64_t{1} << bits : std::numeric_limits<int64_t>::max();
}

// Where the lists of a block's rows stand.
class RowBlock {
 public:
  RowBlock(int64_t list_bytes, int64_t capacity)
      : list_bytes_(static_cast<size_t>(list_bytes)), capacity_(capacity) {}

  int64_t size() const { return size_; }
  int64_t room() const { return capacity_ - size_; }
  void clear() { size_ = 0; }

  // A recorded row: a list for each column.
  void add(const std::byte* row) { add(row, list_bytes_); }
  // One list for every column.
  void add_same(const std::byte* list) { add(list, 0); }

  // Writes the lists of one column, row by row.
  void gather(std::byte* out, int32_t column) const {
    switch (list_bytes_) {
      case 2:
        return gather_lists<2>(out, column);
      case 4:
        return gather_lists<4>(out, column);
      case 8:
        return gather_lists<8>(out, column);
      case 16:
        return gather_lists<16>(out, column);
      default:
        return gather_lists<0>(out, column);
    }
  }

 private:
  void add(const std::byte* lists, size_t step) {
    lists_[static_cast<size_t>(size_)] = lists;
    steps_[static_cast<size_t>(size_)] = step;
    ++size_;
  }

  // N = 0 where no length is known.
  template <size_t N>
  void gather_lists(std::byte* out, int32_t column) const {
    // The bytes that are written could be any of these members.
    const size_t list_bytes = N != 0 ? N : list_bytes_;
    const auto size = static_cast<size_t>(size_);
    const std::byte* const* const lists = lists_.data();
    const size_t* const steps = steps_.data();
    for (size_t row = 0; row < size; ++row, out += list_bytes) {
      std::memcpy(out, lists[row] + static_cast<size_t>(column) * steps[row], list_bytes);
    }
  }

  size_t list_bytes_;
  int64_t capacity_;
  int64_t size_ = 0;
  std::array<const std::byte*, kMaxBlockRows> lists_{};
  std::array<size_t, kMaxBlockRows> steps_{};  // from column to column, in bytes
};

// Lays rows out in the order of the plan and hands block after block to every layer.
class PlanWriter {
 public:
  PlanWriter(const RouteSpec& spec, std::span<const int32_t> columns, IntType type, int64_t num_rows,
             int64_t first_expert, std::byte* out, std::byte* scratch)
      : spec_(spec),
        columns_(columns),
        type_(type),
        num_rows_(num_rows),
        streaming_(num_rows * std::ssize(columns) * spec.top_k() * int_type_bytes(type) >= kStreamingBytes),
        out_(out),
        list_bytes_(int64_t{spec.top_k()} * spec.id_bytes()),
        block_(list_bytes_, block_rows(spec, type)),
        gathered_(scratch),
        rotated_(scratch + kMaxBlockRows * list_bytes_),
        fill_(make_rotation(spec, type, first_expert)),
        live_(fill_) {}

  static int64_t scratch_bytes(const RouteSpec& spec) {
    return 2 * kMaxBlockRows * spec.top_k() * spec.id_bytes();
  }

  Status replay(const std::byte* row) {
    block_.add(row);
    return flush_if_full();
  }
  Status fill() { return rotate(fill_); }
  Status live() { return rotate(live_); }

  // Rows that wait in the block, and how many more it takes: they stay where they are until it is handed on.
  int64_t waiting() const { return block_.size(); }
  int64_t room() const { return block_.room(); }

  Status flush() {
    const int64_t num_ids = block_.size() * spec_.top_k();
    const int64_t layer_bytes = num_rows_ * spec_.top_k() * int_type_bytes(type_);
    std::byte* to = out_ + first_ * spec_.top_k() * int_type_bytes(type_);
    for (const int32_t column : columns_) {
      block_.gather(gathered_, column);
      MOETAPE_TRY(check_range(column, num_ids));
      simd::widen(to, type_, gathered_, spec_.id_bytes(), num_ids, streaming_);
      to += layer_bytes;
    }
    first_ += block_.size();
    block_.clear();
    return {};
  }

 private:
  static Rotation make_rotation(const RouteSpec& spec, IntType type, int64_t first_expert) {
    const int64_t num_experts = std::min<int64_t>(spec.num_experts(), experts_that_fit(type));
    return Rotation(static_cast<int32_t>(num_experts), spec.top_k(),
                    static_cast<int32_t>(first_expert % num_experts));
  }

  Status rotate(Rotation& rotation) {
    std::byte* list = rotated_ + block_.size() * list_bytes_;
    rotation.next(list, spec_.id_bytes());
    block_.add_same(list);
    return flush_if_full();
  }

  Status flush_if_full() { return block_.room() == 0 ? flush() : Status(); }

  Status check_range(int32_t column, int64_t num_ids) const {
    const int64_t limit = experts_that_fit(type_);
    if (spec_.num_experts() <= limit || simd::largest_id(gathered_, spec_.id_bytes(), num_ids) < limit)
      return {};
    int64_t row = 0;
    int64_t id = 0;
    while ((id = simd::largest_id(gathered_ + row * list_bytes_, spec_.id_bytes(), spec_.top_k())) < limit)
      ++row;
    return fail(ErrorCode::kOutOfRange, "type: row {}, layer {}: expected ids that {} can hold, got {}",
                first_ + row, spec_.layers()[static_cast<size_t>(column)], int_type_name(type_), id);
  }

  const RouteSpec& spec_;
  std::span<const int32_t> columns_;
  IntType type_;
  int64_t num_rows_;
  bool streaming_;
  std::byte* out_;
  int64_t list_bytes_;
  RowBlock block_;
  std::byte* gathered_;  // the lists of one column
  std::byte* rotated_;   // the list of row i of the block, where it has no record
  int64_t first_ = 0;    // row of the block
  Rotation fill_;
  Rotation live_;
};

}  // namespace moetape::inline v0
