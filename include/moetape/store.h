// Store: the routes of one KV address space, one row a slot, kept beside the engine's KV cache.
//
// Rows come in through a Recorder's commits, move() and write(); they go out through read() and rows(). All
// functions may be called from any thread at any time: readers take no lock and never see a mixture of two
// rows; what they cannot vouch for is missing, with the reason. The engine orders writes that touch one slot.
// docs/memory-model.md states the rules. Steps are 1 .. 2^40 - 1, versions 0 .. 0xFFFFFE.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_source.h"
#include "moetape/slots.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

inline constexpr int64_t kMaxStep = (int64_t{1} << 40) - 1;
inline constexpr int64_t kMaxSlotsPerCall = int64_t{1} << 28;  // above: kInvalidArgument

struct StoreOptions {
  int64_t num_slots = 0;
  int64_t memory_limit_bytes = 0;  // 0 = none; above it create() fails with kMemoryLimit
  int64_t pad_slot = -1;           // besides -1, a slot that means "no place"
  bool huge_pages = true;          // ask for them
  bool populate = false;           // touch all pages now instead of in the first commits
};

struct ReadOptions {
  int64_t start = 0;                     // position of slots[0]
  std::optional<int64_t> as_of = {};     // newest step wanted; default: the last step submitted
  std::span<const int32_t> tokens = {};  // the tokens fed, one per slot; empty = none
};

struct WriteOptions {
  std::optional<int64_t> step = {};           // must be given where the engine counts steps
  std::optional<uint32_t> version = {};       // of rows that carry none
  std::chrono::milliseconds timeout{10'000};  // for earlier steps to land
};

class StoreWriter;

class Store : public std::enable_shared_from_this<Store> {
 public:
  // row stride + 16 bytes a slot and 512 more, rounded up to pages. kInvalidArgument if num_slots < 1 or the
  // size overflows.
  static Result<int64_t> required_bytes(const RouteSpec& spec, int64_t num_slots);
  static Result<std::shared_ptr<Store>> create(const RouteSpec& spec, const StoreOptions& options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const RouteSpec& spec() const;
  int64_t num_slots() const;
  int64_t memory_bytes() const;
  int64_t last_step() const;  // the last step submitted, 0 before the first

  // One gather. A slot of -1 or the pad slot is a missing row (kNoSlot); any other outside
  // [0, num_slots) is kOutOfRange. Call it before the slots are freed.
  Result<Routes> read(const Slots& slots, const ReadOptions& options = {}) const;
  // The same, pulled later block by block; as_of is fixed now. Copies the slots; keeps the store alive.
  Result<std::unique_ptr<RowSource>> rows(const Slots& slots, int64_t start = 0,
                                          std::optional<int64_t> as_of = std::nullopt) const;

  // The slots get a new owner: rows of steps <= as_of (default: the last step submitted) count no more,
  // whenever they arrive. An engine that schedules ahead passes the last step scheduled.
  Status invalidate(const Slots& slots, std::optional<int64_t> as_of = std::nullopt);
  // The same for all slots.
  Status reset(std::optional<int64_t> as_of = std::nullopt);

  // KV went from one place to another. As if all sources were read first; sources that are not targets keep
  // their rows, a missing source makes its target missing, versions stay with their rows. The step comes
  // before its commits (kStepOrder), and a slot takes one row a step (kConflict).
  Status move(const Slots& source, const Slots& target, const WriteOptions& options = {});
  // KV came back from elsewhere, with its routes. Missing rows make their slots missing. kSpecMismatch for
  // routes of another spec, or that may repeat ids where this one's are distinct. Steps as for move.
  Status write(const Slots& slots, const Routes& routes, const WriteOptions& options = {});

  // Frees the memory once calls under way have ended; later calls fail with kClosed.
  void close();

  struct Impl;  // src/store
  Impl& impl() const { return *impl_; }

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moetape::inline v0
