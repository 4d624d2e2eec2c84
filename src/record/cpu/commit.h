// Commit: carries one step from a lane to its slots, or refuses them all. One per lane; its thread's.
#pragma once

#include <cstdint>

#include "moetape/recorder.h"
#include "record/cpu/lane.h"
#include "record/step_slots.h"
#include "store/store_writer.h"

namespace moetape::inline v0 {

class Commit {
 public:
  Commit(StoreWriter writer, int64_t max_rows);
  // What it holds beside the lane.
  static int64_t required_bytes(int64_t num_slots, int64_t max_rows) {
    return StepSlots::required_bytes(num_slots, max_rows);
  }

  // Places every row of this rank that is good and has a slot, and refuses the slots of those that are not.
  // On an error all slots in range are refused and nothing else is touched.
  Result<CommitReport> run(const Lane& lane, const Slots& slots, const Layout& layout,
                           const CommitOptions& options);

 private:
  Result<Placement> check(const Lane& lane, const Slots& slots, const Layout& layout,
                          const CommitOptions& options);
  void refuse_all(uint64_t step);
  void place(const Lane& lane, const Placement& placement, const CommitOptions& options,
             CommitReport& report);
  static void count_superseded(int64_t row, int64_t slot, CommitReport& report);
  int64_t refuse_faulty(const Lane& lane, int64_t first_row, int64_t count, const int64_t* slots,
                        Stamp* stamps, CommitReport& report) const;

  StoreWriter writer_;
  StepSlots slots_;
};

}  // namespace moetape::inline v0
