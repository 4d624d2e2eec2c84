#include "moetape/row_ids.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kPadding = 0;
constexpr const char* kName = "row ids";

Status check_span(size_t index, const RowSpan& span) {
  if (span.sequence < 0 || span.sequence >= kMaxSequences) {
    return fail(ErrorCode::kInvalidArgument, "sequences: expected 0 to {}, got {} at {}", kMaxSequences - 1,
                span.sequence, index);
  }
  if (span.start < 0 || span.end < span.start || span.end > kMaxPositions) {
    return fail(ErrorCode::kInvalidArgument,
                "spans: expected positions [start, end) within [0, {}], got [{}, {}) at {}", kMaxPositions,
                span.start, span.end, index);
  }
  return {};
}

Status check_num_rows(int64_t num_rows) {
  if (num_rows <= kMaxRows) return {};
  return fail(ErrorCode::kCapacity, "rows: expected at most {}, got {}", kMaxRows, num_rows);
}

Status check_rank(int64_t size, int64_t rank) {
  if (size < 1 || size > kMaxRows) {
    return fail(ErrorCode::kInvalidArgument, "size: expected 1 to {}, got {}", kMaxRows, size);
  }
  if (rank < 0 || rank >= size) {
    return fail(ErrorCode::kOutOfRange, "rank: expected 0 to {}, got {}", size - 1, rank);
  }
  return {};
}

Status check_multiple(int64_t multiple) {
  if (multiple >= 1) return {};
  return fail(ErrorCode::kInvalidArgument, "multiple: expected 1 or more, got {}", multiple);
}

Result<int64_t> round_up(int64_t length, int64_t multiple) {
  const int64_t rest = length % multiple;
  const std::optional<int64_t> rounded = checked_add(length, rest == 0 ? 0 : multiple - rest);
  if (rounded) return *rounded;
  return fail(ErrorCode::kInvalidArgument, "multiple: expected one that rows can be padded to, got {}",
              multiple);
}

// Segments that are put one behind the other.
struct Joined {
  Joined(int64_t num_rows, int64_t num_segments) {
    ids.reserve(static_cast<size_t>(num_rows));
    offsets.reserve(static_cast<size_t>(num_segments) + 1);
    offsets.push_back(0);
  }
  void add(std::span<const int64_t> rows) { ids.insert(ids.end(), rows.begin(), rows.end()); }
  void add_padding(int64_t count) { ids.insert(ids.end(), static_cast<size_t>(count), kPadding); }
  void end_segment() { offsets.push_back(static_cast<int64_t>(ids.size())); }

  std::vector<int64_t> ids;
  std::vector<int64_t> offsets;
};

std::span<const int64_t> part_of(std::span<const int64_t> rows, int64_t num_parts, int64_t part) {
  const size_t length = rows.size() / static_cast<size_t>(num_parts);
  return rows.subspan(static_cast<size_t>(part) * length, length);
}

}  // namespace

Result<RowIds> RowIds::from_spans(std::span<const RowSpan> spans) {
  int64_t num_rows = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    MOETAPE_TRY(check_span(i, spans[i]));
    num_rows += spans[i].end - spans[i].start;
    MOETAPE_TRY(check_num_rows(num_rows));
  }
  return guard_memory(kName, [&]() -> Result<RowIds> {
    Joined joined(num_rows, std::ssize(spans));
    for (const RowSpan& span : spans) {
      for (int64_t position = span.start; position < span.end; ++position) {
        joined.ids.push_back(row_id(span.sequence, position));
      }
      joined.end_segment();
    }
    return RowIds(std::move(joined.ids), std::move(joined.offsets));
  });
}

Result<RowIds> RowIds::from_lengths(std::span<const int64_t> lengths) {
  std::vector<RowSpan> spans;
  spans.reserve(lengths.size());
  for (const int64_t length : lengths) {
    if (length < 0 || length > kMaxPositions) {
      return fail(ErrorCode::kInvalidArgument, "lengths: expected 0 to {}, got {} at {}", kMaxPositions,
                  length, spans.size());
    }
    spans.push_back({std::ssize(spans), 0, length});
  }
  return from_spans(spans);
}

Result<RowIds> RowIds::from_cu_seqlens(std::span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 || !std::ranges::is_sorted(cu_seqlens)) {
    return fail(ErrorCode::kInvalidArgument, "cu_seqlens: expected ascending numbers from 0 on, got {}",
                fmt::join(cu_seqlens.first(std::min<size_t>(cu_seqlens.size(), 20)), ", "));
  }
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  return from_lengths(lengths);
}

std::span<const int64_t> RowIds::segment(int64_t index) const {
  const int64_t first = offsets_[static_cast<size_t>(index)];
  const int64_t end = offsets_[static_cast<size_t>(index) + 1];
  return ids().subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
}

Result<RowIds> RowIds::take(std::span<const int64_t> segments) const {
  int64_t num_rows = 0;
  for (const int64_t index : segments) {
    if (index < 0 || index >= num_segments()) {
      return fail(ErrorCode::kOutOfRange, "segments: expected indices below {}, got {}", num_segments(),
                  index);
    }
    num_rows += std::ssize(segment(index));
    MOETAPE_TRY(check_num_rows(num_rows));
  }
  return guard_memory(kName, [&]() -> Result<RowIds> {
    Joined joined(num_rows, std::ssize(segments));
    for (const int64_t index : segments) {
      joined.add(segment(index));
      joined.end_segment();
    }
    return RowIds(std::move(joined.ids), std::move(joined.offsets));
  });
}

Result<RowIds> RowIds::pad_each(int64_t multiple, Side side) const {
  MOETAPE_TRY(check_multiple(multiple));
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < num_segments(); ++i) {
    MOETAPE_ASSIGN(const int64_t length, round_up(std::ssize(segment(i)), multiple));
    lengths.push_back(length);
  }
  return pad_segments(lengths, side);
}

Result<RowIds> RowIds::pad_each_to(std::span<const int64_t> lengths, Side side) const {
  const auto num_lengths = std::ssize(lengths);
  if (num_lengths != 1 && num_lengths != num_segments()) {
    return fail(ErrorCode::kWrongShape, "lengths: expected one, or one for each of {} segments, got {}",
                num_segments(), num_lengths);
  }
  std::vector<int64_t> all(lengths.begin(), lengths.end());
  if (num_lengths == 1) all.assign(static_cast<size_t>(num_segments()), lengths.front());
  return pad_segments(all, side);
}

Result<RowIds> RowIds::pad_segments(std::span<const int64_t> lengths, Side side) const {
  int64_t num_rows = 0;
  for (int64_t i = 0; i < num_segments(); ++i) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    if (std::ssize(segment(i)) > length) {
      return fail(ErrorCode::kWrongShape, "segment {}: expected at most {} rows to pad, got {}", i, length,
                  segment(i).size());
    }
    num_rows += std::min(length, kMaxRows + 1);
    MOETAPE_TRY(check_num_rows(num_rows));
  }
  return guard_memory(kName, [&]() -> Result<RowIds> {
    Joined joined(num_rows, num_segments());
    for (int64_t i = 0; i < num_segments(); ++i) {
      const int64_t padding = lengths[static_cast<size_t>(i)] - std::ssize(segment(i));
      if (side == Side::kLeft) joined.add_padding(padding);
      joined.add(segment(i));
      if (side == Side::kRight) joined.add_padding(padding);
      joined.end_segment();
    }
    return RowIds(std::move(joined.ids), std::move(joined.offsets));
  });
}

Status RowIds::check_parts(int64_t num_parts) const {
  for (int64_t i = 0; i < num_segments(); ++i) {
    if (std::ssize(segment(i)) % num_parts == 0) continue;
    return fail(ErrorCode::kWrongShape, "segment {}: expected a multiple of {} rows (pad_each), got {}", i,
                num_parts, segment(i).size());
  }
  return {};
}

Result<RowIds> RowIds::zigzag_each(int64_t size, int64_t rank) const {
  MOETAPE_TRY(check_rank(size, rank));
  if (size == 1) return *this;
  MOETAPE_TRY(check_parts(2 * size));
  Joined joined(num_rows() / size, num_segments());
  for (int64_t i = 0; i < num_segments(); ++i) {
    joined.add(part_of(segment(i), 2 * size, rank));
    joined.add(part_of(segment(i), 2 * size, 2 * size - 1 - rank));
    joined.end_segment();
  }
  return RowIds(std::move(joined.ids), std::move(joined.offsets));
}

Result<RowIds> RowIds::split_each(int64_t size, int64_t rank) const {
  MOETAPE_TRY(check_rank(size, rank));
  MOETAPE_TRY(check_parts(size));
  Joined joined(num_rows() / size, num_segments());
  for (int64_t i = 0; i < num_segments(); ++i) {
    joined.add(part_of(segment(i), size, rank));
    joined.end_segment();
  }
  return RowIds(std::move(joined.ids), std::move(joined.offsets));
}

Result<RowIds> RowIds::pad(int64_t multiple) const {
  MOETAPE_TRY(check_multiple(multiple));
  MOETAPE_ASSIGN(const int64_t num_rows, round_up(this->num_rows(), multiple));
  return pad_to(num_rows);
}

Result<RowIds> RowIds::pad_to(int64_t num_rows) const {
  if (num_rows < this->num_rows()) {
    return fail(ErrorCode::kWrongShape, "num_rows: expected {} or more, got {}", this->num_rows(), num_rows);
  }
  MOETAPE_TRY(check_num_rows(num_rows));
  return guard_memory(kName, [&]() -> Result<RowIds> {
    RowIds padded = *this;
    padded.ids_.resize(static_cast<size_t>(num_rows), kPadding);
    if (num_segments() == 0 && num_rows > 0) padded.offsets_.push_back(0);
    padded.offsets_.back() = num_rows;
    return padded;
  });
}

Result<RowIds> RowIds::split(int64_t size, int64_t rank) const {
  MOETAPE_TRY(check_rank(size, rank));
  if (num_rows() % size != 0) {
    return fail(ErrorCode::kWrongShape, "rows: expected a multiple of {} (pad), got {}", size, num_rows());
  }
  const std::span<const int64_t> part = part_of(ids(), size, rank);
  const int64_t first = part.data() - ids_.data();
  std::vector<int64_t> offsets;
  for (const int64_t offset : offsets_) {
    offsets.push_back(std::clamp<int64_t>(offset - first, 0, std::ssize(part)));
  }
  return RowIds({part.begin(), part.end()}, std::move(offsets));
}

Result<RowIds> RowIds::sequence_major() const {
  const int64_t length = num_segments() == 0 ? 0 : std::ssize(segment(0));
  for (int64_t i = 0; i < num_segments(); ++i) {
    if (std::ssize(segment(i)) == length) continue;
    return fail(ErrorCode::kWrongShape, "segment {}: expected {} rows as segment 0 has, got {}", i, length,
                segment(i).size());
  }
  std::vector<int64_t> ids;
  ids.reserve(ids_.size());
  for (int64_t row = 0; row < length; ++row) {
    for (int64_t i = 0; i < num_segments(); ++i) ids.push_back(segment(i)[static_cast<size_t>(row)]);
  }
  return one_segment(std::move(ids));
}

Result<RowIds> RowIds::gather(std::span<const int64_t> index) const {
  MOETAPE_TRY(check_num_rows(std::ssize(index)));
  std::vector<int64_t> ids;
  ids.reserve(index.size());
  for (const int64_t row : index) {
    if (row < -1 || row >= num_rows()) {
      return fail(ErrorCode::kOutOfRange, "index: expected -1 (padding) to {}, got {} at {}", num_rows() - 1,
                  row, ids.size());
    }
    ids.push_back(row == -1 ? kPadding : ids_[static_cast<size_t>(row)]);
  }
  return one_segment(std::move(ids));
}

RowIds RowIds::one_segment(std::vector<int64_t> ids) {
  const auto num_rows = std::ssize(ids);
  return RowIds(std::move(ids), {0, num_rows});
}

}  // namespace moetape::inline v0
