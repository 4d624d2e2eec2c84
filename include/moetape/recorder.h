// Recorder: takes the router's ids while a forward runs and commits them to a store behind it.
//
//   rec.begin(); … router hooks: rec.capture(layer, ids) …; auto ticket = rec.commit(slots, layout);
//
// A recorder owns lanes, each one staging buffer of max_rows rows. One thread at a time uses one lane; lanes
// are independent. In the steady state a step allocates nothing.
//
// On a CUDA device (RecorderOptions::cuda) the same calls enqueue work on the caller's streams and return. A
// commit is prepare(), outside any graph and before every replay, and launch(), which a graph may hold; steps
// land later, as their tickets say. Nothing waits for the device, unless more than kStepsInFlight steps of a
// lane are under way; then the next waits for the oldest. docs/cuda.md tells the rules.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/layout.h"
#include "moetape/slots.h"
#include "moetape/store.h"

namespace moetape::inline v0 {

// A cudaStream_t; null is the default stream. cudaStreamPerThread is refused: it is another in every thread.
// The CPU has none.
using StreamHandle = void*;

// How rows come from a device into the store; the results are the same.
enum class CommitPath : uint8_t {
  kMapped,  // the kernel writes rows and stamps into the store's pinned memory
  kPacked,  // the kernel packs rows on the device, one copy brings them, whoever asks the ticket places them
};

struct CudaOptions {
  int device = 0;
  CommitPath path = CommitPath::kMapped;
  // Device memory of the caller's that outlives the recorder, at least required_device_bytes(), at a multiple
  // of 256; null = the recorder's own.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Steps of one lane on a device that may be under way before the next waits for the oldest.
inline constexpr int kStepsInFlight = 4;

struct RecorderOptions {
  int64_t max_rows = 0;                   // router rows of the largest forward (the gathered batch)
  int num_lanes = 1;                      // overlapped micro-batches use different lanes
  std::map<int32_t, IdMap> id_maps = {};  // by global layer; layers not named give logical ids
  int64_t memory_limit_bytes = 0;         // 0 = none; above it create() fails with kMemoryLimit
  std::optional<CudaOptions> cuda = {};   // lanes on a device; default: on the CPU
};

enum class RowFault : uint8_t {
  kNegative,
  kTooLarge,  // num_experts or more
  kRepeated,
  kShared,      // a routed id in a shared column
  kSuperseded,  // its slot holds a row of a later step, or was written in this step already
  kUnwritten,   // on a device: a layer that nobody wrote, though the host could not see it
};
inline constexpr int kNumRowFaults = 6;
std::string_view row_fault_name(RowFault fault);  // "negative"

// The first row of a step that was refused.
struct Offender {
  int32_t layer = 0;  // -1 where it is about no layer (kSuperseded)
  int64_t row = 0;    // of the router's batch
  // The id as it came (at most INT64_MAX); for kSuperseded the slot. On a device as the lane holds it: -1 for
  // any id below 0 that was captured, -2 for one that the lane's type cannot hold, -3 for kShared, 0 for
  // kUnwritten.
  int64_t value = 0;
  RowFault fault = RowFault::kNegative;
};

// Rows of one layer that nobody wrote.
struct UnwrittenLayer {
  int32_t layer = 0;
  int64_t num_rows = 0;
  bool operator==(const UnwrittenLayer&) const = default;
};

struct CommitReport {
  int64_t step = 0;
  bool landed = true;            // false: the device is still at it, and only step and num_tokens are known
  int64_t num_tokens = 0;        // that the slots name
  int64_t num_kept = 0;          // rows now in the store
  int64_t num_refused = 0;       // rows that are missing because of their ids or slot
  int64_t num_no_slot = 0;       // tokens with slot -1 or the pad slot
  int64_t num_elsewhere = 0;     // tokens whose rows another rank has
  int64_t num_out_of_range = 0;  // tokens whose slot, given by the device, the store does not have
  std::array<int64_t, kNumRowFaults> num_by_fault = {};  // refused rows, by the first fault found
  std::optional<Offender> first_offender;
  std::vector<UnwrittenLayer> unwritten = {};  // on a device: the layers of kUnwritten
};

// What a commit gives. On the CPU it has landed when commit returns. A value; any thread, and also when the
// recorder is gone.
class Ticket {
 public:
  // A step that is still under way. Any thread.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual bool ready() = 0;
    virtual Status wait(std::chrono::milliseconds timeout) = 0;
    virtual CommitReport report() = 0;
  };

  explicit Ticket(CommitReport report) : report_(std::move(report)) {}
  explicit Ticket(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  // Whether the step is over: wait() returns at once.
  bool ready() const { return !pending_ || pending_->ready(); }
  // kTimeout; kNotCaptured for a step that was prepared and then never launched: its slots are refused, and
  // so they are, as far as the host knows them, with kDeviceFailed.
  Status wait(std::chrono::milliseconds timeout = std::chrono::milliseconds{10'000}) const {
    return pending_ ? pending_->wait(timeout) : Status();
  }
  // Of a step that has not landed: CommitReport::landed is false.
  CommitReport report() const { return pending_ ? pending_->report() : report_; }

 private:
  CommitReport report_;
  std::shared_ptr<Pending> pending_;
};

struct CommitOptions {
  std::optional<int64_t> step = {};  // given by the engine's scheduler; default: the store counts
  uint32_t version = 0;              // policy version of all rows
  std::optional<std::span<const uint32_t>> versions = {};  // or one per token
  int lane = 0;
  StreamHandle stream = nullptr;
};

// One layer's rows of a lane, in device memory: [max_rows, top_k], contiguous, at a fixed address as long as
// the recorder lives. A router writes logical ids of the batch's rows into it, each layer in every forward;
// an id below 0 is padding.
struct LayerBuffer {
  void* data = nullptr;
  IntType type = IntType::kInt16;  // kInt16, or kInt32 above 32,767 experts
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int device = 0;
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
  // Host memory, for a store of num_slots slots; pinned where the lanes are on a device.
  static Result<int64_t> required_bytes(const RouteSpec& spec, int64_t num_slots,
                                        const RecorderOptions& options);
  // Device memory; 0 without a device.
  static Result<int64_t> required_device_bytes(const RouteSpec& spec, const RecorderOptions& options);
  // Keeps the store alive, and on a device its memory mapped and pinned, even when it is closed, until the
  // recorder goes; that waits for all it has there. kInvalidArgument names the option that does not fit,
  // kUnsupported a build, machine or spec that has no device lanes.
  static Result<std::unique_ptr<Recorder>> create(std::shared_ptr<Store> store,
                                                  const RecorderOptions& options);
  ~Recorder();

  const RouteSpec& spec() const;
  int64_t max_rows() const;
  int num_lanes() const;
  std::string device() const;  // "cpu", "cuda:0"

  // Opens a step, dropping what a forward that was never committed left (a warm-up, a dummy run). A step that
  // was prepared and not launched by then is given up: its slots are refused.
  // Every call with a stream is ordered behind the lane's earlier calls on other streams.
  Status begin(int lane = 0, StreamHandle stream = nullptr);

  // One layer's ids [n, K] or [n, K + shared_columns] of rows [offset, offset + n) of the batch.
  // An id that is no expert makes its row refused; everything else wrong is an error at once: a layer that is
  // not in the spec (kOutOfRange; the step goes on), wrong shape or more rows than max_rows, rows captured
  // twice (the step fails at commit). On a device: one small kernel; ids that are not in the device's memory,
  // or not at a multiple of their size (kInvalidArgument), and a foreign stream are refused before anything
  // is enqueued, and the step goes on.
  Status capture(int32_t layer, const IdsView& ids, int lane = 0, int64_t offset = 0,
                 StreamHandle stream = nullptr);

  // All layers at once, of a batch [layers, rows, columns] or [rows, layers, columns]: `first` is layer 0's
  // view and layer i begins layer_stride elements behind it times i.
  Status capture_all(const IdsView& first, int64_t layer_stride, int32_t num_layers, int lane = 0,
                     StreamHandle stream = nullptr);

  // For a router on a device that writes its choice itself: from now on this layer's rows are its duty. What
  // it leaves out is found by the device (RowFault::kUnwritten). kUnsupported on the CPU and for a layer with
  // an IdMap.
  Result<LayerBuffer> layer_buffer(int32_t layer, int lane = 0);

  // For a caller whose ids were unusable before they could be captured: counts a failed capture, and the step
  // fails at commit with this error, if it is the first.
  Status fail_step(const Error& error, int lane = 0);

  // Slots name all tokens of this rank's step. A failed commit refuses every slot in range that it names,
  // touches no other, and closes the step: kNotCaptured and kWrongShape name the layers; kOutOfRange and
  // kInvalidArgument the slot out of range or named twice; kStepOrder a step or version that cannot be.
  // On a device it is prepare() and launch().
  Result<Ticket> commit(const Slots& slots, const Layout& layout = Layout::whole(),
                        const CommitOptions& options = {});
  // Slots that the device reads when the step is committed: one that the store does not have is skipped and
  // counted; that none stands twice is the caller's duty. kUnsupported on the CPU.
  Result<Ticket> commit(const DeviceSlots& slots, const Layout& layout = Layout::whole(),
                        const CommitOptions& options = {});

  // The half of commit() that is never in a graph: checks, and one copy to the device. Before every replay of
  // a graph that holds launch(), on the stream of the replay. An error closes the step as in commit(), and
  // the launch that a replay then does commits nothing. kUnsupported on the CPU.
  Result<Ticket> prepare(const Slots& slots, const Layout& layout = Layout::whole(),
                         const CommitOptions& options = {});
  Result<Ticket> prepare(const DeviceSlots& slots, const Layout& layout = Layout::whole(),
                         const CommitOptions& options = {});
  // The other half: one kernel, behind the forward, which a graph may hold. kNotCaptured where a stream under
  // capture did not see all layers; kInvalidArgument for a launch, outside a capture, that nobody prepared;
  // kDeviceFailed: the step's slots are refused.
  Status launch(int lane = 0, StreamHandle stream = nullptr);

  RecorderCounters counters() const;

  struct Impl;  // src/record

 private:
  explicit Recorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moetape::inline v0
