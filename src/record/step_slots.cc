#include "record/step_slots.h"

#include <algorithm>

#include "base/fail.h"

namespace moetape::inline v0 {

StepSlots::StepSlots(int64_t num_slots, int64_t max_rows) : seen_(num_slots) {
  slots_.reserve(static_cast<size_t>(max_rows));
}

Status StepSlots::resolve(const Store::Impl& store, const Slots& slots) {
  slots_.clear();
  MOETAPE_TRY(Store::Impl::check_size(slots, "slots"));
  slots_.resize(static_cast<size_t>(slots.size()));
  Status status = store.resolve(slots, "slots", 0, slots.size(), slots_.data());
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] < 0) continue;
    store.plane.expect(slots_[i]);
    if (seen_.add(slots_[i]) || !status) continue;
    status = fail(ErrorCode::kInvalidArgument, "slots[{}]: expected every slot once in a step, got {} twice",
                  i, slots_[i]);
  }
  for (const int64_t slot : slots_) {
    if (slot >= 0) seen_.remove(slot);
  }
  return status;
}

Status check_versions(const CommitOptions& options, int64_t num_tokens) {
  uint32_t largest = options.version;
  if (options.versions) {
    const auto num_versions = static_cast<int64_t>(options.versions->size());
    if (num_versions != num_tokens) {
      return fail(ErrorCode::kWrongShape, "versions: expected {}, one per slot, got {}", num_tokens,
                  num_versions);
    }
    largest = num_versions == 0 ? 0 : *std::ranges::max_element(*options.versions);
  }
  if (largest > kMaxVersion) {
    return fail(ErrorCode::kStepOrder, "version: expected 0 to {}, got {}", kMaxVersion, largest);
  }
  return {};
}

}  // namespace moetape::inline v0
