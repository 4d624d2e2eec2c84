#include "diagnose/records.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace moetape::inline v0 {
namespace {

int32_t read_id(const std::byte* ids, int32_t id_bytes, int64_t index) {
  if (id_bytes == 1) return static_cast<int32_t>(ids[index]);
  uint16_t id = 0;
  std::memcpy(&id, ids + index * 2, 2);
  return id;
}

RecordSide new_side(const RouteSpec& spec) {
  return {.layers = {spec.layers().begin(), spec.layers().end()},
          .top_k = spec.top_k(),
          .num_experts = spec.num_experts(),
          .id_bytes = spec.id_bytes()};
}

void place_rows(const Routes& routes, const RecordSequence& sequence, int64_t start, RecordSide& side) {
  for (int64_t row = 0; row < routes.num_rows(); ++row) {
    const int64_t index = routes.start() + row - start;
    if (index >= sequence.num_rows) return;
    if (routes.reasons()[static_cast<size_t>(row)] != Reason::kValid) continue;
    side.rows[static_cast<size_t>(sequence.first + index)] = routes.row(row).data();
  }
}

RecordSequence span_of(const Routes& a, const Routes& b) {
  RecordSequence sequence{.start_a = a.start(), .start_b = b.start()};
  sequence.aligned = a.num_rows() == 0 || b.num_rows() == 0 || (a.start() < b.end() && b.start() < a.end());
  if (a.num_rows() == 0) sequence.start_a = b.start();
  if (b.num_rows() == 0) sequence.start_b = a.start();
  if (sequence.aligned) {
    const int64_t start = std::min(sequence.start_a, sequence.start_b);
    sequence.start_a = sequence.start_b = start;
    sequence.num_rows =
        std::max(a.num_rows() > 0 ? a.end() : start, b.num_rows() > 0 ? b.end() : start) - start;
  } else {
    sequence.num_rows = std::max(a.num_rows(), b.num_rows());
  }
  return sequence;
}

}  // namespace

uint64_t expert_number(int32_t id) {  // splitmix64
  uint64_t number = (static_cast<uint64_t>(id) + 1) * 0x9E3779B97F4A7C15;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

int32_t RecordSide::id(int64_t row, int32_t column, int32_t k) const {
  return read_id(rows[static_cast<size_t>(row)], id_bytes, int64_t{column} * top_k + k);
}

int64_t Records::sequence_of(int64_t row) const {
  const auto after = std::ranges::upper_bound(sequences, row, {}, &RecordSequence::first);
  return after - sequences.begin() - 1;
}

Records lay_out(std::span<const Routes> a, std::span<const Routes> b, int64_t max_rows) {
  Records records{.a = new_side(a.front().spec()), .b = new_side(b.front().spec())};
  for (size_t i = 0; i < a.size(); ++i) {
    RecordSequence sequence = span_of(a[i], b[i]);
    sequence.first = records.num_rows;
    const int64_t fitting = std::min(sequence.num_rows, max_rows - records.num_rows);
    records.num_left_out += sequence.num_rows - fitting;
    sequence.num_rows = fitting;
    records.num_rows += fitting;
    records.sequences.push_back(sequence);
  }
  records.a.rows.resize(static_cast<size_t>(records.num_rows));
  records.b.rows.resize(static_cast<size_t>(records.num_rows));
  for (size_t i = 0; i < a.size(); ++i) {
    const RecordSequence& sequence = records.sequences[i];
    place_rows(a[i], sequence, sequence.start_a, records.a);
    place_rows(b[i], sequence, sequence.start_b, records.b);
  }
  std::vector<int64_t> all(static_cast<size_t>(records.num_rows));
  std::iota(all.begin(), all.end(), int64_t{0});
  for (RecordSide* side : {&records.a, &records.b}) {
    side->lists.resize(side->rows.size() * side->layers.size());
    number_lists(all, *side);
  }
  return records;
}

void number_lists(std::span<const int64_t> rows, RecordSide& side) {
  std::vector<uint64_t> numbers;
  for (int32_t id = 0; id < side.num_experts; ++id) numbers.push_back(expert_number(id));
  for (const int64_t row : rows) {
    const std::byte* ids = side.rows[static_cast<size_t>(row)];
    uint64_t* list = side.lists.data() + row * side.num_layers();
    for (int64_t column = 0; column < side.num_layers(); ++column, ++list) {
      *list = 0;
      for (int64_t k = 0; k < side.top_k && ids != nullptr; ++k) {
        *list += numbers[static_cast<size_t>(read_id(ids, side.id_bytes, column * side.top_k + k))];
      }
    }
  }
}

ColumnPairs pairs_of(const ColumnMap& map) {
  ColumnPairs pairs;
  for (size_t column = 0; column < map.size(); ++column) {
    if (map[column] >= 0) pairs.emplace_back(static_cast<int32_t>(column), map[column]);
  }
  return pairs;
}

bool holds(const Records& records, int64_t i, int64_t j, const ColumnPairs& columns) {
  if (j < 0 || j >= records.num_rows || !records.a.has(j) || !records.b.has(i) || columns.empty()) {
    return false;
  }
  const uint64_t* in_a = records.a.lists.data() + j * records.a.num_layers();
  const uint64_t* in_b = records.b.lists.data() + i * records.b.num_layers();
  size_t num_equal = 0;
  for (const auto& [of_b, of_a] : columns) num_equal += in_b[of_b] == in_a[of_a] ? 1 : 0;
  return num_equal * 2 >= columns.size();
}

}  // namespace moetape::inline v0
