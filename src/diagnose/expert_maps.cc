#include "diagnose/expert_maps.h"

#include <algorithm>

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMostPairs = int64_t{1} << 24;
constexpr size_t kMostRows = 8192;

class Counts {
 public:
  Counts(int32_t in_b, int32_t in_a)
      : in_b_(in_b), in_a_(in_a), times_(static_cast<size_t>(in_b) * static_cast<size_t>(in_a)) {}

  void clear() { std::ranges::fill(times_, 0); }
  void add_lists(const Records& records, int64_t row, int32_t of_b, int32_t of_a) {
    for (int32_t k = 0; k < records.b.top_k; ++k) {
      uint32_t* times =
          times_.data() + static_cast<size_t>(records.b.id(row, of_b, k)) * static_cast<size_t>(in_a_);
      for (int32_t other = 0; other < records.a.top_k; ++other) ++times[records.a.id(row, of_a, other)];
    }
  }
  std::vector<int32_t> likeliest() const {
    std::vector<int32_t> map(static_cast<size_t>(in_b_), -1);
    for (size_t id = 0; id < map.size(); ++id) {
      const auto first = times_.begin() + static_cast<std::ptrdiff_t>(id) * in_a_;
      const auto most = std::max_element(first, first + in_a_);
      if (*most > 0) map[id] = static_cast<int32_t>(most - first);
    }
    return map;
  }

 private:
  int32_t in_b_;
  int32_t in_a_;
  std::vector<uint32_t> times_;
};

bool moves_any(const std::vector<int32_t>& map) {
  for (size_t id = 0; id < map.size(); ++id) {
    if (map[id] >= 0 && map[id] != static_cast<int32_t>(id)) return true;
  }
  return false;
}

}  // namespace

std::optional<ExpertMaps> learn_experts(const Records& records, std::span<const int64_t> rows,
                                        const ColumnPairs& columns) {
  if (int64_t{records.a.num_experts} * records.b.num_experts > kMostPairs) return {};
  Counts counts(records.b.num_experts, records.a.num_experts);
  const size_t step = std::max<size_t>(rows.size() / kMostRows, 1);
  ExpertMaps maps;
  for (const auto& [of_b, of_a] : columns) {
    counts.clear();
    for (size_t at = 0; at < rows.size(); at += step) {
      if (records.a.has(rows[at])) counts.add_lists(records, rows[at], of_b, of_a);
    }
    std::vector<int32_t> map = counts.likeliest();
    if (moves_any(map)) maps.emplace(of_b, std::move(map));
  }
  return maps;
}

void apply_experts(const ExpertMaps& maps, std::span<const int64_t> rows, Records& records) {
  constexpr uint64_t kNoList = 0x5DEECE66D1234567;
  RecordSide& side = records.b;
  for (const auto& [column, map] : maps) {
    for (const int64_t row : rows) {
      uint64_t list = 0;
      for (int32_t k = 0; k < side.top_k; ++k) {
        const int32_t id = map[static_cast<size_t>(side.id(row, column, k))];
        list += id >= 0 ? expert_number(id) : kNoList;
      }
      side.lists[static_cast<size_t>(row * side.num_layers() + column)] = list;
    }
  }
}

}  // namespace moetape::inline v0
