// StepSlots: the slots of one step, resolved and checked. Keeps its memory; one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "moetape/recorder.h"
#include "record/slot_set.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {

class StepSlots {
 public:
  StepSlots(int64_t num_slots, int64_t max_rows);
  static int64_t required_bytes(int64_t num_slots, int64_t max_rows) { return num_slots / 8 + max_rows * 8; }

  // The first slot that is out of range or stands twice is the error; the others are known all the same.
  Status resolve(const Store::Impl& store, const Slots& slots);

  // -1 = no place, or not in range.
  int64_t operator[](size_t token) const { return slots_[token]; }
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  const int64_t* data() const { return slots_.data(); }

 private:
  SlotSet seen_;
  std::vector<int64_t> slots_;
};

// kWrongShape unless there is one version a token, kStepOrder for what is no version.
Status check_versions(const CommitOptions& options, int64_t num_tokens);

}  // namespace moetape::inline v0
