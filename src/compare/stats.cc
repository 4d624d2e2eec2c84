#include "moetape/stats.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "compare/row_comparer.h"
#include "compare/series.h"
#include "routes/assembly.h"
#include "routes/spec_check.h"
#include "simd/bitpack.h"
#include "simd/narrow.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMostCounts = int64_t{1} << 22;  // of a Series<Load>
constexpr int64_t kRowsAtOnce = 1024;

int64_t num_counts(const RouteSpec& spec) { return int64_t{spec.num_moe_layers()} * spec.num_experts(); }

int64_t most_windows(const RouteSpec& spec) {
  return std::clamp<int64_t>(kMostCounts / num_counts(spec), 1, kMostWindows);
}

// Counts the ids of one layer's lists, which stand row_ids apart, into `counts`.
template <class Id>
void count_lists(const Id* list, int64_t num_rows, int64_t row_ids, int32_t top_k, int64_t* counts) {
  for (int64_t row = 0; row < num_rows; ++row, list += row_ids) {
    for (int32_t k = 0; k < top_k; ++k) ++counts[list[k]];
  }
}

// Adds the ids of dense rows to several loads, layer after layer, so that the counts of one stay in the
// cache. Many rows are counted once and then added to each load, few are counted again for each.
template <class Id>
void count_rows(const RouteSpec& spec, const std::byte* rows, int64_t num_rows,
                std::span<Load* const> loads) {
  const auto* list = reinterpret_cast<const Id*>(rows);
  const auto num_experts = static_cast<size_t>(spec.num_experts());
  const int64_t row_ids = int64_t{spec.num_moe_layers()} * spec.top_k();
  const bool many = num_rows * spec.top_k() >= spec.num_experts();
  Load once(many ? num_experts : 0);
  for (size_t first = 0; first < loads[0]->size(); first += num_experts, list += spec.top_k()) {
    if (many) {
      std::ranges::fill(once, 0);
      count_lists(list, num_rows, row_ids, spec.top_k(), once.data());
    }
    for (Load* load : loads) {
      int64_t* counts = load->data() + first;
      if (many) {
        for (size_t expert = 0; expert < num_experts; ++expert) counts[expert] += once[expert];
      } else {
        count_lists(list, num_rows, row_ids, spec.top_k(), counts);
      }
    }
  }
}

// Adds one record to stats; used once.
class RecordAdder {
 public:
  RecordAdder(Stats& to, const Routes& routes)
      : to_(to),
        routes_(routes),
        first_row_(to.num_rows()),
        versions_(row_versions(routes)),
        comparer_(to.spec) {}

  void add() {
    const std::span<const Reason> reasons = routes_.reasons();
    const auto num_rows = std::ssize(reasons);
    if (num_rows > 0) {
      cover(to_.load_by_row, first_row_, first_row_ + num_rows - 1, most_windows(to_.spec));
    }
    for (int64_t row = 0; row < num_rows;) {
      int64_t end = row;
      while (end < num_rows && reasons[static_cast<size_t>(end)] == Reason::kValid) ++end;
      add_run(row, end);
      row = end + 1;
    }
    comparer_.add_to(to_.reuse);
    add_counts(to_.rows_by_reason, routes_.count_by_reason());
    ++to_.num_sequences;
  }

 private:
  // Valid rows [first, end).
  void add_run(int64_t first, int64_t end) {
    for (int64_t row = first; row < end;) {
      const int64_t part_end = end_of_part(row, end);
      add_load(row, part_end);
      row = part_end;
    }
    for (int64_t row = first + 1; row < end; row += comparer_.block_rows()) {
      comparer_.compare(row_at(row), row_at(row - 1), std::min(comparer_.block_rows(), end - row));
    }
  }

  // Of one version and one window of load_by_row.
  int64_t end_of_part(int64_t row, int64_t end) const {
    const int64_t width = to_.load_by_row.width;
    end = std::min(end, row + width - (first_row_ + row) % width);
    const auto other = [&](uint32_t version) { return version != versions_[static_cast<size_t>(row)]; };
    return std::find_if(versions_.begin() + row, versions_.begin() + end, other) - versions_.begin();
  }

  void add_load(int64_t first, int64_t end) {
    const uint32_t version = versions_[static_cast<size_t>(first)];
    std::vector<Load*> loads = {&to_.load, &window_of(to_.load_by_row, first_row_ + first)};
    std::optional<uint32_t> named;
    if (version != kNoVersion) {
      named = version;
      cover(to_.load_by_version, version, version, most_windows(to_.spec));
      loads.push_back(&window_of(to_.load_by_version, version));
    }
    to_.rows_by_version[named] += end - first;
    for (Load* load : loads) load->resize(to_.load.size());
    for (int64_t row = first; row < end; row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, end - row);
      to_.spec.id_bytes() == 1 ? count_rows<uint8_t>(to_.spec, row_at(row), count, loads)
                               : count_rows<uint16_t>(to_.spec, row_at(row), count, loads);
    }
  }

  const std::byte* row_at(int64_t row) const { return routes_.row(row).data(); }

  Stats& to_;
  const Routes& routes_;
  int64_t first_row_;
  std::vector<uint32_t> versions_;
  RowComparer comparer_;
};

}  // namespace

Result<Stats> Stats::create(const RouteSpec& spec) {
  return guard_memory("stats", [&]() -> Result<Stats> {
    Stats stats{.spec = spec};
    stats.load.resize(static_cast<size_t>(num_counts(spec)));
    stats.reuse.resize(static_cast<size_t>(spec.num_moe_layers()));
    return stats;
  });
}

Status Stats::add(const Routes& routes) {
  MOETAPE_TRY(check_same_spec("routes", spec, routes.spec()));
  const auto num_ids = std::ssize(routes.ids()) / spec.id_bytes();
  const int64_t largest = simd::largest_id(routes.ids().data(), spec.id_bytes(), num_ids);
  if (largest >= spec.num_experts()) {
    return fail(ErrorCode::kOutOfRange, "routes: expected ids in [0, {}), got {}", spec.num_experts(),
                largest);
  }
  return guard_memory("stats", [&]() -> Status {
    RecordAdder(*this, routes).add();
    return {};
  });
}

Status Stats::merge(const Stats& other) {
  MOETAPE_TRY(check_same_spec("other", spec, other.spec));
  return guard_memory("stats", [&]() -> Status {
    num_sequences += other.num_sequences;
    add_counts(rows_by_reason, other.rows_by_reason);
    for (const auto& [version, rows] : other.rows_by_version) rows_by_version[version] += rows;
    add_sum(load, other.load);
    add_series(load_by_version, other.load_by_version, most_windows(spec));
    add_series(load_by_row, other.load_by_row, most_windows(spec));
    for (size_t layer = 0; layer < reuse.size(); ++layer) reuse[layer] += other.reuse[layer];
    return {};
  });
}

int64_t Stats::num_rows() const {
  return std::accumulate(rows_by_reason.begin(), rows_by_reason.end(), int64_t{0});
}

std::span<const int64_t> Stats::layer_load(const Load& all_layers, int32_t column) const {
  if (all_layers.empty()) return {};
  const auto num_experts = static_cast<size_t>(spec.num_experts());
  return std::span(all_layers).subspan(static_cast<size_t>(column) * num_experts, num_experts);
}

Stats::Bytes Stats::bytes() const {
  const int64_t row_ids = int64_t{spec.num_moe_layers()} * spec.top_k();
  const int id_bits = simd::id_bits(spec.num_experts());
  return {.narrow = num_rows() * spec.row_bytes(),
          .bitpacked = num_rows() * simd::packed_row_bytes(row_ids, id_bits),
          .int32 = num_rows() * row_ids * 4};
}

}  // namespace moetape::inline v0
