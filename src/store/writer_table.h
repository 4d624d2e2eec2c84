// WriterTable: which steps are under way, so that a reader can tell "not yet" from "never".
//
// A writer is one lane of one recorder (or the store's own moves): its steps strictly rise. submit() opens a
// step before its first byte is written, land() closes it behind the last stamp, drop() closes it as lost. A
// writer whose rows come from a device lands by one word of its own, `landed`: all its steps up to that one
// are closed. Writers take a mutex; readers only load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "moetape/error.h"

namespace moetape::inline v0 {

// What a reader must know about steps <= its as_of before it looks at the first stamp.
struct StepsUnderWay {
  uint64_t newest_open = 0;  // 0 = none
  uint64_t newest_lost = 0;
};

class WriterTable {
 public:
  static constexpr int kMaxWriters = 64;
  static constexpr int kMaxOpenSteps = 8;  // of one writer
  static constexpr int kHost = 0;          // the writer of move() and write()

  // landed: kMaxWriters words that live as long as this, 0.
  explicit WriterTable(uint64_t* landed) : landed_(landed) {}

  Result<int> add_writer();
  void remove_writer(int writer);  // its open steps are lost

  // Opens a step: the one given, or the next one where the store counts. kStepOrder says what it should be.
  Result<uint64_t> submit(int writer, std::optional<int64_t> step);
  void land(int writer, uint64_t step);
  void drop(int writer, uint64_t step);

  // Where a device that writes for this writer says which step has landed. Release, and only ever raised.
  uint64_t* landed(int writer) const { return landed_ + writer; }

  uint64_t last_submitted() const { return last_submitted_.load(std::memory_order_acquire); }
  StepsUnderWay under_way(uint64_t as_of) const;
  bool any_open_before(uint64_t step) const;

  // What brings home steps of a writer that land only when somebody looks; unset when the writer goes.
  void set_look(int writer, std::function<void()> look);
  // By whoever waits for steps.
  void look() const;

 private:
  struct Writer {
    bool used = false;
    uint64_t newest = 0;
    std::atomic<uint64_t> lost = 0;
    std::array<std::atomic<uint64_t>, kMaxOpenSteps> open = {};
    std::function<void()> look;
  };
  Status check_step(const Writer& writer, bool host, std::optional<int64_t> step) const;
  uint64_t landed_step(int writer) const {
    return std::atomic_ref<uint64_t>(landed_[writer]).load(std::memory_order_acquire);
  }
  // The steps of a writer that are under way, one behind another.
  template <class Visit>
  void for_open_steps(int writer, Visit visit) const;

  uint64_t* landed_;
  mutable std::mutex mutex_;
  bool engine_counts_ = false;
  std::atomic<int> num_writers_ = 1;  // ever used, the host among them
  std::atomic<uint64_t> last_submitted_ = 0;
  uint64_t newest_of_lanes_ = 0;
  std::array<Writer, kMaxWriters> writers_;
};

}  // namespace moetape::inline v0
