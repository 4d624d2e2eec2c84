// Routes: the experts of a run of tokens, at every MoE layer. What everything after the store speaks.
//
// Immutable; a view with a shared owner, so copies and slices cost nothing and may be used on any thread.
// Row t holds the experts used when token t was fed: rows = tokens fed, and the last sampled token has none.
// Every row has a reason byte: 0 = valid, else why it is missing. The bytes of a missing row are zero, mean
// nothing and are never compared.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "moetape/array.h"
#include "moetape/buffer.h"
#include "moetape/error.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

enum class Reason : uint8_t {
  kValid,
  kUnwritten,    // nobody wrote this slot
  kNoSlot,       // the token had no slot (-1 or the pad slot)
  kPending,      // a step that may hold it is submitted and has not landed
  kInvalidated,  // its slot was given away
  kLater,        // overwritten after the step asked for
  kRefused,      // its ids were not K different experts, its step failed, or a missing row was moved there
  kLost,         // its writer died or dropped the step
  kTorn,         // its writer never held still
  kGap,          // no record covers the position
  kOutdated,     // computed under a version that the caller excluded
  kNotSent,      // the wire form said that it does not know the row
};
inline constexpr int kNumReasons = static_cast<int>(Reason::kNotSent) + 1;
std::string_view reason_name(Reason reason);  // "unwritten"

// Rows at positions [start, end) were computed under this policy version (24 bits, below 0xFFFFFF).
struct VersionRun {
  int64_t start = 0;
  int64_t end = 0;
  uint32_t version = 0;
  bool operator==(const VersionRun&) const = default;
};
inline constexpr uint32_t kMaxVersion = 0xFFFFFE;

enum class OnOverlap : uint8_t { kMustAgree, kKeepFirst, kKeepLast };

class Routes {
 public:
  // An empty span at `start`.
  static Result<Routes> empty(const RouteSpec& spec, int64_t start);

  // Copies and checks outside data: ids [rows, layers, k] in C order, any integer type. Where `valid` is
  // given (one byte a row), rows with 0 become missing with `reason` and their ids are not looked at.
  // Fails with kOutOfRange or kInvalidArgument naming row, layer and value if a valid row has an id outside
  // [0, num_experts) or, where the spec asks for distinct ids, one twice.
  struct Source {
    const void* ids = nullptr;
    IntType type = IntType::kUint8;
    int64_t num_rows = 0;
    std::span<const uint8_t> valid = {};   // empty = all valid
    Reason reason = Reason::kNotSent;      // of the rows that are not valid
    std::optional<uint32_t> version = {};  // of all valid rows
    std::span<const int32_t> tokens = {};  // empty = none, else one per row
  };
  static Result<Routes> from_ids(const RouteSpec& spec, int64_t start, const Source& source);

  const RouteSpec& spec() const { return spec_; }
  int64_t start() const { return start_; }
  int64_t end() const { return start_ + num_rows_; }
  int64_t num_rows() const { return num_rows_; }

  // [rows, layers, k] dense, id_bytes() each; and row t - start().
  std::span<const std::byte> ids() const;
  std::span<const std::byte> row(int64_t index) const;
  // One reason a row.
  std::span<const Reason> reasons() const;
  // Ascending, disjoint, clipped to the span; missing rows stand in none.
  std::vector<VersionRun> versions() const;
  // tokens()[i] is the token fed at row i; empty and !has_tokens() when none are known.
  bool has_tokens() const { return tokens_ != nullptr; }
  std::span<const int32_t> tokens() const;

  int64_t num_missing() const;
  bool complete() const { return num_missing() == 0; }
  std::array<int64_t, kNumReasons> count_by_reason() const;

  // Who keeps the bytes alive (for views in other languages).
  std::shared_ptr<const void> owner() const;

  // Positions [start, end) of this span; kOutOfRange otherwise. Costs nothing.
  Result<Routes> slice(int64_t start, int64_t end) const;
  // The same routes with token ids, one per row.
  Result<Routes> with_tokens(std::span<const int32_t> tokens) const;
  // Joined with `other` by position: gaps become missing (kGap), a valid row beats a missing one, a missing
  // row keeps the first reason that is no gap, two valid rows are settled by on_overlap: to agree they have
  // equal ids and, where both have one, equal versions (kConflict names the position). Tokens that disagree
  // where both carry them: kConflict, always. The result carries tokens only if both do and no gap lies
  // between; an empty span lacks none. kSpecMismatch unless the fingerprints agree; the other fields are
  // those of *this, but `distinct` holds only if it does in both.
  Result<Routes> extend(const Routes& other, OnOverlap on_overlap = OnOverlap::kMustAgree) const;
  // Rows computed under a version below this one, at most kMaxVersion + 1, become missing (kOutdated). Rows
  // of no version stay.
  Result<Routes> without(uint32_t version_below) const;

  // Same spec (all fields), span, valid rows, ids of valid rows, versions and tokens.
  bool operator==(const Routes& other) const;

 private:
  friend class RoutesBuilder;
  struct Storage;
  Routes(RouteSpec spec) : spec_(std::move(spec)) {}

  RouteSpec spec_;
  int64_t start_ = 0;
  int64_t num_rows_ = 0;
  int64_t first_row_ = 0;  // of storage_
  std::shared_ptr<const Storage> storage_;
  int64_t first_token_ = 0;  // of tokens_
  std::shared_ptr<const std::vector<int32_t>> tokens_;
};

// Fills a Routes in place; used once, by one thread.
class RoutesBuilder {
 public:
  // All rows missing with kGap. ids() is not cleared: finish() clears the rows that stayed missing.
  // kOutOfRange for a start below 0 or an end above the range of int64, kWrongShape for num_rows below 0,
  // kInvalidArgument or kOutOfMemory for more bytes than can be.
  static Result<RoutesBuilder> create(const RouteSpec& spec, int64_t start, int64_t num_rows);
  // Around ids that are there already and only read, num_rows of them (kWrongShape): ids() is not for use,
  // and rows that stay missing must be zero.
  static Result<RoutesBuilder> wrap(const RouteSpec& spec, int64_t start, int64_t num_rows, Buffer ids);

  RoutesBuilder(RoutesBuilder&&) = default;
  RoutesBuilder& operator=(RoutesBuilder&&) = default;

  std::byte* ids() { return ids_; }       // [rows, layers, k] dense
  Reason* reasons() { return reasons_; }  // [rows]
  // Rows [first, first + count) (indices) have this version, at most kMaxVersion; calls come in ascending
  // order of rows. finish() leaves out the rows that stayed missing.
  void add_version(int64_t first, int64_t count, uint32_t version);
  void set_tokens(std::vector<int32_t> tokens);  // one per row

  // The ids of valid rows are taken as they stand: who fills them has checked them.
  Routes finish() &&;

 private:
  RoutesBuilder(RouteSpec spec, int64_t start, int64_t num_rows, Buffer ids);
  Routes routes_;
  std::shared_ptr<Routes::Storage> storage_;
  std::byte* ids_ = nullptr;
  Reason* reasons_ = nullptr;
  bool wraps_ = false;
};

// The rows of one token run recorded in stages: same span (kWrongShape), disjoint layers (kInvalidArgument),
// equal stack, top_k, num_experts and shared_columns (kSpecMismatch). The result's spec is the union; a row
// is valid where it is valid in all parts under one version (parts that carry none agree with all), else it
// is missing: with the reason of the first part that lacks it, or kTorn where versions differ. Tokens are
// those of any part that carries them (kConflict where two disagree).
Result<Routes> merge_layers(std::span<const Routes> parts);

// Rows of one spec recorded in shares (sequence parallelism): all extended by the next, and must agree.
Result<Routes> merge_rows(std::span<const Routes> parts);

// One turn of a conversation: routes that carry tokens, whose sampled tokens begin at position sampled_from.
struct Capture {
  Routes routes;
  int64_t sampled_from = 0;
};

// The routes of `tokens`, from position 0, one row per token (the last may be missing), out of several turns,
// oldest first. A row belongs to a token after a prefix: row t comes from the capture whose tokens 0..t equal
// these and that sampled the next token (sampled_from - 1 <= t < end; of several the latest, one that sampled
// these very tokens before one that went on differently), else from the latest capture whose tokens 0..t are
// equal; valid rows go before missing ones; else it is missing (kGap). Captures carry tokens and start at 0
// or continue an earlier one that reaches their start; if several do, they must agree before it, as far as it
// matters (kInvalidArgument).
Result<Routes> stitch(std::span<const int32_t> tokens, std::span<const Capture> captures);

}  // namespace moetape::inline v0
