#include "record/cpu/commit.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"

namespace moetape::inline v0 {

Commit::Commit(StoreWriter writer, int64_t max_rows)
    : writer_(std::move(writer)), slots_(writer_.store().options.num_slots, max_rows) {}

Result<Placement> Commit::check(const Lane& lane, const Slots& slots, const Layout& layout,
                                const CommitOptions& options) {
  MOETAPE_TRY(slots_.resolve(writer_.store(), slots));
  MOETAPE_TRY(check_versions(options, slots.size()));
  const bool idle = !lane.touched() && slots.size() == 0;  // a rank without tokens in this step
  if (idle) return Placement{};
  MOETAPE_ASSIGN(const int64_t batch_rows, lane.finish());
  return layout.place(batch_rows, slots.size());
}

Result<CommitReport> Commit::run(const Lane& lane, const Slots& slots, const Layout& layout,
                                 const CommitOptions& options) {
  const auto placement = guard_memory("commit", [&] { return check(lane, slots, layout, options); });
  const auto step = writer_.submit(options.step);
  if (!step) {
    refuse_all(writer_.store().writers.last_submitted());
    return Failure(placement ? step.error() : placement.error());
  }
  if (!placement) {
    refuse_all(*step);
    writer_.land(*step);
    return Failure(placement.error());
  }
  CommitReport report;
  report.step = static_cast<int64_t>(*step);
  report.num_tokens = slots.size();
  place(lane, *placement, options, report);
  writer_.land(*step);
  return report;
}

void Commit::refuse_all(uint64_t step) { writer_.refuse(slots_.data(), slots_.size(), step); }

void Commit::place(const Lane& lane, const Placement& placement, const CommitOptions& options,
                   CommitReport& report) {
  const std::vector<int64_t>* token_of_row = placement.token_of_row;
  const int64_t num_rows = token_of_row ? static_cast<int64_t>(token_of_row->size()) : placement.count;
  const auto step = static_cast<uint64_t>(report.step);
  std::array<int64_t, kBlockSlots> slots;
  std::array<Stamp, kBlockSlots> stamps;
  for (int64_t first = 0; first < num_rows; first += kBlockSlots) {
    const int64_t count = std::min(kBlockSlots, num_rows - first);
    int64_t num_tokens = 0;
    int64_t num_slots = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token =
          token_of_row ? (*token_of_row)[static_cast<size_t>(first + i)] : placement.dst + first + i;
      const auto index = static_cast<size_t>(token);
      slots[i] = token < 0 ? -1 : slots_[index];
      stamps[i] =
          make_stamp(token < 0 || !options.versions ? options.version : (*options.versions)[index], step);
      num_tokens += token >= 0;
      num_slots += slots[i] >= 0;
    }
    const int64_t first_row = placement.src + first;
    const int64_t num_refused =
        lane.any_faults() ? refuse_faulty(lane, first_row, count, slots.data(), stamps.data(), report) : 0;
    report.num_no_slot += num_tokens - num_slots;
    report.num_refused += num_refused;
    report.num_kept += num_slots - num_refused;
    const auto before = slots;
    if (writer_.place(slots.data(), count, lane.row(first_row), lane.row_stride(), stamps.data()) == 0)
      continue;
    for (int64_t i = 0; i < count; ++i) {
      const bool kept_before = version_of(stamps[i]) != kRefusedVersion;
      if (slots[i] == Plane::kSuperseded && kept_before) count_superseded(first_row + i, before[i], report);
    }
  }
  report.num_elsewhere = report.num_tokens - report.num_kept - report.num_refused - report.num_no_slot;
}

void Commit::count_superseded(int64_t row, int64_t slot, CommitReport& report) {
  if (!report.first_offender) report.first_offender = Offender{-1, row, slot, RowFault::kSuperseded};
  report.num_by_fault[static_cast<size_t>(RowFault::kSuperseded)] += 1;
  report.num_refused += 1;
  report.num_kept -= 1;
}

// Turns the stamps of faulty rows into refusals and counts them.
int64_t Commit::refuse_faulty(const Lane& lane, int64_t first_row, int64_t count, const int64_t* slots,
                              Stamp* stamps, CommitReport& report) const {
  int64_t num_refused = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < 0 || !lane.is_faulty(first_row + i)) continue;
    stamps[i] = refused(step_of(stamps[i]));
    const Offender& offender = lane.offender(first_row + i);
    if (!report.first_offender) report.first_offender = offender;
    report.num_by_fault[static_cast<size_t>(offender.fault)] += 1;
    num_refused += 1;
  }
  return num_refused;
}

}  // namespace moetape::inline v0
