// move() and write(): rows that come in without a forward.
#include <algorithm>
#include <array>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "routes/assembly.h"
#include "routes/spec_check.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {
namespace {

// A step of the host, open from submit to the end of the scope.
class HostStep {
 public:
  static Result<std::unique_ptr<HostStep>> open(Store::Impl& impl, const WriteOptions& options) {
    MOETAPE_ASSIGN(const uint64_t step, impl.writers.submit(WriterTable::kHost, options.step));
    auto opened = std::unique_ptr<HostStep>(new HostStep(impl, step));
    const auto deadline = std::chrono::steady_clock::now() + options.timeout;
    const auto waits = [&] {
      if (!impl.writers.any_open_before(step)) return false;
      impl.writers.look();
      return impl.writers.any_open_before(step);
    };
    while (waits()) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return fail(ErrorCode::kTimeout,
                    "step {}: expected earlier steps to land within {} ms; some have not", step,
                    options.timeout.count());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return opened;
  }
  ~HostStep() { impl_.writers.land(WriterTable::kHost, step_); }
  uint64_t step() const { return step_; }

 private:
  HostStep(Store::Impl& impl, uint64_t step) : impl_(impl), step_(step) {}
  Store::Impl& impl_;
  uint64_t step_;
};

Status check_distinct(const std::vector<int64_t>& slots, const char* name) {
  std::unordered_set<int64_t> seen;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || seen.insert(slots[i]).second) continue;
    return fail(ErrorCode::kInvalidArgument, "{}[{}]: expected every slot once, got {} twice", name, i,
                slots[i]);
  }
  return {};
}

// One stamp a slot and step: readers could not tell two rows under one stamp apart (R9).
Status check_unwritten(const Store::Impl& impl, const std::vector<int64_t>& slots, const char* name,
                       uint64_t step) {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || step_of(impl.plane.stamp(slots[i])) < step) continue;
    return fail(ErrorCode::kConflict,
                "{}[{}]: expected a slot that was last written before step {}, got slot {} of step {}", name,
                i, step, slots[i], step_of(impl.plane.stamp(slots[i])));
  }
  return {};
}

// A row of stamp 0 is missing, and then so is its slot.
void place(Store::Impl& impl, std::vector<int64_t> slots, const std::byte* rows,
           const std::vector<Stamp>& stamps, uint64_t step) {
  const int64_t row_bytes = impl.spec.row_bytes();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || stamps[i] != 0) continue;
    impl.plane.set_stamp(slots[i], refused(step));
    slots[i] = -1;
  }
  const auto num_slots = static_cast<int64_t>(slots.size());
  for (int64_t first = 0; first < num_slots; first += kBlockSlots) {
    impl.plane.place(slots.data() + first, std::min(kBlockSlots, num_slots - first), rows + first * row_bytes,
                     row_bytes, stamps.data() + first);
  }
}

}  // namespace

Status Store::move(const Slots& source, const Slots& target, const WriteOptions& options) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  if (source.size() != target.size()) {
    return fail(ErrorCode::kWrongShape, "target: expected {} slots, as many as source, got {}", source.size(),
                target.size());
  }
  MOETAPE_ASSIGN(const std::vector<int64_t> sources, impl_->resolved(source, "source"));
  MOETAPE_ASSIGN(std::vector<int64_t> targets, impl_->resolved(target, "target"));
  return guard_memory("move", [&]() -> Status {
    MOETAPE_TRY(check_distinct(targets, "target"));
    const int64_t row_bytes = impl_->spec.row_bytes();
    MOETAPE_ASSIGN(Buffer rows, Buffer::allocate(source.size() * row_bytes));
    std::vector<Stamp> stamps(sources.size());
    std::vector<Reason> reasons(sources.size());

    std::lock_guard lock(impl_->host_mutex);
    MOETAPE_ASSIGN(const auto step, HostStep::open(*impl_, options));
    MOETAPE_TRY(check_unwritten(*impl_, targets, "target", step->step()));
    MOETAPE_ASSIGN(const Gather gather, Gather::begin(*impl_, static_cast<int64_t>(step->step())));
    for (int64_t first = 0; first < source.size(); first += kBlockSlots) {
      const int64_t count = std::min(kBlockSlots, source.size() - first);
      gather.block(sources.data() + first, count, rows.mutable_data() + first * row_bytes,
                   reasons.data() + first, stamps.data() + first);
    }
    for (size_t i = 0; i < stamps.size(); ++i) {
      stamps[i] = reasons[i] == Reason::kValid ? make_stamp(version_of(stamps[i]), step->step()) : 0;
    }
    place(*impl_, std::move(targets), rows.data(), stamps, step->step());
    return {};
  });
}

Status Store::write(const Slots& slots, const Routes& routes, const WriteOptions& options) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  MOETAPE_TRY(check_fits("routes", impl_->spec, routes.spec()));
  if (slots.size() != routes.num_rows()) {
    return fail(ErrorCode::kWrongShape, "slots: expected {}, one per row of the routes, got {}",
                routes.num_rows(), slots.size());
  }
  if (options.version && *options.version > kMaxVersion) {
    return fail(ErrorCode::kStepOrder, "version: expected 0 to {}, got {}", kMaxVersion, *options.version);
  }
  MOETAPE_ASSIGN(std::vector<int64_t> targets, impl_->resolved(slots, "slots"));
  return guard_memory("write", [&]() -> Status {
    MOETAPE_TRY(check_distinct(targets, "slots"));
    const std::vector<uint32_t> versions = row_versions(routes);
    std::vector<Stamp> stamps(targets.size(), 0);
    for (size_t i = 0; i < versions.size(); ++i) {
      if (versions[i] != kNoVersion || routes.reasons()[i] != Reason::kValid || options.version) continue;
      return fail(ErrorCode::kInvalidArgument,
                  "version: expected a number, since row {} carries none; got none", i);
    }
    std::lock_guard lock(impl_->host_mutex);
    MOETAPE_ASSIGN(const auto step, HostStep::open(*impl_, options));
    MOETAPE_TRY(check_unwritten(*impl_, targets, "slots", step->step()));
    for (size_t i = 0; i < stamps.size(); ++i) {
      if (routes.reasons()[i] != Reason::kValid) continue;
      stamps[i] = make_stamp(versions[i] != kNoVersion ? versions[i] : *options.version, step->step());
    }
    place(*impl_, std::move(targets), routes.ids().data(), stamps, step->step());
    return {};
  });
}

}  // namespace moetape::inline v0
