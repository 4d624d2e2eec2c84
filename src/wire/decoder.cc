#include "wire/decoder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
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

// Checks rows and makes them what Routes keep.
class RowsDecoder {
 public:
  static Result<RowsDecoder> create(const RouteSpec& spec, const Arrival& arrival,
                                    const DecodeOptions& options) {
    return create(spec, arrival, options, make_columns(spec, arrival.axis));
  }
  // The columns are those of the spec, in a row that may be a part of that which arrives.
  static Result<RowsDecoder> create(const RouteSpec& spec, const Arrival& arrival,
                                    const DecodeOptions& options, Columns columns) {
    MOETAPE_ASSIGN(const Kept kept, rows_kept(arrival.dialect, arrival.num_rows, arrival.start, options));
    RowsDecoder decoder(spec, arrival, std::move(columns));
    decoder.kept_ = kept;
    MOETAPE_TRY(decoder.allocate());
    return decoder;
  }

  int64_t start() const { return kept_.start; }
  int64_t num_rows() const { return kept_.num_rows; }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t skipped_bytes() const { return columns_.skipped * type_bytes_; }  // in front of a row
  int64_t block_rows() const { return block_rows_; }

  // Rows [first, first + count), at most block_rows(), as they arrived; those behind num_rows() are passed
  // over. The ids of a missing row are left as they are.
  Status decode(const std::byte* rows, int64_t first, int64_t count, std::byte* ids, Reason* reasons) {
    const int64_t end = std::min(first + count, kept_.num_rows);
    int64_t row = std::clamp(kept_.first_known, first, std::max(first, end));
    std::fill_n(reasons, row - first, Reason::kNotSent);
    while (row < end) {
      const std::byte* const at = rows + (row - first) * row_bytes_;
      if (is_missing(at)) {
        reasons[row++ - first] = Reason::kNotSent;
        continue;
      }
      int64_t num_valid = 1;
      while (row + num_valid < end && !is_missing(at + num_valid * row_bytes_)) ++num_valid;
      MOETAPE_TRY(check_gaps(at, row, num_valid));
      MOETAPE_TRY(narrow(at, row, num_valid, ids + (row - first) * spec_.row_bytes()));
      std::fill_n(reasons + (row - first), num_valid, Reason::kValid);
      row += num_valid;
    }
    return {};
  }

 private:
  RowsDecoder(const RouteSpec& spec, const Arrival& arrival, Columns columns)
      : spec_(spec),
        arrival_(arrival),
        columns_(std::move(columns)),
        type_bytes_(int_type_bytes(arrival.type)),
        row_bytes_(columns_.sent * type_bytes_) {
    block_rows_ = std::clamp<int64_t>(kBlockBytes / row_bytes_, 1, std::max<int64_t>(arrival.num_rows, 1));
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

  Status check_gaps(const std::byte* rows, int64_t first, int64_t count) const {
    for (int64_t row = 0; row < count && !columns_.same(); ++row, rows += row_bytes_) {
      for (const ColumnGap& gap : columns_.gaps) {
        const std::span bytes(rows + gap.sent * type_bytes_, static_cast<size_t>(gap.count * type_bytes_));
        const auto bad = std::ranges::find_if(bytes, [](std::byte byte) { return byte != std::byte{0}; });
        if (bad == bytes.end()) continue;
        const int64_t id = columns_.skipped + gap.sent + (bad - bytes.begin()) / type_bytes_;
        const int64_t layer = id / spec_.top_k();
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

  Status narrow(const std::byte* rows, int64_t first, int64_t count, std::byte* ids) {
    const std::byte* from = rows;
    if (!columns_.same()) {
      compact(rows, count, scratch_.mutable_data());
      from = scratch_.data();
    }
    const std::optional<BadId> bad = narrow_rows(spec_, from, arrival_.type, count, ids, faults_);
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
    return fmt::format("{}: row {} (position {}), layer {}", arrival_.dialect, row, kept_.start + row, layer);
  }

  RouteSpec spec_;
  Arrival arrival_;
  Columns columns_;
  int type_bytes_;
  int64_t row_bytes_;  // that arrive, of the columns
  Kept kept_;
  int64_t block_rows_ = 1;
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

Result<Kept> rows_kept(std::string_view dialect, int64_t num_rows, std::optional<int64_t> said_start,
                       const DecodeOptions& options) {
  if (options.start && said_start && *options.start != *said_start) {
    return fail(ErrorCode::kWrongShape, "{}: start: expected {}, got {}", dialect, *options.start,
                *said_start);
  }
  if (options.surplus_rows < 0 || options.surplus_rows > num_rows) {
    return fail(options.surplus_rows < 0 ? ErrorCode::kInvalidArgument : ErrorCode::kWrongShape,
                "{}: surplus_rows: expected 0 to {}, the rows that came, got {}", dialect, num_rows,
                options.surplus_rows);
  }
  if (options.version && *options.version > kMaxVersion) {
    return fail(ErrorCode::kInvalidArgument, "{}: version: expected 0 to {}, got {}", dialect, kMaxVersion,
                *options.version);
  }
  Kept kept;
  kept.start = options.start ? *options.start : said_start.value_or(0);
  kept.num_rows = num_rows - options.surplus_rows;
  if (options.num_rows && *options.num_rows != kept.num_rows) {
    return fail(ErrorCode::kWrongShape, "{}: rows: expected {}, got {}", dialect, *options.num_rows,
                kept.num_rows);
  }
  if (kept.start < 0) {
    return fail(ErrorCode::kOutOfRange, "{}: start: expected 0 or more, got {}", dialect, kept.start);
  }
  if (options.known_from > kept.start) {
    kept.first_known = std::min(options.known_from - kept.start, kept.num_rows);
  }
  return kept;
}

namespace {

Status check_length(const ByteReader& reader, const RouteSpec& spec, const Arrival& arrival) {
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (checked_multiply(arrival.num_rows, row_bytes) == reader.remaining()) return {};
  return fail(ErrorCode::kCorruptData, "{}: expected {} rows of {} bytes, as the form says, got {} bytes",
              arrival.dialect, arrival.num_rows, row_bytes, reader.remaining());
}

// Rows that are decoded as they are pulled.
class PulledRows final : public RowSource {
 public:
  using Open = std::function<Result<OpenForm>()>;

  PulledRows(const RouteSpec& spec, Open open, const DecodeOptions& options, OpenForm form,
             int64_t form_row_bytes, RowsDecoder decoder, Buffer block)
      : spec_(spec),
        open_(std::move(open)),
        options_(options),
        form_(std::move(form)),
        form_row_bytes_(form_row_bytes),
        decoder_(std::move(decoder)),
        block_(std::move(block)) {}

  static Result<std::unique_ptr<RowSource>> create(const RouteSpec& spec, Open open,
                                                   const DecodeOptions& options, OpenForm form,
                                                   int64_t form_row_bytes, RowsDecoder decoder) {
    const int64_t block_bytes = decoder.block_rows() * decoder.row_bytes();
    const int64_t scratch_bytes = decoder.row_bytes() + ByteReader::kNearby;
    MOETAPE_ASSIGN(Buffer block, Buffer::allocate(block_bytes + scratch_bytes));
    return std::make_unique<PulledRows>(spec, std::move(open), options, std::move(form), form_row_bytes,
                                        std::move(decoder), std::move(block));
  }

  const RouteSpec& spec() const override { return spec_; }
  int64_t start() const override { return decoder_.start(); }
  int64_t num_rows() const override { return decoder_.num_rows(); }

  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override {
    MOETAPE_TRY(check_part(first, count));
    Status pulled = read(first, count, rows, reasons);
    if (!pulled) next_ = num_rows() + 1;  // the reader stands somewhere: open the form anew
    return pulled;
  }

  // One stretch of layers, so that a row is one part of the form's.
  Result<std::unique_ptr<RowSource>> of_layers(std::span<const int32_t> layers) const override {
    if (layers.empty()) return nullptr;
    const auto [least, most] = std::ranges::minmax(layers);
    MOETAPE_ASSIGN(const int32_t first, spec_.column_of(least));
    MOETAPE_ASSIGN(const int32_t last, spec_.column_of(most));
    const int32_t count = last - first + 1;
    if (4 * count > 3 * spec_.num_moe_layers() || decoder_.row_bytes() != form_row_bytes_) return nullptr;
    const std::span stretch = spec_.layers().subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    MOETAPE_ASSIGN(const RouteSpec spec, spec_.with_layers({stretch.begin(), stretch.end()}));
    MOETAPE_ASSIGN(OpenForm form, open_());
    const Columns columns = part_of(make_columns(spec_, form.arrival.axis), int64_t{first} * spec_.top_k(),
                                    int64_t{last + 1} * spec_.top_k());
    MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, form.arrival, options_, columns));
    return create(spec, open_, options_, std::move(form), form_row_bytes_, std::move(decoder));
  }

 private:
  Status read(int64_t first, int64_t count, std::byte* rows, Reason* reasons) {
    MOETAPE_TRY(go_to(first));
    for (const int64_t end = first + count; next_ < end;) {
      const int64_t part = std::min(decoder_.block_rows(), end - next_);
      std::byte* const ids = rows + (next_ - first) * spec_.row_bytes();
      Reason* const why = reasons + (next_ - first);
      MOETAPE_ASSIGN(const std::byte* const arrived, arrive(part));
      MOETAPE_TRY(decoder_.decode(arrived, next_, part, ids, why));
      for (int64_t row = 0; row < part; ++row) {
        if (why[row] != Reason::kValid)
          std::fill_n(ids + row * spec_.row_bytes(), spec_.row_bytes(), std::byte{0});
      }
      next_ += part;
    }
    return {};
  }

  // Between calls the reader stands at row next_ of the form, less behind_ bytes.
  Status go_to(int64_t row) {
    if (row < next_) {
      MOETAPE_ASSIGN(form_, open_());
      next_ = 0;
      behind_ = 0;
    }
    behind_ += (row - next_) * form_row_bytes_;
    next_ = row;
    return {};
  }

  // The bytes of the next rows' columns, dense.
  Result<const std::byte*> arrive(int64_t count) {
    const int64_t row_bytes = decoder_.row_bytes();
    if (row_bytes == form_row_bytes_) {
      MOETAPE_TRY(form_.reader->skip(std::exchange(behind_, 0)));
      return form_.reader->next(count * row_bytes, block_.mutable_data());
    }
    std::byte* to = block_.mutable_data();
    std::byte* const scratch = to + decoder_.block_rows() * row_bytes;
    for (int64_t row = 0; row < count; ++row, to += row_bytes) {
      const int64_t skipped = behind_ + decoder_.skipped_bytes();
      MOETAPE_ASSIGN(const std::byte* const at, form_.reader->next_behind(skipped, row_bytes, scratch));
      std::memcpy(to, at, static_cast<size_t>(row_bytes));
      behind_ = form_row_bytes_ - decoder_.skipped_bytes() - row_bytes;
    }
    return block_.data();
  }

  RouteSpec spec_;
  Open open_;
  DecodeOptions options_;
  OpenForm form_;
  int64_t form_row_bytes_;
  int64_t behind_ = 0;
  RowsDecoder decoder_;
  Buffer block_;
  int64_t next_ = 0;
};

}  // namespace

Result<Routes> decode_rows(ByteReader& reader, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options) {
  MOETAPE_TRY(check_length(reader, spec, arrival));
  MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, arrival, options));
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, decoder.start(), decoder.num_rows()));
  const int64_t block_rows = std::min(decoder.block_rows(), arrival.num_rows);
  MOETAPE_ASSIGN(Buffer block, Buffer::allocate(block_rows * decoder.row_bytes()));
  for (int64_t first = 0; first < arrival.num_rows;) {
    const int64_t count = std::min(decoder.block_rows(), arrival.num_rows - first);
    MOETAPE_ASSIGN(const std::byte* const rows,
                   reader.next(count * decoder.row_bytes(), block.mutable_data()));
    const int64_t at = std::min(first, decoder.num_rows());
    MOETAPE_TRY(
        decoder.decode(rows, first, count, builder.ids() + at * spec.row_bytes(), builder.reasons() + at));
    first += count;
  }
  if (options.version && decoder.num_rows() > 0) builder.add_version(0, decoder.num_rows(), *options.version);
  return std::move(builder).finish();
}

Result<std::unique_ptr<RowSource>> pull_rows(std::function<Result<OpenForm>()> open, const RouteSpec& spec,
                                             const DecodeOptions& options) {
  MOETAPE_ASSIGN(OpenForm form, open());
  MOETAPE_TRY(check_length(*form.reader, spec, form.arrival));
  MOETAPE_ASSIGN(RowsDecoder decoder, RowsDecoder::create(spec, form.arrival, options));
  const int64_t row_bytes = decoder.row_bytes();
  return PulledRows::create(spec, std::move(open), options, std::move(form), row_bytes, std::move(decoder));
}

}  // namespace moetape::inline v0::wire
