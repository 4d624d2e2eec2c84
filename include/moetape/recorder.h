// Recorder: takes the router's ids while a forward runs and commits them to a store behind it.
//
//   rec.begin(); … router hooks: rec.capture(layer, ids) …; auto ticket = rec.commit(slots, layout);
//
// A recorder owns lanes, each one staging buffer of max_rows rows. One thread at a time uses one lane; lanes
// are independent. In the steady state a step allocates nothing. Nothing here waits.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/layout.h"
#include "moetape/slots.h"
#include "moetape/store.h"

namespace moetape::inline v0 {

struct RecorderOptions {
  int64_t max_rows = 0;                   // router rows of the largest forward (the gathered batch)
  int num_lanes = 1;                      // overlapped micro-batches use different lanes
  std::map<int32_t, IdMap> id_maps = {};  // by global layer; layers not named give logical ids
  int64_t memory_limit_bytes = 0;         // 0 = none; above it create() fails with kMemoryLimit
};

enum class RowFault : uint8_t {
  kNegative,
  kTooLarge,  // num_experts or more
  kRepeated,
  kShared,      // a routed id in a shared column
  kSuperseded,  // its slot holds a row of a later step, or was written in this step already
};
inline constexpr int kNumRowFaults = 5;
std::string_view row_fault_name(RowFault fault);  // "negative"

// The first row of a step that was refused.
struct Offender {
  int32_t layer = 0;  // -1 where it is about no layer (kSuperseded)
  int64_t row = 0;    // of the router's batch
  int64_t value = 0;  // the id as it came (at most INT64_MAX); for kSuperseded the slot
  RowFault fault = RowFault::kNegative;
};

struct CommitReport {
  int64_t step = 0;
  int64_t num_tokens = 0;                                // that the slots name
  int64_t num_kept = 0;                                  // rows now in the store
  int64_t num_refused = 0;                               // rows that are missing because of their ids or slot
  int64_t num_no_slot = 0;                               // tokens with slot -1 or the pad slot
  int64_t num_elsewhere = 0;                             // tokens whose rows another rank has
  std::array<int64_t, kNumRowFaults> num_by_fault = {};  // refused rows, by the first fault found
  std::optional<Offender> first_offender;
};

// What a commit gives. On the CPU it has landed when commit returns.
class Ticket {
 public:
  explicit Ticket(CommitReport report) : report_(report) {}
  bool ready() const { return true; }
  Status wait(std::chrono::milliseconds timeout = std::chrono::milliseconds{10'000}) const {
    (void)timeout;
    return {};
  }
  const CommitReport& report() const { return report_; }

 private:
  CommitReport report_;
};

struct CommitOptions {
  std::optional<int64_t> step = {};  // given by the engine's scheduler; default: the store counts
  uint32_t version = 0;              // policy version of all rows
  std::optional<std::span<const uint32_t>> versions = {};  // or one per token
  int lane = 0;
};

// Since creation; rows and calls.
struct RecorderCounters {
  int64_t captures = 0;
  int64_t failed_captures = 0;
  int64_t commits = 0;
  int64_t failed_commits = 0;
  int64_t abandoned = 0;  // steps that were begun and never committed
  int64_t rows_kept = 0;
  int64_t rows_refused = 0;
  int64_t rows_no_slot = 0;
};

class Recorder {
 public:
  // For a store of num_slots slots.
  static Result<int64_t> required_bytes(const RouteSpec& spec, int64_t num_slots,
                                        const RecorderOptions& options);
  // Keeps the store alive. kInvalidArgument names the option that does not fit.
  static Result<std::unique_ptr<Recorder>> create(std::shared_ptr<Store> store,
                                                  const RecorderOptions& options);
  ~Recorder();

  const RouteSpec& spec() const;
  int64_t max_rows() const;
  int num_lanes() const;

  // Opens a step, dropping what a forward that was never committed left (a warm-up, a dummy run).
  Status begin(int lane = 0);

  // One layer's ids [n, K] or [n, K + shared_columns] of rows [offset, offset + n) of the batch.
  // An id that is no expert makes its row refused; everything else wrong is an error at once: a layer that is
  // not in the spec (kOutOfRange; the step goes on), wrong shape or more rows than max_rows, rows captured
  // twice (the step fails at commit).
  Status capture(int32_t layer, const IdsView& ids, int lane = 0, int64_t offset = 0);

  // All layers at once, of a batch [layers, rows, columns] or [rows, layers, columns]: `first` is layer 0's
  // view and layer i begins layer_stride elements behind it times i.
  Status capture_all(const IdsView& first, int64_t layer_stride, int32_t num_layers, int lane = 0);

  // For a caller whose ids were unusable before they could be captured: counts a failed capture, and the step
  // fails at commit with this error, if it is the first.
  Status fail_step(const Error& error, int lane = 0);

  // Slots name all tokens of this rank's step. A failed commit refuses every slot in range that it names,
  // touches no other, and closes the step: kNotCaptured and kWrongShape name the layers; kOutOfRange and
  // kInvalidArgument the slot out of range or named twice; kStepOrder a step or version that cannot be.
  Result<Ticket> commit(const Slots& slots, const Layout& layout = Layout::whole(),
                        const CommitOptions& options = {});

  RecorderCounters counters() const;

 private:
  struct Impl;
  explicit Recorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moetape::inline v0
