// StepRing: the steps of one lane that were handed to the device and are not over. Each has a place in pinned
// memory for what goes there and what comes back, and a ticket.
//
// Steps end in order. Whoever looks (a ticket, the next step, a move of the store, the recorder's end) brings
// home what the device has finished; the ring's mutex lets any thread look. A step whose place in the ring is
// wanted again while the device is still at it is waited for. A step that the device never finishes is lost:
// its slots, where the host knows them, are refused.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "record/cuda/device.h"
#include "record/cuda/plan.h"
#include "record/recorder_impl.h"
#include "store/store_writer.h"

namespace moetape::inline v0::cuda {

class StepRing;

// Outlives the ring, for tickets that do.
struct RingLink {
  std::mutex mutex;
  StepRing* ring = nullptr;
};

class StepTicket final : public Ticket::Pending {
 public:
  explicit StepTicket(std::shared_ptr<RingLink> link) : link_(std::move(link)) {}
  bool ready() override;
  Status wait(std::chrono::milliseconds timeout) override;
  CommitReport report() override;

 private:
  friend class StepRing;
  void look();  // under the link's mutex
  std::shared_ptr<RingLink> link_;
  // Under the link's mutex.
  bool over_ = false;
  CommitReport report_;
  std::optional<Error> error_;
};

struct StepInFlight {
  // Its place in pinned memory.
  StepHeader* header = nullptr;  // entries and versions follow
  StepReport* report = nullptr;
  StepReport* device_report = nullptr;
  std::byte* packed = nullptr;
  EventHandle home = nullptr;  // behind its kernel, and behind the copy of its packed rows

  bool under_way = false;
  bool followed = false;  // `home` is of this step
  bool on_own = false;    // and on the ring's own stream
  uint64_t serial = 0;
  uint64_t step = 0;
  bool lands = false;  // it is a step of the writer, not a part of one
  int64_t src = 0;
  int64_t count = 0;  // entries
  int64_t num_ours = 0;
  std::shared_ptr<StepTicket> ticket;
};

class StepRing {
 public:
  // `packed`: where the device packs rows; null where it writes into the store. `own`: a stream of the
  // recorder's, which outlives the ring.
  StepRing(const LanePlan& plan, std::shared_ptr<Device> device, StoreWriter writer, const std::byte* packed,
           StreamHandle own, AtomicCounters* counters);
  ~StepRing();
  StepRing(const StepRing&) = delete;
  StepRing& operator=(const StepRing&) = delete;
  Status create();

  StoreWriter& writer() { return writer_; }
  std::unique_lock<std::mutex> lock() { return std::unique_lock(link_->mutex); }

  // All below: under the lock.

  // A place for the next step. Those before it were followed.
  StepInFlight& next();
  // The step is on its way: fills its header's serial and report; gives its ticket.
  std::shared_ptr<StepTicket> open(StepInFlight& step, CommitReport report);
  // Behind a step's kernel, which is on `stream`.
  Status follow(StepInFlight& step, StreamHandle stream);
  // Behind the kernels of all steps so far: `stream` may go on to the next.
  Status follow_all(StreamHandle stream);
  // Brings home what is finished.
  void poll();
  // Waits for the steps under way, whose kernels are on `stream`; what was not finished is lost, because of
  // `error` where there is one.
  void settle(StreamHandle stream, const std::optional<Error>& error = {});

 private:
  bool device_done(const StepInFlight& step) const;
  Status bring_home(StepInFlight& step);
  Result<bool> packed_rows_came(StepInFlight& step);
  void wait_for(StepInFlight& step, const std::optional<Error>& error);
  CommitReport read_report(const StepInFlight& step) const;
  void place_packed(const StepInFlight& step, CommitReport& report);
  void lose(StepInFlight& step, const Error& error);
  void end(StepInFlight& step);
  StepInFlight& at(uint64_t serial) { return steps_[serial % kStepsInFlight]; }
  uint64_t oldest() const { return serial_ < kStepsInFlight ? 1 : serial_ - kStepsInFlight + 1; }

  LanePlan plan_;
  std::shared_ptr<Device> device_;
  StoreWriter writer_;
  const std::byte* packed_;
  const StreamHandle own_;
  AtomicCounters* counters_;
  std::shared_ptr<RingLink> link_;
  MappedMemory pinned_;
  std::array<StepInFlight, kStepsInFlight> steps_;
  uint64_t serial_ = 0;                               // of the newest step; 0 = none
  uint32_t num_looks_ = 0;                            // that found nothing
  std::vector<std::shared_ptr<StepTicket>> tickets_;  // used again when nobody else holds them
};

}  // namespace moetape::inline v0::cuda
