#include "wire/decoder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/fail.h"
#include "moetape/buffer.h"
#include "routes/narrow_rows.h"
#include "wire/columns.h"
#include "wire/types.h"

namespace moetape::inline v0::wire {
namespace {

// Bytes of the rows that are checked at once; they stay in the cache.
constexpr int64_t kBlockBytes = 32 << 10;

// Takes blocks of rows in order.
class RowsDecoder {
 public:
  static Result<RowsDecoder> create(const RouteSpec& spec, const Arrival& arrival,
                                    const DecodeOptions& options) {
    MOETAPE_ASSIGN(const int64_t start, start_of(arrival, options));
    MOETAPE_ASSIGN(const int64_t num_rows, rows_kept(arrival, options));
    if (options.version && *options.version > kMaxVersion) {
      return fail(ErrorCode::kInvalidArgument, "{}: version: expected 0 to {}, got {}", arrival.dialect,
                  kMaxVersion, *options.version);
    }
    MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, start, num_rows));
    RowsDecoder decoder(spec, arrival, options, std::move(builder));
    decoder.start_ = start;
    decoder.num_rows_ = num_rows;
    // From here on rows are known; start and known_from may be any numbers.
    decoder.first_known_ = options.known_from <= start ? 0 : std::min(options.known_from - start, num_rows);
    MOETAPE_TRY(decoder.allocate());
    return decoder;
  }

  int64_t block_rows() const { return block_rows_; }

  Status append(const std::byte* rows, int64_t count) {
    const int64_t begin = next_;
    const int64_t end = std::min(begin + count, num_rows_);
    next_ += count;
    int64_t row = std::clamp(first_known_, begin, std::max(begin, end));
    if (row > begin) std::fill_n(builder_.reasons() + begin, row - begin, Reason::kNotSent);
    while (row < end) {
      const std::byte* const at = rows + (row - begin) * row_bytes_;
      if (is_missing(at)) {
        builder_.reasons()[row++] = Reason::kNotSent;
        continue;
      }
      int64_t num_valid = 1;
      while (row + num_valid < end && !is_missing(at + num_valid * row_bytes_)) ++num_valid;
      MOETAPE_TRY(take(at, row, num_valid));
      row += num_valid;
    }
    return {};
  }

  Routes finish() && {
    if (options_.version && num_rows_ > 0) builder_.add_version(0, num_rows_, *options_.version);
    return std::move(builder_).finish();
  }

 private:
  RowsDecoder(const RouteSpec& spec, const Arrival& arrival, const DecodeOptions& options,
              RoutesBuilder builder)
      : spec_(spec),
        arrival_(arrival),
        options_(options),
        columns_(make_columns(spec, arrival.axis)),
        type_bytes_(int_type_bytes(arrival.type)),
        row_bytes_(columns_.sent * type_bytes_),
        builder_(std::move(builder)) {
    block_rows_ = std::clamp<int64_t>(kBlockBytes / row_bytes_, 1, std::max<int64_t>(arrival.num_rows, 1));
  }

  static Result<int64_t> start_of(const Arrival& arrival, const DecodeOptions& options) {
    if (options.start && arrival.start && *options.start != *arrival.start) {
      return fail(ErrorCode::kWrongShape, "{}: start: expected {}, got {}", arrival.dialect, *options.start,
                  *arrival.start);
    }
    return options.start ? *options.start : arrival.start.value_or(0);
  }

  static Result<int64_t> rows_kept(const Arrival& arrival, const DecodeOptions& options) {
    if (options.surplus_rows < 0 || options.surplus_rows > arrival.num_rows) {
      return fail(options.surplus_rows < 0 ? ErrorCode::kInvalidArgument : ErrorCode::kWrongShape,
                  "{}: surplus_rows: expected 0 to {}, the rows that came, got {}", arrival.dialect,
                  arrival.num_rows, options.surplus_rows);
    }
    const int64_t kept = arrival.num_rows - options.surplus_rows;
    if (!options.num_rows || *options.num_rows == kept) return kept;
    return fail(ErrorCode::kWrongShape, "{}: rows: expected {}, got {}", arrival.dialect, *options.num_rows,
                kept);
  }

  Status allocate() {
    if (arrival_.num_rows == 0) return {};
    const int64_t compact_bytes = columns_.same() ? 0 : block_rows_ * columns_.recorded * type_bytes_;
    MOETAPE_ASSIGN(scratch_, Buffer::allocate(compact_bytes + block_rows_ * spec_.num_moe_layers()));
    faults_ = reinterpret_cast<uint8_t*>(scratch_.mutable_data() + compact_bytes);
    return {};
  }

  bool is_missing(const std::byte* row) const {
    if (!arrival_.says_missing) return false;
    return std::ranges::all_of(columns_.runs, [&](const ColumnRun& run) {
      const std::span ids(row + run.sent * type_bytes_, static_cast<size_t>(run.count * type_bytes_));
      return std::ranges::all_of(ids, [](std::byte byte) { return byte == std::byte{0xff}; });
    });
  }

  // Rows from `first` on, none of them missing.
  Status take(const std::byte* rows, int64_t first, int64_t count) {
    MOETAPE_TRY(check_gaps(rows, first, count));
    MOETAPE_TRY(narrow(rows, first, count));
    std::fill_n(builder_.reasons() + first, count, Reason::kValid);
    return {};
  }

  Status check_gaps(const std::byte* rows, int64_t first, int64_t count) const {
    for (int64_t row = 0; row < count && !columns_.same(); ++row, rows += row_bytes_) {
      for (const ColumnGap& gap : columns_.gaps) {
        const std::span bytes(rows + gap.sent * type_bytes_, static_cast<size_t>(gap.count * type_bytes_));
        const auto bad = std::ranges::find_if(bytes, [](std::byte byte) { return byte != std::byte{0}; });
        if (bad == bytes.end()) continue;
        const int64_t layer = (gap.sent + (bad - bytes.begin()) / type_bytes_) / spec_.top_k();
        return fail(ErrorCode::kCorruptData,
                    "{}: expected zeros, since the spec records nothing of this layer, got another id",
                    place(first + row, layer));
      }
    }
    return {};
  }

  // Rows of the form → the same without gaps.
  void compact(const std::byte* rows, int64_t count, std::byte* out) const {
    for (int64_t row = 0; row < count; ++row) {
      for (const ColumnRun& run : columns_.runs) {
        std::memcpy(out + run.recorded * type_bytes_, rows + run.sent * type_bytes_,
                    static_cast<size_t>(run.count * type_bytes_));
      }
      rows += row_bytes_;
      out += columns_.recorded * type_bytes_;
    }
  }

  Status narrow(const std::byte* rows, int64_t first, int64_t count) {
    const std::byte* from = rows;
    if (!columns_.same()) {
      compact(rows, count, scratch_.mutable_data());
      from = scratch_.data();
    }
    const std::optional<BadId> bad =
        narrow_rows(spec_, from, arrival_.type, count, builder_.ids() + first * spec_.row_bytes(), faults_);
    if (!bad) return {};
    const std::string where = place(first + bad->row, bad->layer);
    if (bad->repeated) {
      return fail(ErrorCode::kInvalidArgument, "{}: expected {} different ids, got {} twice", where,
                  spec_.top_k(), bad->value);
    }
    return fail(ErrorCode::kOutOfRange, "{}: expected ids of 0 to {}, got {}", where, spec_.num_experts() - 1,
                bad->value);
  }

  std::string place(int64_t row, int64_t layer) const {
    return fmt::format("{}: row {} (position {}), layer {}", arrival_.dialect, row, start_ + row, layer);
  }

  RouteSpec spec_;
  Arrival arrival_;
  DecodeOptions options_;
  Columns columns_;
  int type_bytes_;
  int64_t row_bytes_;  // that arrive
  RoutesBuilder builder_;
  int64_t start_ = 0;
  int64_t num_rows_ = 0;     // that are kept
  int64_t first_known_ = 0;  // row
  int64_t block_rows_ = 1;
  int64_t next_ = 0;  // row
  Buffer scratch_;
  uint8_t* faults_ = nullptr;  // one a list of a block
};

std::string_view axis_name(LayerAxis axis) { return axis == LayerAxis::kAll ? "(all)" : "MoE"; }

}  // namespace

int64_t arriving_row_bytes(const RouteSpec& spec, const Arrival& arrival) {
  return int64_t{num_layers(spec, arrival.axis)} * spec.top_k() * int_type_bytes(arrival.type);
}

Result<LayerAxis> axis_of(const DialectInfo& info, const RouteSpec& spec, std::span<const int64_t> shape) {
  std::string expected;
  for (const LayerAxis axis : info.axes) {
    const int64_t layers = num_layers(spec, axis);
    if (shape.size() == 3 && shape[0] >= 0 && shape[1] == layers && shape[2] == spec.top_k()) return axis;
    expected += fmt::format("{}{} {}", expected.empty() ? "" : " or ", layers, axis_name(axis));
  }
  return fail(ErrorCode::kWrongShape, "{}: shape: expected [rows, {} layers, {} ids], got [{}]", info.name,
              expected, spec.top_k(), fmt::join(shape, ", "));
}

Status check_type(const DialectInfo& info, IntType type, const DecodeOptions& options) {
  if (std::ranges::find(info.types, type) == info.types.end()) {
    return fail(ErrorCode::kWrongType, "{}: type: expected {}, got {}", info.name, type_names(info.types),
                int_type_name(type));
  }
  if (options.type && *options.type != type) {
    return fail(ErrorCode::kWrongType, "{}: type: expected {}, as asked for, got {}", info.name,
                int_type_name(*options.type), int_type_name(type));
  }
  return {};
}

Result<IntType> unsaid_type(const DialectInfo& info, const RouteSpec& spec, const DecodeOptions& options) {
  if (!options.type) return first_type(info, spec.num_experts());
  MOETAPE_TRY(check_type(info, *options.type, options));
  return *options.type;
}

Result<Routes> decode_rows(ByteReader& reader, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options) {
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (checked_multiply(arrival.num_rows, row_bytes) != reader.remaining()) {
    return fail(ErrorCode::kCorruptData, "{}: expected {} rows of {} bytes, as the form says, got {} bytes",
                arrival.dialect, arrival.num_rows, row_bytes, reader.remaining());
  }
  MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, arrival, options));
  const int64_t block_rows = std::min(decoder.block_rows(), arrival.num_rows);
  MOETAPE_ASSIGN(Buffer block, Buffer::allocate(block_rows * row_bytes));
  for (int64_t first = 0; first < arrival.num_rows;) {
    const int64_t count = std::min(decoder.block_rows(), arrival.num_rows - first);
    MOETAPE_ASSIGN(const std::byte* const rows, reader.next(count * row_bytes, block.mutable_data()));
    MOETAPE_TRY(decoder.append(rows, count));
    first += count;
  }
  return std::move(decoder).finish();
}

}  // namespace moetape::inline v0::wire
