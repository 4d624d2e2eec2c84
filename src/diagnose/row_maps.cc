#include "diagnose/row_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMostRanks = 64;

using Order = std::vector<int64_t>;  // of rows, by index
using Visit = std::function<void(RowMap)>;

struct Segment {
  int64_t first = 0;
  int64_t num_rows = 0;
};

Order no_rows(const Records& records) { return Order(static_cast<size_t>(records.num_rows), -1); }

std::vector<Segment> segments_of(const Records& records) {
  std::vector<Segment> segments;
  for (const RecordSequence& sequence : records.sequences) {
    if (sequence.num_rows > 0) segments.push_back({sequence.first, sequence.num_rows});
  }
  return segments;
}

// How context parallelism cuts segments: each is padded to parts of a multiple of `multiple` rows.
struct Cut {
  CauseKind kind = CauseKind::kZigzag;
  int64_t size = 2;  // ranks
  int64_t multiple = 1;

  int64_t num_parts() const { return kind == CauseKind::kZigzag ? 2 * size : size; }
  int64_t part_rows(const Segment& segment) const {
    const int64_t unit = num_parts() * multiple;
    return (segment.num_rows + unit - 1) / unit * multiple;
  }
};

void append_part(const Cut& cut, const Segment& segment, int64_t index, Order& order) {
  const int64_t part_rows = cut.part_rows(segment);
  const int64_t first = std::min(index * part_rows, segment.num_rows);
  const int64_t end = std::min(first + part_rows, segment.num_rows);
  for (int64_t row = first; row < end; ++row) order.push_back(segment.first + row);
}

void append_rank(const Cut& cut, const Segment& segment, int64_t rank, Order& order) {
  append_part(cut, segment, rank, order);
  if (cut.kind == CauseKind::kZigzag) append_part(cut, segment, 2 * cut.size - 1 - rank, order);
}

// The cuts that differ among those of trainers, which pad to products of small powers of two, too.
std::vector<Cut> cuts_of(CauseKind kind, int64_t size, std::span<const Segment> segments) {
  std::vector<Cut> cuts;
  for (const int64_t multiple : {1, 2, 4, 8, 16}) {
    const Cut cut{kind, size, multiple};
    const bool is_known = std::ranges::any_of(cuts, [&](const Cut& other) {
      return std::ranges::all_of(segments, [&](const Segment& one) {
        return one.num_rows == 0 || cut.part_rows(one) == other.part_rows(one);
      });
    });
    if (!is_known) cuts.push_back(cut);
  }
  return cuts;
}

std::string_view parts_name(CauseKind kind) { return kind == CauseKind::kZigzag ? "zig-zag" : "contiguous"; }

// b in this order of a's rows, and the other way around.
void visit_both(const Records& records, const Cut& cut, const Order& order, std::string_view scope,
                const Visit& visit) {
  const std::string parts =
      fmt::format("the {} parts of {} context-parallel ranks, {}", parts_name(cut.kind), cut.size, scope);
  RowMap forward{cut.kind, cut.size, fmt::format("b has its rows in the order of {}", parts),
                 no_rows(records)};
  RowMap inverse{cut.kind, cut.size,
                 fmt::format("b was put back from the order of {}, but was not in it", parts),
                 no_rows(records)};
  for (size_t i = 0; i < order.size(); ++i) {
    forward.from[i] = order[i];
    inverse.from[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  visit(std::move(forward));
  visit(std::move(inverse));
}

// All rows, rank after rank.
Order order_of_ranks(const Cut& cut, std::span<const Segment> segments) {
  Order order;
  for (int64_t rank = 0; rank < cut.size; ++rank) {
    for (const Segment& segment : segments) append_rank(cut, segment, rank, order);
  }
  return order;
}

Order order_of_each(const Cut& cut, std::span<const Segment> segments) {
  Order order;
  for (const Segment& segment : segments) {
    for (int64_t rank = 0; rank < cut.size; ++rank) append_rank(cut, segment, rank, order);
  }
  return order;
}

void visit_parallel(const Records& records, const Visit& visit) {
  const std::vector<Segment> segments = segments_of(records);
  const Segment whole{0, records.num_rows};
  const bool many = segments.size() > 1;
  for (int64_t size = 2; size <= std::min(kMostRanks, records.num_rows / 2); ++size) {
    for (const Cut& cut : cuts_of(CauseKind::kZigzag, size, segments)) {
      visit_both(records, cut, order_of_each(cut, segments), "one sequence behind the other", visit);
    }
    if (!many) continue;
    for (const CauseKind kind : {CauseKind::kZigzag, CauseKind::kContiguous}) {
      for (const Cut& cut : cuts_of(kind, size, segments)) {
        visit_both(records, cut, order_of_ranks(cut, segments), "one rank behind the other", visit);
      }
    }
    for (const Cut& cut : cuts_of(CauseKind::kZigzag, size, std::span(&whole, 1))) {
      visit_both(records, cut, order_of_ranks(cut, std::span(&whole, 1)), "cut from the joined batch", visit);
    }
  }
}

// b is what one rank holds, from the first index of each sequence on.
void visit_one_rank(const Records& records, const Visit& visit) {
  const auto num_valid = [](const RecordSide& side) {
    return std::ranges::count_if(side.rows, [](const std::byte* row) { return row != nullptr; });
  };
  const std::vector<Segment> segments = segments_of(records);
  const int64_t in_a = num_valid(records.a);
  const int64_t in_b = num_valid(records.b);
  const auto visit_rank = [&](const Cut& cut, int64_t rank) {
    RowMap map{cut.kind, cut.size,
               fmt::format("b holds the {} part of rank {} of {}", parts_name(cut.kind), rank, cut.size),
               no_rows(records)};
    for (const Segment& segment : segments) {
      Order order;
      append_rank(cut, segment, rank, order);
      std::ranges::copy(order, map.from.begin() + segment.first);
    }
    visit(std::move(map));
  };
  for (int64_t size = 2; size <= kMostRanks && in_b > 0 && in_b < in_a; ++size) {
    if (in_b * size > in_a * 2 || in_b * size * 2 < in_a) continue;  // padding moves it a little
    for (const CauseKind kind : {CauseKind::kZigzag, CauseKind::kContiguous}) {
      for (const Cut& cut : cuts_of(kind, size, segments)) {
        for (int64_t rank = 0; rank < size; ++rank) visit_rank(cut, rank);
      }
    }
  }
}

// Micro-batches of `size` sequences, padded to `length` rows each.
void visit_micro_batches(const Records& records, int64_t size, int64_t length, const Visit& visit) {
  RowMap by_token{CauseKind::kRowsTransposed, size,
                  fmt::format("micro-batches of {} sequences lie as s*B + b and were read as b*S + s", size),
                  no_rows(records)};
  RowMap by_sequence{
      CauseKind::kRowsTransposed, size,
      fmt::format("micro-batches of {} sequences lie as b*S + s and were read as s*B + b", size),
      no_rows(records)};
  for (int64_t i = 0; i < std::ssize(records.sequences); ++i) {
    const RecordSequence& sequence = records.sequences[static_cast<size_t>(i)];
    const auto source = [&](int64_t of_sequence, int64_t row) -> int64_t {
      const RecordSequence& from = records.sequences[static_cast<size_t>(i - i % size + of_sequence)];
      return row < from.num_rows ? from.first + row : -1;
    };
    for (int64_t row = 0; row < std::min(sequence.num_rows, length); ++row) {
      const auto index = static_cast<size_t>(sequence.first + row);
      const int64_t lies = i % size * length + row;
      by_token.from[index] = source(lies % size, lies / size);
      const int64_t read = row * size + i % size;
      by_sequence.from[index] = source(read / length, read % length);
    }
  }
  visit(std::move(by_token));
  visit(std::move(by_sequence));
}

void visit_transposed(const Records& records, const Visit& visit) {
  const int64_t num_sequences = std::ssize(records.sequences);
  if (num_sequences > 1) {
    int64_t length = 0;
    for (const RecordSequence& sequence : records.sequences) length = std::max(length, sequence.num_rows);
    for (int64_t size = 2; size <= num_sequences; ++size) {
      if (num_sequences % size == 0) visit_micro_batches(records, size, length, visit);
    }
    return;
  }
  for (int64_t size = 2; size <= records.num_rows / 2; ++size) {
    if (records.num_rows % size != 0) continue;
    const int64_t length = records.num_rows / size;
    RowMap map{CauseKind::kRowsTransposed, size,
               fmt::format("row x*{} + y of b is row y*{} + x of a: a batch of {} x {} was read in the other "
                           "order",
                           length, size, size, length),
               no_rows(records)};
    for (int64_t row = 0; row < records.num_rows; ++row) {
      map.from[static_cast<size_t>(row)] = row % length * size + row / length;
    }
    visit(std::move(map));
  }
}

}  // namespace

void visit_row_maps(const Records& records, const Visit& visit) {
  visit_transposed(records, visit);
  visit_parallel(records, visit);
  visit_one_rank(records, visit);
}

RowMap shift_map(const Records& records, int64_t shift) {
  RowMap map{.from = no_rows(records)};
  for (int64_t row = 0; row < records.num_rows; ++row) {
    if (row + shift >= 0 && row + shift < records.num_rows) map.from[static_cast<size_t>(row)] = row + shift;
  }
  return map;
}

}  // namespace moetape::inline v0
