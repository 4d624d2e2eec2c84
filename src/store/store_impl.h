// What a Store is made of, for the files of this room and for StoreWriter.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/segment.h"
#include "moetape/store.h"
#include "store/plane.h"
#include "store/writer_table.h"

namespace moetape::inline v0 {

// Slots are looked at in blocks: stamps, rows and stamps again, while all three lie in the cache.
inline constexpr int64_t kBlockSlots = 128;

struct Store::Impl {
  Impl(RouteSpec route_spec, const StoreOptions& store_options, Segment segment);

  // Counts a call in, so that close() frees nothing under it.
  class Use {
   public:
    explicit Use(const Impl& impl);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Status check() const;  // kClosed

   private:
    const Impl& impl_;
  };
  void leave() const;

  // Slots [first, first + count) with "no place" as -1; kOutOfRange names the first slot that is neither;
  // those are -1 as well.
  Status resolve(const Slots& slots, const char* name, int64_t first, int64_t count, int64_t* out) const;
  // The same for all of them; kOutOfMemory, and kInvalidArgument for more than kMaxSlotsPerCall.
  Result<std::vector<int64_t>> resolved(const Slots& slots, const char* name) const;
  static Status check_size(const Slots& slots, const char* name);
  // kStepOrder for what is no step.
  Result<uint64_t> as_of_or_last(std::optional<int64_t> as_of) const;
  // Raises the cutoffs of slots that resolve() gave.
  void invalidate(const int64_t* slots, int64_t count, uint64_t as_of);
  uint64_t own_cutoff(int64_t slot) const {
    return std::atomic_ref<uint64_t>(cutoffs[slot]).load(std::memory_order_acquire);
  }
  uint64_t cutoff(int64_t slot) const;  // the store's or its own, whichever is higher

  RouteSpec spec;
  StoreOptions options;
  const int64_t memory_bytes;
  mutable Segment memory;  // rows, stamps, cutoffs, steps landed
  Plane plane;
  uint64_t* cutoffs = nullptr;
  std::atomic<uint64_t> store_cutoff = 0;
  WriterTable writers;
  std::mutex host_mutex;  // one move or write at a time

  mutable std::atomic<int64_t> num_users = 0;
  mutable std::atomic<bool> closed = false;
  mutable std::atomic<bool> freed = false;
};

// One gather: everything that must be known before the first stamp is looked at.
class Gather {
 public:
  // as_of: the newest step that counts; none = the last step submitted.
  static Result<Gather> begin(const Store::Impl& impl, std::optional<int64_t> as_of);
  uint64_t as_of() const { return as_of_; }

  // Rows of resolved slots, at most kBlockSlots: dense rows, zero where missing, a reason and a stamp each.
  // streaming: see simd::gather_rows.
  void block(const int64_t* slots, int64_t count, std::byte* rows, Reason* reasons, Stamp* stamps,
             bool streaming = false) const;

 private:
  Gather(const Store::Impl& impl, uint64_t as_of)
      : impl_(&impl), as_of_(as_of), under_way_(impl.writers.under_way(as_of)) {}
  bool all_valid(const int64_t* slots, int64_t count, const Stamp* stamps) const;
  Reason judge(int64_t slot, Stamp stamp) const;
  Reason read_again(int64_t slot, std::byte* row, Stamp* stamp) const;

  const Store::Impl* impl_;
  uint64_t as_of_;
  StepsUnderWay under_way_;
};

}  // namespace moetape::inline v0
