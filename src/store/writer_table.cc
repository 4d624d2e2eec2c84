#include "store/writer_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "moetape/store.h"

namespace moetape::inline v0 {

template <class Visit>
void WriterTable::for_open_steps(int writer, Visit visit) const {
  for (const auto& open : writers_[writer].open) {
    const uint64_t step = open.load(std::memory_order_acquire);
    if (step != 0 && step > landed_step(writer)) visit(step);
  }
}

Result<int> WriterTable::add_writer() {
  std::lock_guard lock(mutex_);
  for (int i = kHost + 1; i < kMaxWriters; ++i) {
    if (writers_[i].used) continue;
    writers_[i].used = true;
    writers_[i].newest = 0;
    std::atomic_ref<uint64_t>(landed_[i]).store(0, std::memory_order_relaxed);
    num_writers_.store(std::max(num_writers_.load(std::memory_order_relaxed), i + 1),
                       std::memory_order_release);
    return i;
  }
  return fail(ErrorCode::kCapacity, "lanes of all recorders of one store: expected at most {}, got one more",
              kMaxWriters - 1);
}

void WriterTable::remove_writer(int writer) {
  std::lock_guard lock(mutex_);
  Writer& entry = writers_[writer];
  for (auto& open : entry.open) {
    const uint64_t step = open.load(std::memory_order_relaxed);
    if (step == 0) continue;
    entry.lost.store(std::max(step, entry.lost.load(std::memory_order_relaxed)), std::memory_order_release);
    open.store(0, std::memory_order_release);
  }
  entry.used = false;
  entry.look = nullptr;
}

Status WriterTable::check_step(const Writer& writer, bool host, std::optional<int64_t> step) const {
  const uint64_t last = last_submitted_.load(std::memory_order_relaxed);
  if (!step) {
    if (engine_counts_) {
      return fail(ErrorCode::kStepOrder,
                  "step: expected a number, since earlier steps were given (last: {}); got none", last);
    }
    return {};
  }
  if (*step < 1 || *step > kMaxStep) {
    return fail(ErrorCode::kStepOrder, "step: expected 1 to {}, got {}", kMaxStep, *step);
  }
  const auto given = static_cast<uint64_t>(*step);
  if (host && (given < last || given == newest_of_lanes_)) {
    return fail(ErrorCode::kStepOrder, "step: expected {} or more, before that step's commits, got {}",
                std::max(last, newest_of_lanes_ + 1), given);
  }
  if (!host && given <= writer.newest) {
    return fail(ErrorCode::kStepOrder, "step: expected above {}, the last step of this lane, got {}",
                writer.newest, given);
  }
  return {};
}

Result<uint64_t> WriterTable::submit(int writer, std::optional<int64_t> step) {
  std::lock_guard lock(mutex_);
  Writer& entry = writers_[writer];
  MOETAPE_TRY(check_step(entry, writer == kHost, step));
  const uint64_t last = last_submitted_.load(std::memory_order_relaxed);
  if (!step && last == static_cast<uint64_t>(kMaxStep)) {
    return fail(ErrorCode::kStepOrder, "step: all {} steps are used up", kMaxStep);
  }
  const uint64_t submitted = step ? static_cast<uint64_t>(*step) : last + 1;
  const uint64_t landed = landed_step(writer);  // 0 is no step
  auto free = std::find_if(entry.open.begin(), entry.open.end(),
                           [&](const auto& open) { return open.load(std::memory_order_relaxed) <= landed; });
  if (free == entry.open.end()) {
    return fail(ErrorCode::kCapacity, "steps of one lane under way: expected at most {}, got one more",
                kMaxOpenSteps);
  }
  engine_counts_ = engine_counts_ || step.has_value();
  entry.newest = submitted;
  if (writer != kHost) newest_of_lanes_ = std::max(newest_of_lanes_, submitted);
  free->store(submitted, std::memory_order_release);
  last_submitted_.store(std::max(last, submitted), std::memory_order_release);
  return submitted;
}

void WriterTable::land(int writer, uint64_t step) {
  for (auto& open : writers_[writer].open) {
    if (open.load(std::memory_order_relaxed) == step) open.store(0, std::memory_order_release);
  }
}

void WriterTable::drop(int writer, uint64_t step) {
  auto& lost = writers_[writer].lost;
  lost.store(std::max(step, lost.load(std::memory_order_relaxed)), std::memory_order_release);
  land(writer, step);
}

StepsUnderWay WriterTable::under_way(uint64_t as_of) const {
  StepsUnderWay found;
  const int num_writers = num_writers_.load(std::memory_order_acquire);
  for (int i = 0; i < num_writers; ++i) {
    for_open_steps(i, [&](uint64_t step) {
      if (step <= as_of) found.newest_open = std::max(found.newest_open, step);
    });
    const uint64_t lost = writers_[i].lost.load(std::memory_order_acquire);
    if (lost <= as_of) found.newest_lost = std::max(found.newest_lost, lost);
  }
  return found;
}

bool WriterTable::any_open_before(uint64_t step) const {
  bool found = false;
  const int num_writers = num_writers_.load(std::memory_order_acquire);
  for (int i = 0; i < num_writers; ++i) for_open_steps(i, [&](uint64_t open) { found |= open < step; });
  return found;
}

void WriterTable::set_look(int writer, std::function<void()> look) {
  std::lock_guard lock(mutex_);
  writers_[writer].look = std::move(look);
}

// Outside of the mutex: a look may land steps and wait for locks of its own.
void WriterTable::look() const {
  std::vector<std::function<void()>> looks;
  {
    std::lock_guard lock(mutex_);
    for (const Writer& writer : writers_) {
      if (writer.look) looks.push_back(writer.look);
    }
  }
  for (const auto& look : looks) look();
}

}  // namespace moetape::inline v0
