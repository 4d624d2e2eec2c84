#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {

Result<Gather> Gather::begin(const Store::Impl& impl, std::optional<int64_t> as_of) {
  MOETAPE_ASSIGN(const uint64_t step, impl.as_of_or_last(as_of));
  return Gather(impl, step);
}

Reason Gather::judge(int64_t slot, Stamp stamp) const {
  const uint64_t cutoff = impl_->cutoff(slot);
  const uint64_t step = step_of(stamp);
  const bool counts = stamp != 0 && step > cutoff;
  const bool is_refused = counts && version_of(stamp) == kRefusedVersion;
  if (counts && step > as_of_) return Reason::kLater;
  if (counts && !is_refused) return Reason::kValid;
  if (under_way_.newest_open > cutoff) return Reason::kPending;
  if (is_refused) return Reason::kRefused;
  if (under_way_.newest_lost > cutoff) return Reason::kLost;
  const bool given_away = stamp != 0 || impl_->own_cutoff(slot) != 0;
  return given_away ? Reason::kInvalidated : Reason::kUnwritten;
}

// A row that changed under the copy, or that carries a refusal: its writer is at work or has finished.
Reason Gather::read_again(int64_t slot, std::byte* row, Stamp* stamp) const {
  constexpr int kAttempts = 64;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    *stamp = impl_->plane.stamp(slot);
    const Reason reason = judge(slot, *stamp);
    if (reason == Reason::kRefused) {
      // Final only if its step is not open, as of a look behind the one at the stamp (R5).
      const StepsUnderWay now = impl_->writers.under_way(as_of_);
      if (now.newest_open >= step_of(*stamp)) return Reason::kPending;
      if (impl_->plane.stamp(slot) != *stamp) continue;
      return now.newest_lost >= step_of(*stamp) ? Reason::kLost : Reason::kRefused;
    }
    if (reason != Reason::kValid) return reason;
    impl_->plane.gather(&slot, 1, row);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (impl_->plane.stamp_after_copy(slot) == *stamp) return judge(slot, *stamp);
  }
  return Reason::kTorn;
}

// Whether all rows are whole and count: what almost every block is, without a branch per row. Behind the
// copy.
bool Gather::all_valid(const int64_t* slots, int64_t count, const Stamp* stamps) const {
  const uint64_t store_cutoff = impl_->store_cutoff.load(std::memory_order_acquire);
  bool valid = true;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t cutoff = std::max(store_cutoff, impl_->own_cutoff(slots[i]));
    valid &= impl_->plane.stamp_after_copy(slots[i]) == stamps[i];
    valid &= step_of(stamps[i]) > cutoff;
  }
  return valid;
}

void Gather::block(const int64_t* slots, int64_t count, std::byte* rows, Reason* reasons, Stamp* stamps,
                   bool streaming) const {
  const Plane& plane = impl_->plane;
  std::array<int64_t, kBlockSlots> wanted = {};
  int64_t num_wanted = 0;
  for (int64_t i = 0; i < count; ++i) {
    stamps[i] = slots[i] < 0 ? 0 : plane.stamp(slots[i]);
    // Nothing is copied for a stamp that cannot count; whether the others do is judged behind the copy.
    bool may_count = step_of(stamps[i]) - 1 < as_of_;
    may_count &= version_of(stamps[i]) != kRefusedVersion;
    wanted[static_cast<size_t>(i)] = may_count ? slots[i] : -1;
    num_wanted += may_count;
  }
  plane.gather(wanted.data(), count, rows, streaming);
  std::atomic_thread_fence(std::memory_order_acquire);  // R3
  if (num_wanted == count && all_valid(slots, count, stamps)) {
    std::fill_n(reasons, count, Reason::kValid);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const bool copied = wanted[static_cast<size_t>(i)] >= 0;
    const bool changed = copied && plane.stamp_after_copy(slots[i]) != stamps[i];
    reasons[i] = slots[i] < 0 ? Reason::kNoSlot : changed ? Reason::kRefused : judge(slots[i], stamps[i]);
    if (reasons[i] == Reason::kRefused)
      reasons[i] = read_again(slots[i], rows + i * plane.row_bytes(), &stamps[i]);
    if (reasons[i] == Reason::kValid) continue;
    std::memset(rows + i * plane.row_bytes(), 0, static_cast<size_t>(plane.row_bytes()));
  }
}

namespace {

// Results from here on do not stay in a core's own caches until they are looked at.
constexpr int64_t kStreamingBytes = int64_t{4} << 20;

Status check_options(const Slots& slots, const ReadOptions& options) {
  MOETAPE_TRY(Store::Impl::check_size(slots, "slots"));
  if (options.start < 0)
    return fail(ErrorCode::kOutOfRange, "start: expected 0 or more, got {}", options.start);
  const auto num_tokens = static_cast<int64_t>(options.tokens.size());
  if (num_tokens != 0 && num_tokens != slots.size()) {
    return fail(ErrorCode::kWrongShape, "tokens: expected {}, one per slot, got {}", slots.size(),
                num_tokens);
  }
  return {};
}

// Adds the versions of a block's valid rows, one call a run.
void add_versions(RoutesBuilder& builder, int64_t first, int64_t count, const Reason* reasons,
                  const Stamp* stamps) {
  for (int64_t i = 0; i < count;) {
    int64_t end = i + 1;
    if (reasons[i] == Reason::kValid) {
      const uint32_t version = version_of(stamps[i]);
      while (end < count && reasons[end] == Reason::kValid && version_of(stamps[end]) == version) ++end;
      builder.add_version(first + i, end - i, version);
    }
    i = end;
  }
}

class StoreRows final : public RowSource {
 public:
  StoreRows(std::shared_ptr<const Store> store, std::vector<int64_t> slots, int64_t start, uint64_t as_of)
      : store_(std::move(store)), slots_(std::move(slots)), start_(start), as_of_(as_of) {}

  const RouteSpec& spec() const override { return store_->spec(); }
  int64_t start() const override { return start_; }
  int64_t num_rows() const override { return static_cast<int64_t>(slots_.size()); }

  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override {
    MOETAPE_TRY(check_part(first, count));
    const Store::Impl& impl = store_->impl();
    Store::Impl::Use use(impl);
    MOETAPE_TRY(use.check());
    MOETAPE_ASSIGN(const Gather gather, Gather::begin(impl, static_cast<int64_t>(as_of_)));
    std::array<Stamp, kBlockSlots> stamps;
    for (int64_t done = 0; done < count; done += kBlockSlots) {
      const int64_t block = std::min(kBlockSlots, count - done);
      gather.block(slots_.data() + first + done, block, rows + done * spec().row_bytes(), reasons + done,
                   stamps.data());
    }
    return {};
  }

 private:
  std::shared_ptr<const Store> store_;
  std::vector<int64_t> slots_;  // resolved
  int64_t start_;
  uint64_t as_of_;
};

}  // namespace

Result<Routes> Store::read(const Slots& slots, const ReadOptions& options) const {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  MOETAPE_TRY(check_options(slots, options));
  MOETAPE_ASSIGN(const Gather gather, Gather::begin(*impl_, options.as_of));
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(impl_->spec, options.start, slots.size()));
  const bool streaming = slots.size() >= kStreamingBytes / impl_->spec.row_bytes();
  std::array<int64_t, kBlockSlots> block;
  std::array<Stamp, kBlockSlots> stamps;
  for (int64_t first = 0; first < slots.size(); first += kBlockSlots) {
    const int64_t count = std::min(kBlockSlots, slots.size() - first);
    MOETAPE_TRY(impl_->resolve(slots, "slots", first, count, block.data()));
    Reason* reasons = builder.reasons() + first;
    gather.block(block.data(), count, builder.ids() + first * impl_->spec.row_bytes(), reasons, stamps.data(),
                 streaming);
    add_versions(builder, first, count, reasons, stamps.data());
  }
  if (streaming) simd::store_fence();
  if (!options.tokens.empty()) builder.set_tokens({options.tokens.begin(), options.tokens.end()});
  return std::move(builder).finish();
}

Result<std::unique_ptr<RowSource>> Store::rows(const Slots& slots, int64_t start,
                                               std::optional<int64_t> as_of) const {
  Impl::Use use(*impl_);
  MOETAPE_TRY(use.check());
  MOETAPE_TRY(check_options(slots, {.start = start}));
  MOETAPE_ASSIGN(const Gather gather, Gather::begin(*impl_, as_of));
  MOETAPE_ASSIGN(std::vector<int64_t> resolved, impl_->resolved(slots, "slots"));
  return std::make_unique<StoreRows>(shared_from_this(), std::move(resolved), start, gather.as_of());
}

}  // namespace moetape::inline v0
