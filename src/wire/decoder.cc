#include "wire/decoder.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/fail.h"
#include "routes/narrow_rows.h"

namespace moetape::inline v0::wire {
namespace {

// Bytes of the rows that are checked at once; they stay in the cache.
constexpr int64_t kBlockBytes = 32 << 10;

// Takes blocks of rows in order.
class RowsDecoder {
 public:
  static Result<RowsDecoder> create(const RouteSpec& spec, const Arrival& arrival,
                                    const DecodeOptions& options) {
    if (options.num_rows && *options.num_rows != arrival.num_rows) {
      return fail(ErrorCode::kWrongShape, "{}: rows: expected {}, got {}", arrival.dialect, *options.num_rows,
                  arrival.num_rows);
    }
    if (options.version && *options.version > kMaxVersion) {
      return fail(ErrorCode::kInvalidArgument, "{}: version: expected 0 to {}, got {}", arrival.dialect,
                  kMaxVersion, *options.version);
    }
    MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, options.start, arrival.num_rows));
    RowsDecoder decoder(spec, arrival, options, std::move(builder));
    MOETAPE_TRY(decoder.allocate());
    return decoder;
  }

  int64_t block_rows() const { return block_rows_; }

  Status append(const std::byte* rows, int64_t count) {
    MOETAPE_TRY(check_gaps(rows, count));
    MOETAPE_TRY(narrow(rows, count));
    next_ += count;
    return {};
  }

  Routes finish() && {
    std::fill_n(builder_.reasons(), next_, Reason::kValid);
    if (options_.version && next_ > 0) builder_.add_version(0, next_, *options_.version);
    return std::move(builder_).finish();
  }

 private:
  RowsDecoder(const RouteSpec& spec, const Arrival& arrival, const DecodeOptions& options,
              RoutesBuilder builder)
      : spec_(spec),
        arrival_(arrival),
        options_(options),
        columns_(make_columns(spec, arrival.all_layers)),
        type_bytes_(int_type_bytes(arrival.type)),
        builder_(std::move(builder)) {
    block_rows_ = std::clamp<int64_t>(kBlockBytes / (columns_.sent * type_bytes_), 1,
                                      std::max<int64_t>(arrival.num_rows, 1));
  }

  Status allocate() {
    if (arrival_.num_rows == 0) return {};
    const int64_t compact_bytes = columns_.same() ? 0 : block_rows_ * columns_.recorded * type_bytes_;
    MOETAPE_ASSIGN(scratch_, Buffer::allocate(compact_bytes + block_rows_ * spec_.num_moe_layers()));
    faults_ = reinterpret_cast<uint8_t*>(scratch_.mutable_data() + compact_bytes);
    return {};
  }

  Status check_gaps(const std::byte* rows, int64_t count) const {
    for (int64_t row = 0; row < count && !columns_.same(); ++row, rows += columns_.sent * type_bytes_) {
      for (const ColumnGap& gap : columns_.gaps) {
        const std::span bytes(rows + gap.sent * type_bytes_, static_cast<size_t>(gap.count * type_bytes_));
        const auto bad = std::ranges::find_if(bytes, [](std::byte byte) { return byte != std::byte{0}; });
        if (bad == bytes.end()) continue;
        const int64_t layer = (gap.sent + (bad - bytes.begin()) / type_bytes_) / spec_.top_k();
        return fail(
            ErrorCode::kCorruptData,
            "{}: row {} (position {}), layer {}: expected zeros, since the spec records nothing of this "
            "layer, got another id",
            arrival_.dialect, next_ + row, options_.start + next_ + row, layer);
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
      rows += columns_.sent * type_bytes_;
      out += columns_.recorded * type_bytes_;
    }
  }

  Status narrow(const std::byte* rows, int64_t count) {
    const std::byte* from = rows;
    if (!columns_.same()) {
      compact(rows, count, scratch_.mutable_data());
      from = scratch_.data();
    }
    const std::optional<BadId> bad =
        narrow_rows(spec_, from, arrival_.type, count, builder_.ids() + next_ * spec_.row_bytes(), faults_);
    if (!bad) return {};
    const int64_t row = next_ + bad->row;
    const std::string place = fmt::format("{}: row {} (position {}), layer {}", arrival_.dialect, row,
                                          options_.start + row, bad->layer);
    if (bad->repeated) {
      return fail(ErrorCode::kInvalidArgument, "{}: expected {} different ids, got {} twice", place,
                  spec_.top_k(), bad->value);
    }
    return fail(ErrorCode::kOutOfRange, "{}: expected ids of 0 to {}, got {}", place, spec_.num_experts() - 1,
                bad->value);
  }

  RouteSpec spec_;
  Arrival arrival_;
  DecodeOptions options_;
  Columns columns_;
  int type_bytes_;
  RoutesBuilder builder_;
  int64_t block_rows_ = 1;
  int64_t next_ = 0;  // row
  Buffer scratch_;
  uint8_t* faults_ = nullptr;  // one a list of a block
};

}  // namespace

int64_t arriving_row_bytes(const RouteSpec& spec, const Arrival& arrival) {
  const int64_t layers = arrival.all_layers ? spec.num_layers() : spec.num_moe_layers();
  return layers * spec.top_k() * int_type_bytes(arrival.type);
}

Status check_shape(const RouteSpec& spec, std::string_view dialect, bool all_layers,
                   std::span<const int64_t> shape) {
  const int64_t layers = all_layers ? spec.num_layers() : spec.num_moe_layers();
  if (shape.size() == 3 && shape[0] >= 0 && shape[1] == layers && shape[2] == spec.top_k()) return {};
  return fail(ErrorCode::kWrongShape, "{}: shape: expected [rows, {} {} layers, {} ids], got [{}]", dialect,
              layers, all_layers ? "(all)" : "MoE", spec.top_k(), fmt::join(shape, ", "));
}

Result<Routes> decode_rows(Base64Reader& reader, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options) {
  MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, arrival, options));
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  const int64_t block_rows = std::min(decoder.block_rows(), arrival.num_rows);
  MOETAPE_ASSIGN(Buffer block, Buffer::allocate(block_rows * row_bytes));
  for (int64_t first = 0; first < arrival.num_rows;) {
    const int64_t count = std::min(decoder.block_rows(), arrival.num_rows - first);
    MOETAPE_TRY(reader.read(block.mutable_data(), count * row_bytes));
    MOETAPE_TRY(decoder.append(block.data(), count));
    first += count;
  }
  return std::move(decoder).finish();
}

Result<Routes> decode_rows(const std::byte* rows, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options) {
  MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, arrival, options));
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  for (int64_t first = 0; first < arrival.num_rows;) {
    const int64_t count = std::min(decoder.block_rows(), arrival.num_rows - first);
    MOETAPE_TRY(decoder.append(rows + first * row_bytes, count));
    first += count;
  }
  return std::move(decoder).finish();
}

}  // namespace moetape::inline v0::wire
