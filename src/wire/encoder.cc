#include "wire/encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "base/checked.h"
#include "base/fail.h"
#include "moetape/buffer.h"
#include "simd/base64.h"
#include "simd/copy.h"
#include "simd/widen.h"
#include "wire/columns.h"

namespace moetape::inline v0::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "every wire form is little-endian");

// Bytes of a block of rows in the form: with its text and the rows it came from, the block stays in the L2
// cache, and most of it in the L1 cache.
constexpr int64_t kBlockBytes = 16 << 10;
// Texts from here on are written past the caches: they do not stay in a core's own until somebody reads them.
constexpr size_t kStreamingChars = size_t{4} << 20;
// Room before a block for the 0 .. 2 bytes that the block before left over; keeps the rows aligned.
constexpr int64_t kLeadRoom = 64;

constexpr int64_t round_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// The rows of a block in between the source and the text.
class Block {
 public:
  static Result<Block> create(const RouteSpec& spec, const Form& form, int64_t num_rows) {
    Block block(spec, form);
    const int64_t row_bytes = block.columns_.sent * form.id_bytes;
    // A multiple of 3 rows is a multiple of 3 bytes: every block leaves over as much as the header did.
    block.capacity_ =
        std::min(round_up(std::max<int64_t>(kBlockBytes / row_bytes, 1), 3), round_up(num_rows, 3));
    const int64_t sent_bytes = round_up(block.capacity_ * row_bytes, 64);
    const int64_t recorded_bytes = block.in_place() ? 0 : block.capacity_ * spec.row_bytes();
    const int64_t rows_at = kLeadRoom;
    const int64_t recorded_at = rows_at + sent_bytes;
    const int64_t reasons_at = recorded_at + round_up(recorded_bytes, 64);
    const int64_t text_at = reasons_at + round_up(block.capacity_, 64);
    const size_t text_chars = simd::base64_size(static_cast<size_t>(sent_bytes + kLeadRoom));
    MOETAPE_ASSIGN(block.memory_, Buffer::allocate(text_at + static_cast<int64_t>(text_chars)));
    std::byte* memory = block.memory_.mutable_data();
    block.sent_ = memory + rows_at;
    block.recorded_ = block.in_place() ? block.sent_ : memory + recorded_at;
    block.reasons_ = reinterpret_cast<Reason*>(memory + reasons_at);
    block.text_ = memory + text_at;
    // Columns without a record are never written again.
    if (!block.columns_.same()) std::memset(block.sent_, 0, static_cast<size_t>(sent_bytes));
    return block;
  }

  int64_t capacity() const { return capacity_; }
  int64_t sent_bytes(int64_t num_rows) const { return num_rows * columns_.sent * sent_id_bytes_; }
  std::byte* recorded() { return recorded_; }
  std::span<Reason> reasons(int64_t num_rows) { return {reasons_, static_cast<size_t>(num_rows)}; }
  std::byte* sent() { return sent_; }

  // Writes the text of bytes that lie in the block; returns its end.
  char* write(char* out, const std::byte* bytes, size_t num_bytes, bool streaming) {
    if (!streaming) return out + simd::base64_encode(out, bytes, num_bytes);
    const size_t chars = simd::base64_encode(reinterpret_cast<char*>(text_), bytes, num_bytes);
    simd::copy_in(reinterpret_cast<std::byte*>(out), text_, chars);
    return out + chars;
  }

  // recorded() → sent()
  void lay_out(int64_t num_rows) {
    if (in_place()) return;
    if (columns_.same()) return put(sent_, recorded_, num_rows * columns_.recorded);
    for (int64_t row = 0; row < num_rows; ++row) {
      const std::byte* from = recorded_ + row * columns_.recorded * id_bytes_;
      std::byte* to = sent_ + row * columns_.sent * sent_id_bytes_;
      for (const ColumnRun& run : columns_.runs) {
        put(to + run.sent * sent_id_bytes_, from + run.recorded * id_bytes_, run.count);
      }
    }
  }

 private:
  Block(const RouteSpec& spec, const Form& form)
      : columns_(make_columns(spec, form.all_layers)),
        id_bytes_(spec.id_bytes()),
        sent_id_bytes_(form.id_bytes) {}

  bool in_place() const { return columns_.same() && id_bytes_ == sent_id_bytes_; }

  void put(std::byte* to, const std::byte* from, int64_t num_ids) const {
    if (id_bytes_ == sent_id_bytes_) {
      std::memcpy(to, from, static_cast<size_t>(num_ids * id_bytes_));
    } else {
      simd::widen(to, sent_id_bytes_ == 2 ? IntType::kUint16 : IntType::kInt32, from, id_bytes_, num_ids);
    }
  }

  Columns columns_;
  int id_bytes_;
  int sent_id_bytes_;
  int64_t capacity_ = 0;
  Buffer memory_;
  std::byte* sent_ = nullptr;
  std::byte* recorded_ = nullptr;
  Reason* reasons_ = nullptr;
  std::byte* text_ = nullptr;
};

bool all_valid(std::span<const Reason> reasons) {
  return std::ranges::all_of(reasons, [](Reason reason) { return reason == Reason::kValid; });
}

// Says what is missing from row `first` on, whose block has just been pulled.
Status refuse_missing(RowSource& source, std::string_view dialect, Block& block, int64_t first,
                      int64_t count) {
  std::array<int64_t, kNumReasons> missing{};
  int64_t total = 0;
  int64_t first_missing = -1;
  while (true) {
    const std::span<const Reason> reasons = block.reasons(count);
    for (int64_t row = 0; row < count; ++row) {
      const Reason reason = reasons[static_cast<size_t>(row)];
      if (reason == Reason::kValid) continue;
      if (first_missing < 0) first_missing = first + row;
      ++missing[static_cast<size_t>(reason)];
      ++total;
    }
    first += count;
    if (first == source.num_rows()) break;
    count = std::min(block.capacity(), source.num_rows() - first);
    MOETAPE_TRY(source.pull(first, count, block.recorded(), block.reasons(count).data()));
  }
  std::string by_reason;
  for (int reason = 0; reason < kNumReasons; ++reason) {
    const int64_t number = missing[static_cast<size_t>(reason)];
    if (number == 0) continue;
    by_reason += fmt::format("{}{} {}", by_reason.empty() ? "" : ", ", number,
                             reason_name(static_cast<Reason>(reason)));
  }
  return fail(ErrorCode::kMissingRows,
              "{}: expected all of {} rows, got {} missing ({}), the first at row {} (position {}); the form "
              "cannot say \"missing\": name a fill",
              dialect, source.num_rows(), total, by_reason, first_missing, source.start() + first_missing);
}

void fill_row(const RouteSpec& spec, MissingFill fill, std::byte* row) {
  std::memset(row, 0, static_cast<size_t>(spec.row_bytes()));
  if (fill == MissingFill::kZeros) return;
  for (int32_t layer = 0; layer < spec.num_moe_layers(); ++layer) {
    for (int32_t id = 0; id < spec.top_k(); ++id, row += spec.id_bytes())
      std::memcpy(row, &id, spec.id_bytes());
  }
}

Status check_fill(const RouteSpec& spec, std::string_view dialect, MissingFill fill) {
  if (fill != MissingFill::kDistinct || spec.top_k() <= spec.num_experts()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "{}: missing: distinct ids need top_k of at most {} experts, got {}", dialect,
              spec.num_experts(), spec.top_k());
}

}  // namespace

Result<size_t> form_size(const RouteSpec& spec, int64_t num_rows, const Form& form) {
  const int64_t layers = form.all_layers ? spec.num_layers() : spec.num_moe_layers();
  const int64_t row_bytes = layers * spec.top_k() * form.id_bytes;
  const std::optional<int64_t> bytes = checked_multiply(num_rows, row_bytes);
  // Base64 adds a third.
  if (!bytes || *bytes > std::numeric_limits<int64_t>::max() / 2) {
    return fail(ErrorCode::kOutOfRange, "rows: {} rows of {} bytes are more than a text can hold", num_rows,
                row_bytes);
  }
  const size_t payload = form.header.size() + static_cast<size_t>(*bytes);
  return form.before.size() + simd::base64_size(payload) + form.after.size();
}

Status write_form(RowSource& source, const Form& form, std::string_view dialect, const EncodeOptions& options,
                  char* out) {
  const RouteSpec& spec = source.spec();
  MOETAPE_TRY(check_fill(spec, dialect, options.missing));
  MOETAPE_ASSIGN(Block block, Block::create(spec, form, source.num_rows()));

  out = std::ranges::copy(form.before, out).out;
  const int64_t lead = static_cast<int64_t>(form.header.size() % 3);
  const std::byte* header = reinterpret_cast<const std::byte*>(form.header.data());
  const size_t header_groups = form.header.size() - static_cast<size_t>(lead);
  out += simd::base64_encode(out, header, header_groups);
  std::byte* const begin = block.sent() - lead;
  std::copy_n(header + header_groups, lead, begin);

  MOETAPE_ASSIGN(const size_t chars, form_size(spec, source.num_rows(), form));
  const bool streaming = chars >= kStreamingChars;
  int64_t bytes = lead;  // from `begin` on, not yet written
  for (int64_t first = 0; first < source.num_rows();) {
    const int64_t count = std::min(block.capacity(), source.num_rows() - first);
    const std::span<Reason> reasons = block.reasons(count);
    MOETAPE_TRY(source.pull(first, count, block.recorded(), reasons.data()));
    if (!all_valid(reasons)) {
      if (options.missing == MissingFill::kRefuse)
        return refuse_missing(source, dialect, block, first, count);
      for (int64_t row = 0; row < count; ++row) {
        if (reasons[static_cast<size_t>(row)] == Reason::kValid) continue;
        fill_row(spec, options.missing, block.recorded() + row * spec.row_bytes());
      }
    }
    block.lay_out(count);
    first += count;
    bytes = lead + block.sent_bytes(count);
    if (first == source.num_rows()) break;
    out = block.write(out, begin, static_cast<size_t>(bytes - lead), streaming);
    std::copy_n(begin + bytes - lead, lead, begin);
  }
  out = block.write(out, begin, static_cast<size_t>(bytes), streaming);
  if (streaming) simd::store_fence();
  std::ranges::copy(form.after, out);
  return {};
}

}  // namespace moetape::inline v0::wire
