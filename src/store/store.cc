#include "moetape/store.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {

Store::Impl::Impl(RouteSpec route_spec, const StoreOptions& store_options, Segment segment)
    : spec(std::move(route_spec)),
      options(store_options),
      memory_bytes(segment.size()),
      memory(std::move(segment)),
      writers(reinterpret_cast<uint64_t*>(memory.data() + options.num_slots * (spec.row_stride() + 16))) {
  std::byte* rows = memory.data();
  auto* stamps = reinterpret_cast<uint64_t*>(rows + options.num_slots * spec.row_stride());
  plane = Plane(rows, stamps, spec.row_bytes(), spec.row_stride());
  cutoffs = stamps + options.num_slots;
}

Store::Impl::Use::Use(const Impl& impl) : impl_(impl) { impl_.num_users.fetch_add(1); }

Store::Impl::Use::~Use() { impl_.leave(); }

Status Store::Impl::Use::check() const {
  if (impl_.closed.load()) return fail(ErrorCode::kClosed, "store: it was closed");
  return {};
}

void Store::Impl::leave() const {
  const bool last = num_users.fetch_sub(1) == 1;
  if (last && closed.load() && !freed.exchange(true)) memory = Segment();
}

Status Store::Impl::resolve(const Slots& slots, const char* name, int64_t first, int64_t count,
                            int64_t* out) const {
  slots.copy(first, count, out);
  bool all_in_range = true;
  for (int64_t i = 0; i < count; ++i) {
    all_in_range &= static_cast<uint64_t>(out[i]) < static_cast<uint64_t>(options.num_slots);
    all_in_range &= out[i] != options.pad_slot;
  }
  if (all_in_range) return {};
  Status status;
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] >= 0 && out[i] < options.num_slots && out[i] != options.pad_slot) continue;
    if (status && out[i] != -1 && out[i] != options.pad_slot) {
      status =
          fail(ErrorCode::kOutOfRange, "{}[{}]: expected a slot from 0 to {}, or -1 for no place; got {}",
               name, first + i, options.num_slots - 1, out[i]);
    }
    out[i] = -1;
  }
  return status;
}

uint64_t Store::Impl::cutoff(int64_t slot) const {
  return std::max(own_cutoff(slot), store_cutoff.load(std::memory_order_acquire));
}

namespace {

template <class Atomic>
void raise(Atomic& value, uint64_t to) {
  uint64_t now = value.load(std::memory_order_relaxed);
  while (now < to && !value.compare_exchange_weak(now, to, std::memory_order_acq_rel)) {
  }
}

}  // namespace

Result<uint64_t> Store::Impl::as_of_or_last(std::optional<int64_t> as_of) const {
  if (!as_of) return writers.last_submitted();
  if (*as_of < 0 || *as_of > kMaxStep) {
    return fail(ErrorCode::kStepOrder, "as_of: expected 0 to {}, got {}", kMaxStep, *as_of);
  }
  return static_cast<uint64_t>(*as_of);
}

Status Store::Impl::check_size(const Slots& slots, const char* name) {
  if (slots.size() <= kMaxSlotsPerCall) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: expected at most {} in one call, got {}", name,
              kMaxSlotsPerCall, slots.size());
}

Result<std::vector<int64_t>> Store::Impl::resolved(const Slots& slots, const char* name) const {
  MOETAPE_TRY(check_size(slots, name));
  return guard_memory(name, [&]() -> Result<std::vector<int64_t>> {
    std::vector<int64_t> out(static_cast<size_t>(slots.size()));
    MOETAPE_TRY(resolve(slots, name, 0, slots.size(), out.data()));
    return out;
  });
}

void Store::Impl::invalidate(const int64_t* slots, int64_t count, uint64_t as_of) {
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < 0) continue;
    std::atomic_ref<uint64_t> cutoff(cutoffs[slots[i]]);
    raise(cutoff, as_of);
  }
}

Result<int64_t> Store::required_bytes(const RouteSpec& spec, int64_t num_slots) {
  if (num_slots < 1)
    return fail(ErrorCode::kInvalidArgument, "num_slots: expected at least 1, got {}", num_slots);
  const auto bytes = checked_multiply(num_slots, spec.row_stride() + 16);
  constexpr int64_t kPage = 4096;
  constexpr int64_t kLandedBytes = int64_t{WriterTable::kMaxWriters} * 8;
  if (!bytes || !checked_add(*bytes, kLandedBytes + kPage)) {
    return fail(ErrorCode::kInvalidArgument, "num_slots: {} slots of {} bytes are more than memory can have",
                num_slots, spec.row_stride() + 16);
  }
  return (*bytes + kLandedBytes + kPage - 1) / kPage * kPage;
}

Result<std::shared_ptr<Store>> Store::create(const RouteSpec& spec, const StoreOptions& options) {
  MOETAPE_ASSIGN(const int64_t bytes, required_bytes(spec, options.num_slots));
  if (options.memory_limit_bytes < 0) {
    return fail(ErrorCode::kInvalidArgument, "memory_limit_bytes: expected 0 (none) or more, got {}",
                options.memory_limit_bytes);
  }
  if (options.memory_limit_bytes > 0 && bytes > options.memory_limit_bytes) {
    return fail(ErrorCode::kMemoryLimit, "store of {} slots: expected at most {} bytes, needs {}",
                options.num_slots, options.memory_limit_bytes, bytes);
  }
  MOETAPE_ASSIGN(
      Segment memory,
      Segment::allocate("store", bytes, {.huge_pages = options.huge_pages, .populate = options.populate}));
  return std::shared_ptr<Store>(new Store(std::make_unique<Impl>(spec, options, std::move(memory))));
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

const RouteSpec& Store::spec() const { return impl_->spec; }
int64_t Store::num_slots() const { return impl_->options.num_slots; }
int64_t Store::memory_bytes() const { return impl_->freed.load() ? 0 : impl_->memory_bytes; }
int64_t Store::last_step() const { return static_cast<int64_t>(impl_->writers.last_submitted()); }

Status Store::invalidate(const Slots& slots, std::optional<int64_t> as_of) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  MOETAPE_TRY(Impl::check_size(slots, "slots"));
  MOETAPE_ASSIGN(const uint64_t step, impl_->as_of_or_last(as_of));
  // All slots are checked before the first cutoff is raised.
  std::array<int64_t, kBlockSlots> block;
  for (const bool apply : {false, true}) {
    for (int64_t first = 0; first < slots.size(); first += kBlockSlots) {
      const int64_t count = std::min(kBlockSlots, slots.size() - first);
      MOETAPE_TRY(impl_->resolve(slots, "slots", first, count, block.data()));
      if (apply) impl_->invalidate(block.data(), count, step);
    }
  }
  return {};
}

Status Store::reset(std::optional<int64_t> as_of) {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  MOETAPE_ASSIGN(const uint64_t step, impl_->as_of_or_last(as_of));
  raise(impl_->store_cutoff, step);
  return {};
}

void Store::close() {
  Impl::Use use(*impl_);
  impl_->closed.store(true);
}

}  // namespace moetape::inline v0
