#include "moetape/routes.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/fail.h"
#include "routes/narrow_rows.h"

namespace moetape::inline v0 {

// Rows of one allocation; every slice points into it.
struct Routes::Storage {
  struct Run {  // of rows [first, end)
    int64_t first, end;
    uint32_t version;
  };

  Buffer ids;
  std::vector<Reason> reasons;
  std::vector<Run> runs;  // ascending, disjoint, over valid rows only
  bool complete = false;  // no row is missing
};

namespace {

// The bytes of the ids of a span that can be.
Result<int64_t> span_bytes(const RouteSpec& spec, int64_t start, int64_t num_rows) {
  if (start < 0)
    return fail(ErrorCode::kOutOfRange, "start: expected a position of 0 or more, got {}", start);
  if (num_rows < 0) return fail(ErrorCode::kWrongShape, "rows: expected 0 or more, got {}", num_rows);
  if (!checked_add(start, num_rows)) {
    return fail(ErrorCode::kOutOfRange, "rows: expected an end below 2^63, got {} rows from position {}",
                num_rows, start);
  }
  const std::optional<int64_t> bytes = checked_multiply(num_rows, spec.row_bytes());
  if (!bytes) {
    return fail(ErrorCode::kInvalidArgument, "rows: expected fewer than 2^63 bytes, got {} rows of {} bytes",
                num_rows, spec.row_bytes());
  }
  return *bytes;
}

Status check_source(const Routes::Source& source) {
  const auto num_rows = static_cast<size_t>(source.num_rows);
  if (source.ids == nullptr && num_rows != 0) {
    return fail(ErrorCode::kInvalidArgument, "ids: expected {} rows, got no array", num_rows);
  }
  if (!source.valid.empty() && source.valid.size() != num_rows) {
    return fail(ErrorCode::kWrongShape, "valid: expected one value for each of {} rows, got {}", num_rows,
                source.valid.size());
  }
  if (!source.tokens.empty() && source.tokens.size() != num_rows) {
    return fail(ErrorCode::kWrongShape, "tokens: expected one for each of {} rows, got {}", num_rows,
                source.tokens.size());
  }
  if (source.reason == Reason::kValid || static_cast<int>(source.reason) >= kNumReasons) {
    return fail(ErrorCode::kInvalidArgument, "reason: expected why rows are missing, got {}",
                static_cast<int>(source.reason));
  }
  if (source.version && *source.version > kMaxVersion) {
    return fail(ErrorCode::kInvalidArgument, "version: expected 0 to {}, got {}", kMaxVersion,
                *source.version);
  }
  return {};
}

// Narrows valid rows [first, end) of outside ids, some thousand lists of top_k ids at a time.
class IdsReader {
 public:
  IdsReader(const RouteSpec& spec, const Routes::Source& source, std::byte* out)
      : spec_(spec), source_(source), out_(out) {}

  Status read(int64_t first, int64_t end) {
    const int64_t layers = spec_.num_moe_layers();
    const int64_t block = std::max<int64_t>(1, kListsAtOnce / layers);
    for (int64_t row = first; row < end; row += block) {
      MOETAPE_TRY(read_block(row, std::min(block, end - row)));
    }
    return {};
  }

 private:
  static constexpr int64_t kListsAtOnce = 4096;

  Status read_block(int64_t row, int64_t count) {
    faults_.resize(static_cast<size_t>(count * spec_.num_moe_layers()));
    const int64_t ids_in_row = int64_t{spec_.num_moe_layers()} * spec_.top_k();
    const auto* ids =
        static_cast<const std::byte*>(source_.ids) + row * ids_in_row * int_type_bytes(source_.type);
    const std::optional<BadId> bad =
        narrow_rows(spec_, ids, source_.type, count, out_ + row * spec_.row_bytes(), faults_.data());
    if (!bad) return {};
    if (bad->repeated) {
      return fail(ErrorCode::kInvalidArgument,
                  "ids: row {}, layer {}: expected {} different ids, got {} twice", row + bad->row,
                  bad->layer, spec_.top_k(), bad->value);
    }
    return fail(ErrorCode::kOutOfRange, "ids: row {}, layer {}: expected ids in [0, {}), got {}",
                row + bad->row, bad->layer, spec_.num_experts(), bad->value);
  }

  const RouteSpec& spec_;
  const Routes::Source& source_;
  std::byte* out_;
  std::vector<uint8_t> faults_;
};

// Calls visit(first, end) for every longest run of valid rows; stops at the first failure.
template <class Visit>
Status for_each_valid_run(std::span<const Reason> reasons, Visit visit) {
  auto first = reasons.begin();
  while ((first = std::find(first, reasons.end(), Reason::kValid)) != reasons.end()) {
    const auto end =
        std::find_if(first, reasons.end(), [](Reason reason) { return reason != Reason::kValid; });
    MOETAPE_TRY(visit(first - reasons.begin(), end - reasons.begin()));
    first = end;
  }
  return {};
}

}  // namespace

std::string_view reason_name(Reason reason) {
  constexpr std::array<std::string_view, kNumReasons> kNames = {
      "valid",   "unwritten", "no_slot", "pending", "invalidated", "later",
      "refused", "lost",      "torn",    "gap",     "outdated",    "not_sent"};
  const auto index = static_cast<size_t>(reason);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Result<Routes> Routes::empty(const RouteSpec& spec, int64_t start) {
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, start, 0));
  return std::move(builder).finish();
}

Result<Routes> Routes::from_ids(const RouteSpec& spec, int64_t start, const Source& source) {
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, start, source.num_rows));
  MOETAPE_TRY(check_source(source));
  for (int64_t row = 0; row < source.num_rows; ++row) {
    const bool valid = source.valid.empty() || source.valid[static_cast<size_t>(row)] != 0;
    builder.reasons()[row] = valid ? Reason::kValid : source.reason;
  }
  IdsReader reader(spec, source, builder.ids());
  const std::span<const Reason> reasons(builder.reasons(), static_cast<size_t>(source.num_rows));
  MOETAPE_TRY(
      for_each_valid_run(reasons, [&](int64_t first, int64_t end) { return reader.read(first, end); }));
  if (source.version) builder.add_version(0, source.num_rows, *source.version);
  if (!source.tokens.empty()) builder.set_tokens({source.tokens.begin(), source.tokens.end()});
  return std::move(builder).finish();
}

std::span<const std::byte> Routes::ids() const {
  const int64_t row_bytes = spec_.row_bytes();
  if (num_rows_ == 0) return {};
  return {storage_->ids.data() + first_row_ * row_bytes, static_cast<size_t>(num_rows_ * row_bytes)};
}

std::span<const std::byte> Routes::row(int64_t index) const {
  const auto row_bytes = static_cast<size_t>(spec_.row_bytes());
  return ids().subspan(static_cast<size_t>(index) * row_bytes, row_bytes);
}

std::span<const Reason> Routes::reasons() const {
  return std::span(storage_->reasons)
      .subspan(static_cast<size_t>(first_row_), static_cast<size_t>(num_rows_));
}

std::vector<VersionRun> Routes::versions() const {
  if (num_rows_ == 0) return {};
  const int64_t end_row = first_row_ + num_rows_;
  const auto& runs = storage_->runs;
  auto run = std::ranges::upper_bound(runs, first_row_, {}, &Storage::Run::end);
  std::vector<VersionRun> clipped;
  for (; run != runs.end() && run->first < end_row; ++run) {
    clipped.push_back({start_ + std::max(run->first, first_row_) - first_row_,
                       start_ + std::min(run->end, end_row) - first_row_, run->version});
  }
  return clipped;
}

std::span<const int32_t> Routes::tokens() const {
  if (!has_tokens()) return {};
  return std::span(*tokens_).subspan(static_cast<size_t>(first_token_), static_cast<size_t>(num_rows_));
}

int64_t Routes::num_missing() const {
  if (storage_->complete) return 0;
  return num_rows_ - std::ranges::count(reasons(), Reason::kValid);
}

std::array<int64_t, kNumReasons> Routes::count_by_reason() const {
  std::array<int64_t, kNumReasons> counts = {};
  for (const Reason reason : reasons()) ++counts[static_cast<size_t>(reason)];
  return counts;
}

std::shared_ptr<const void> Routes::owner() const { return storage_; }

Result<Routes> Routes::slice(int64_t start, int64_t end) const {
  if (start < start_ || end > this->end() || start > end) {
    return fail(ErrorCode::kOutOfRange, "slice: expected positions within [{}, {}), got [{}, {})", start_,
                this->end(), start, end);
  }
  Routes part = *this;
  part.start_ = start;
  part.num_rows_ = end - start;
  part.first_row_ += start - start_;
  part.first_token_ += start - start_;
  return part;
}

Result<Routes> Routes::with_tokens(std::span<const int32_t> tokens) const {
  if (static_cast<int64_t>(tokens.size()) != num_rows_) {
    return fail(ErrorCode::kWrongShape, "tokens: expected one for each of {} rows, got {}", num_rows_,
                tokens.size());
  }
  Routes named = *this;
  named.first_token_ = 0;
  named.tokens_ = std::make_shared<const std::vector<int32_t>>(tokens.begin(), tokens.end());
  return named;
}

bool Routes::operator==(const Routes& other) const {
  if (spec_ != other.spec_ || start_ != other.start_ || num_rows_ != other.num_rows_) return false;
  if (has_tokens() != other.has_tokens() || !std::ranges::equal(tokens(), other.tokens())) return false;
  const auto both_valid_or_missing = [](Reason a, Reason b) {
    return (a == Reason::kValid) == (b == Reason::kValid);
  };
  if (!std::ranges::equal(reasons(), other.reasons(), both_valid_or_missing)) return false;
  if (versions() != other.versions()) return false;
  // Rows missing in one are missing in the other, and their bytes are zero in both.
  return num_rows_ == 0 || std::memcmp(ids().data(), other.ids().data(), ids().size()) == 0;
}

RoutesBuilder::RoutesBuilder(RouteSpec spec, int64_t start, int64_t num_rows, Buffer ids)
    : routes_(std::move(spec)), storage_(std::make_shared<Routes::Storage>()) {
  routes_.start_ = start;
  routes_.num_rows_ = num_rows;
  storage_->ids = std::move(ids);
  storage_->reasons.assign(static_cast<size_t>(num_rows), Reason::kGap);
  ids_ = storage_->ids.mutable_data();
  reasons_ = storage_->reasons.data();
}

Result<RoutesBuilder> RoutesBuilder::create(const RouteSpec& spec, int64_t start, int64_t num_rows) {
  MOETAPE_ASSIGN(const int64_t ids_bytes, span_bytes(spec, start, num_rows));
  MOETAPE_ASSIGN(Buffer ids, Buffer::allocate(ids_bytes));
  return RoutesBuilder(spec, start, num_rows, std::move(ids));
}

Result<RoutesBuilder> RoutesBuilder::wrap(const RouteSpec& spec, int64_t start, int64_t num_rows,
                                          Buffer ids) {
  MOETAPE_ASSIGN(const int64_t ids_bytes, span_bytes(spec, start, num_rows));
  if (ids.size() != ids_bytes) {
    return fail(ErrorCode::kWrongShape, "ids: expected {} bytes for {} rows, got {}", ids_bytes, num_rows,
                ids.size());
  }
  RoutesBuilder builder(spec, start, num_rows, std::move(ids));
  builder.wraps_ = true;
  return builder;
}

void RoutesBuilder::add_version(int64_t first, int64_t count, uint32_t version) {
  if (count <= 0) return;
  auto& runs = storage_->runs;
  if (!runs.empty() && runs.back().end == first && runs.back().version == version) {
    runs.back().end += count;
  } else {
    runs.push_back({first, first + count, version});
  }
}

void RoutesBuilder::set_tokens(std::vector<int32_t> tokens) {
  routes_.tokens_ = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
}

Routes RoutesBuilder::finish() && {
  Routes::Storage& storage = *storage_;
  const std::vector<Reason>& reasons = storage.reasons;
  const auto missing = [](Reason reason) { return reason != Reason::kValid; };
  storage.complete = std::ranges::none_of(reasons, missing);
  if (!storage.complete) {
    const int64_t row_bytes = routes_.spec_.row_bytes();
    const int64_t num_rows = routes_.num_rows_;
    for (int64_t row = 0; row < num_rows; ++row) {
      if (missing(reasons_[row]) && !wraps_)
        std::memset(ids_ + row * row_bytes, 0, static_cast<size_t>(row_bytes));
    }
    std::vector<Routes::Storage::Run> given;
    given.swap(storage.runs);
    for (const Routes::Storage::Run& run : given) {
      for (int64_t row = run.first; row < run.end; ++row) {
        if (!missing(reasons_[row])) add_version(row, 1, run.version);
      }
    }
  }
  routes_.storage_ = std::move(storage_);
  return std::move(routes_);
}

}  // namespace moetape::inline v0
