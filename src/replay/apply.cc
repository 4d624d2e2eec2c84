#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "base/fail.h"
#include "moetape/buffer.h"
#include "replay/plan_writer.h"
#include "replay/sources.h"
#include "simd/copy.h"

namespace moetape::inline v0 {
namespace {

Status check_type(IntType type, const RouteSpec& spec) {
  if (type != IntType::kInt8 && int_type_bytes(type) >= spec.id_bytes()) return {};
  return fail(ErrorCode::kWrongType, "type: expected {}int16, uint16 or wider for {} experts, got {}",
              spec.id_bytes() == 1 ? "uint8, " : "", spec.num_experts(), int_type_name(type));
}

// Finds rows where they are, or pulls them into a block that is laid out like the writer's.
class RowFinder {
 public:
  // Rows one behind the other.
  struct Found {
    int64_t count = 0;
    const std::byte* ids = nullptr;
    const Reason* reasons = nullptr;  // null: nothing is recorded of them
  };

  static Result<RowFinder> create(const RouteSpec& spec, std::span<const Routes> routes,
                                  std::span<RowSource* const> pulled) {
    RowFinder finder(spec, routes, pulled);
    if (pulled.empty()) return finder;
    const int64_t ids_bytes = kMaxBlockRows * spec.row_bytes();
    MOETAPE_ASSIGN(finder.block_, Buffer::allocate(ids_bytes + kMaxBlockRows));
    finder.reasons_ = reinterpret_cast<Reason*>(finder.block_.mutable_data() + ids_bytes);
    return finder;
  }

  // Positions from `first` on, at most `count` and one at least; the first is to stand at `slot` of the
  // block.
  Result<Found> find(int64_t source, int64_t first, int64_t count, int64_t slot) {
    const auto index = static_cast<size_t>(source);
    if (pulled_.empty()) {
      const Routes& routes = routes_[index];
      const int64_t row = first - routes.start();
      const int64_t within = rows_within(row, count, routes.num_rows());
      if (within <= 0) return Found{.count = -within};
      return Found{within, routes.ids().data() + row * spec_.row_bytes(), routes.reasons().data() + row};
    }
    RowSource& rows = *pulled_[index];
    const int64_t row = first - rows.start();
    const int64_t within = rows_within(row, count, rows.num_rows());
    if (within <= 0) return Found{.count = -within};
    std::byte* const ids = block_.mutable_data() + slot * spec_.row_bytes();
    MOETAPE_TRY(rows.pull(row, within, ids, reasons_ + slot));
    return Found{within, ids, reasons_ + slot};
  }

 private:
  RowFinder(const RouteSpec& spec, std::span<const Routes> routes, std::span<RowSource* const> pulled)
      : spec_(spec), routes_(routes), pulled_(pulled) {}

  // How many of the rows [row, row + count) are among num_rows, from the first on; below 0: how many are not.
  static int64_t rows_within(int64_t row, int64_t count, int64_t num_rows) {
    if (row < 0) return -std::min(count, -row);
    return row < num_rows ? std::min(count, num_rows - row) : -count;
  }

  const RouteSpec& spec_;
  std::span<const Routes> routes_;
  std::span<RowSource* const> pulled_;
  Buffer block_;
  Reason* reasons_ = nullptr;
};

}  // namespace

Result<int32_t> Plan::apply(std::span<const Routes> sources, IntType type, std::span<std::byte> out,
                            std::span<RowUse> uses, int64_t first_expert) const {
  MOETAPE_ASSIGN(const Sources found, find_sources(sources));
  return apply_from(found, type, out, uses, first_expert);
}

Result<int32_t> Plan::apply(std::span<RowSource* const> sources, IntType type, std::span<std::byte> out,
                            std::span<RowUse> uses, int64_t first_expert) const {
  MOETAPE_ASSIGN(const Sources found, find_sources(sources));
  return apply_from(found, type, out, uses, first_expert);
}

Result<int32_t> Plan::apply(const Tape& tape, std::span<const int64_t> sequences, IntType type,
                            std::span<std::byte> out, std::span<RowUse> uses, int64_t first_expert) const {
  MOETAPE_ASSIGN(const Sources found, read_sources(tape, sequences));
  return apply_from(found, type, out, uses, first_expert);
}

Result<int32_t> Plan::apply_from(const Sources& sources, IntType type, std::span<std::byte> out,
                                 std::span<RowUse> uses, int64_t first_expert) const {
  const RouteSpec& spec = sources.spec;
  MOETAPE_TRY(check_type(type, spec));
  if (first_expert < 0) {
    return fail(ErrorCode::kOutOfRange, "first_expert: expected 0 or more, got {}", first_expert);
  }
  const auto num_columns = static_cast<int64_t>(sources.columns.size());
  const int64_t row_bytes = num_columns * spec.top_k() * int_type_bytes(type);
  const std::optional<int64_t> bytes = checked_multiply(num_rows_, row_bytes);
  if (!bytes || out.size() < static_cast<size_t>(*bytes)) {
    return fail(ErrorCode::kCapacity,
                "out: expected room for {} layers of {} rows of {} {} ids, got {} bytes", num_columns,
                num_rows_, spec.top_k(), int_type_name(type), out.size());
  }
  if (static_cast<int64_t>(uses.size()) < num_rows_) {
    return fail(ErrorCode::kCapacity, "uses: expected room for {} rows, got {}", num_rows_, uses.size());
  }

  MOETAPE_ASSIGN(Buffer scratch, Buffer::allocate(PlanWriter::scratch_bytes(spec)));
  PlanWriter writer(spec, sources.columns, type, num_rows_, first_expert, out.data(), scratch.mutable_data());
  MOETAPE_ASSIGN(RowFinder finder, RowFinder::create(spec, sources.routes, sources.pulled));
  int64_t row = 0;
  const auto fill_to = [&](int64_t end) -> Status {
    for (; row < end; ++row) {
      uses[static_cast<size_t>(row)] = RowUse::kFill;
      MOETAPE_TRY(writer.fill());
    }
    return {};
  };
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    MOETAPE_TRY(fill_to(run.row));
    for (const int64_t end = run.row + run.count; row < end;) {
      const int64_t count = std::min(end - row, writer.room());
      MOETAPE_ASSIGN(const RowFinder::Found found,
                     finder.find(sources.of_run[i], run.start + row - run.row, count, writer.waiting()));
      for (int64_t at = 0; at < found.count; ++at, ++row) {
        const bool recorded = found.reasons != nullptr && found.reasons[at] == Reason::kValid;
        uses[static_cast<size_t>(row)] = recorded ? RowUse::kReplayed : RowUse::kLive;
        MOETAPE_TRY(recorded ? writer.replay(found.ids + at * spec.row_bytes()) : writer.live());
      }
    }
  }
  MOETAPE_TRY(fill_to(num_rows_));
  MOETAPE_TRY(writer.flush());
  simd::store_fence();
  return static_cast<int32_t>(num_columns);
}

}  // namespace moetape::inline v0
