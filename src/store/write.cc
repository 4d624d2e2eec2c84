// move() and write(): rows that come in without a forward.
#include <algorithm>
#include <array>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/fail.h"
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
    while (impl.writers.any_open_before(step)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return fail(ErrorCode::kTimeout, "step {}: expected earlier steps to land within {} ms; some have not", step,
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

Result<std::vector<int64_t>> resolved(const Store::Impl& impl, const Slots& slots, const char* name) {
  std::vector<int64_t> out(static_cast<size_t>(slots.size()));
  MOETAPE_TRY(impl.resolve(slots, name, 0, slots.size(), out.data()));
  return out;
}

Status check_distinct(const std::vector<int64_t>& slots, const char* name) {
  std::unordered_set<int64_t> seen;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || seen.insert(slots[i]).second) continue;
    return fail(ErrorCode::kInvalidArgument, "{}[{}]: expected every slot once, got {} twice", name, i, slots[i]);
  }
  return {};
}

// A missing row leaves nothing in its slot; a valid one is placed under its version and this step.
void place(Store::Impl& impl, const std::vector<int64_t>& slots, const std::byte* rows,
           const std::vector<Stamp>& stamps) {
  const int64_t row_bytes = impl.spec.row_bytes();
  std::array<int64_t, kBlockSlots> valid;
  for (size_t first = 0; first < slots.size(); first += kBlockSlots) {
    const auto count = static_cast<int64_t>(std::min(slots.size() - first, static_cast<size_t>(kBlockSlots)));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = slots[first + static_cast<size_t>(i)];
      const bool missing = stamps[first + static_cast<size_t>(i)] == 0;
      valid[static_cast<size_t>(i)] = missing ? -1 : slot;
      if (missing && slot >= 0) impl.plane.set_stamp(slot, 0);
    }
    impl.plane.place(valid.data(), count, rows + static_cast<int64_t>(first) * row_bytes, row_bytes,
                     stamps.data() + first);
  }
}

// The version of each row, kRefusedVersion where it has none.
std::vector<uint32_t> version_by_row(const Routes& routes) {
  std::vector<uint32_t> versions(static_cast<size_t>(routes.num_rows()), kRefusedVersion);
  for (const VersionRun& run : routes.versions()) {
    std::fill(versions.begin() + (run.start - routes.start()), versions.begin() + (run.end - routes.start()),
              run.version);
  }
  return versions;
}

}  // namespace

Status Store::move(const Slots& from, const Slots& to, const WriteOptions& options) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  if (from.size() != to.size()) {
    return fail(ErrorCode::kWrongShape, "to: expected {} slots, as many as from, got {}", from.size(), to.size());
  }
  MOETAPE_ASSIGN(const std::vector<int64_t> sources, resolved(*impl_, from, "from"));
  MOETAPE_ASSIGN(const std::vector<int64_t> targets, resolved(*impl_, to, "to"));
  MOETAPE_TRY(check_distinct(targets, "to"));
  std::lock_guard lock(impl_->host_mutex);
  MOETAPE_ASSIGN(const auto step, HostStep::open(*impl_, options));

  const int64_t row_bytes = impl_->spec.row_bytes();
  MOETAPE_ASSIGN(Buffer rows, Buffer::allocate(from.size() * row_bytes));
  std::vector<Stamp> stamps(sources.size());
  std::vector<Reason> reasons(sources.size());
  MOETAPE_ASSIGN(const Gather gather, Gather::begin(*impl_, static_cast<int64_t>(step->step())));
  for (int64_t first = 0; first < from.size(); first += kBlockSlots) {
    const int64_t count = std::min(kBlockSlots, from.size() - first);
    gather.block(sources.data() + first, count, rows.mutable_data() + first * row_bytes, reasons.data() + first,
                 stamps.data() + first);
  }
  for (size_t i = 0; i < stamps.size(); ++i) {
    stamps[i] = reasons[i] == Reason::kValid ? make_stamp(version_of(stamps[i]), step->step()) : 0;
  }
  place(*impl_, targets, rows.data(), stamps);
  return {};
}

Status Store::write(const Slots& slots, const Routes& routes, const WriteOptions& options) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  if (routes.spec().fingerprint() != impl_->spec.fingerprint()) {
    return fail(ErrorCode::kSpecMismatch, "routes: expected spec {:016x} of the store, got {:016x}",
                impl_->spec.fingerprint(), routes.spec().fingerprint());
  }
  if (slots.size() != routes.num_rows()) {
    return fail(ErrorCode::kWrongShape, "slots: expected {}, one per row of the routes, got {}", routes.num_rows(),
                slots.size());
  }
  if (options.version && *options.version > kMaxVersion) {
    return fail(ErrorCode::kStepOrder, "version: expected 0 to {}, got {}", kMaxVersion, *options.version);
  }
  MOETAPE_ASSIGN(const std::vector<int64_t> targets, resolved(*impl_, slots, "slots"));
  MOETAPE_TRY(check_distinct(targets, "slots"));
  const std::vector<uint32_t> versions = version_by_row(routes);
  for (size_t i = 0; i < versions.size(); ++i) {
    if (versions[i] == kRefusedVersion && routes.reasons()[i] == Reason::kValid && !options.version) {
      return fail(ErrorCode::kInvalidArgument, "version: expected a number, since row {} carries none; got none", i);
    }
  }
  std::lock_guard lock(impl_->host_mutex);
  MOETAPE_ASSIGN(const auto step, HostStep::open(*impl_, options));
  std::vector<Stamp> stamps(targets.size(), 0);
  for (size_t i = 0; i < stamps.size(); ++i) {
    if (routes.reasons()[i] != Reason::kValid) continue;
    const uint32_t version = versions[i] != kRefusedVersion ? versions[i] : *options.version;
    stamps[i] = make_stamp(version, step->step());
  }
  place(*impl_, targets, routes.ids().data(), stamps);
  return {};
}

}  // namespace moetape::inline v0
