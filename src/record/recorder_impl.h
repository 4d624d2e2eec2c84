// What stands behind a Recorder: one kind on the CPU, one on a device. Threads as Recorder says.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "moetape/recorder.h"

namespace moetape::inline v0 {

struct AtomicCounters {
  std::atomic<int64_t> captures = 0, failed_captures = 0, commits = 0, failed_commits = 0, abandoned = 0,
                       rows_kept = 0, rows_refused = 0, rows_no_slot = 0;

  void count_capture(bool good) { add(good ? captures : failed_captures); }
  void count_report(const CommitReport& report) {
    add(rows_kept, report.num_kept);
    add(rows_refused, report.num_refused);
    add(rows_no_slot, report.num_no_slot);
  }
  static void add(std::atomic<int64_t>& counter, int64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
};

struct Recorder::Impl {
  Impl(std::shared_ptr<Store> owner, const RecorderOptions& recorder_options)
      : store(std::move(owner)), options(recorder_options) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual std::string device() const = 0;
  virtual Status begin(int lane, StreamHandle stream) = 0;
  virtual Status capture(int32_t layer, const IdsView& ids, int lane, int64_t offset,
                         StreamHandle stream) = 0;
  // Of all layers, whose number was checked.
  virtual Status capture_all(const IdsView& first, int64_t layer_stride, int lane, StreamHandle stream) = 0;
  virtual Status fail_step(const Error& error, int lane) = 0;
  virtual Result<LayerBuffer> layer_buffer(int32_t layer, int lane) = 0;
  virtual Result<Ticket> commit(const Slots& slots, const Layout& layout, const CommitOptions& options) = 0;
  virtual Result<Ticket> commit(const DeviceSlots& slots, const Layout& layout,
                                const CommitOptions& options) = 0;
  virtual Result<Ticket> prepare(const Slots& slots, const Layout& layout, const CommitOptions& options) = 0;
  virtual Result<Ticket> prepare(const DeviceSlots& slots, const Layout& layout,
                                 const CommitOptions& options) = 0;
  virtual Status launch(int lane, StreamHandle stream) = 0;
  // Steps that have landed are in the counters behind it.
  virtual void update_counters() {}

  Status check_lane(int lane) const;
  static std::unique_ptr<Recorder> wrap(std::unique_ptr<Impl> impl) {
    return std::unique_ptr<Recorder>(new Recorder(std::move(impl)));
  }

  std::shared_ptr<Store> store;
  RecorderOptions options;
  AtomicCounters counters;
};

// Options that were checked by required_bytes().
Result<std::unique_ptr<Recorder::Impl>> make_cpu_recorder(std::shared_ptr<Store> store,
                                                          const RecorderOptions& options);

}  // namespace moetape::inline v0
