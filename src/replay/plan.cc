#include <algorithm>

#include "base/fail.h"
#include "moetape/replay.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kPositionMask = (int64_t{1} << 32) - 1;

constexpr bool is_padding(int64_t id) { return id == 0 || id == -1; }

Status check_layers(std::span<const int32_t> layers) {
  std::vector<int32_t> sorted(layers.begin(), layers.end());
  std::ranges::sort(sorted);
  if (!sorted.empty() && sorted.front() < 0) {
    return fail(ErrorCode::kInvalidArgument, "layers: expected global indices of 0 or more, got {}",
                sorted.front());
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    return fail(ErrorCode::kInvalidArgument, "layers: expected each once, got {} twice", *twice);
  }
  return {};
}

}  // namespace

Result<Plan> Plan::from_row_ids(std::span<const int64_t> row_ids,
                                std::optional<std::vector<int32_t>> layers) {
  if (layers) MOETAPE_TRY(check_layers(*layers));
  std::vector<Run> runs;
  for (size_t i = 0; i < row_ids.size(); ++i) {
    const int64_t id = row_ids[i];
    if (is_padding(id)) continue;
    const int64_t sequence = (id >> 32) - 1;
    const int64_t position = id & kPositionMask;
    const int64_t row = static_cast<int64_t>(i);
    if (sequence < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "row_ids: row {}: expected padding (0 or -1) or (sequence + 1) << 32 | position, got {}",
                  row, id);
    }
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->row + last->count == row && last->sequence == sequence &&
        last->start + last->count == position) {
      ++last->count;
    } else {
      runs.push_back({row, sequence, position, 1});
    }
  }

  Plan plan(static_cast<int64_t>(row_ids.size()), std::move(runs), std::move(layers));
  const std::vector<Run> sorted = plan.sorted_runs();
  for (size_t i = 1; i < sorted.size(); ++i) {
    const Run& before = sorted[i - 1];
    const Run& run = sorted[i];
    if (before.sequence == run.sequence && run.start < before.start + before.count) {
      return fail(ErrorCode::kInvalidArgument,
                  "row_ids: expected each once, got position {} of sequence {} at rows {} and {}", run.start,
                  run.sequence, before.row + run.start - before.start, run.row);
    }
  }
  return plan;
}

std::vector<Plan::Run> Plan::sorted_runs() const {
  std::vector<Run> sorted = runs_;
  std::ranges::sort(sorted, {}, [](const Run& run) { return std::pair(run.sequence, run.start); });
  return sorted;
}

std::vector<int64_t> Plan::row_ids() const {
  std::vector<int64_t> ids(static_cast<size_t>(num_rows_), 0);
  for (const Run& run : runs_) {
    for (int64_t i = 0; i < run.count; ++i) {
      ids[static_cast<size_t>(run.row + i)] = row_id(run.sequence, run.start + i);
    }
  }
  return ids;
}

std::vector<RowSpan> Plan::needs() const {
  std::vector<RowSpan> needs;
  for (const Run& run : sorted_runs()) {
    const int64_t end = run.start + run.count;
    if (!needs.empty() && needs.back().sequence == run.sequence && needs.back().end == run.start) {
      needs.back().end = end;
    } else {
      needs.push_back({run.sequence, run.start, end});
    }
  }
  return needs;
}

}  // namespace moetape::inline v0
