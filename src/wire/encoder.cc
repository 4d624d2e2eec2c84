#include "wire/encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

int64_t row_ids(const RouteSpec& spec, const Form& form) {
  return int64_t{num_layers(spec, form.axis)} * spec.top_k();
}

// The most characters of rows in lists: digits, a comma or bracket behind every id, and the brackets of
// lists.
int64_t list_row_chars(const RouteSpec& spec, const Form& form) {
  const int64_t id_chars = std::ssize(fmt::to_string(spec.num_experts() - 1)) + 1;
  return row_ids(spec, form) * id_chars + 2 * int64_t{num_layers(spec, form.axis)} + 2;
}

// The rows of a block in between the source and the form.
class Block {
 public:
  static Result<Block> create(const RouteSpec& spec, const Form& form) {
    Block block(spec, form);
    const int64_t row_bytes = block.row_bytes();
    const int64_t num_rows = form.num_rows + form.surplus_rows;
    // A multiple of 3 rows is a multiple of 3 bytes: every block leaves over as much as the header did.
    block.capacity_ =
        std::min(round_up(std::max<int64_t>(kBlockBytes / row_bytes, 1), 3), round_up(num_rows, 3));
    const int64_t sent_bytes = round_up(block.capacity_ * row_bytes, 64);
    const int64_t recorded_bytes = block.in_place() ? 0 : block.capacity_ * spec.row_bytes();
    const int64_t rows_at = kLeadRoom;
    const int64_t recorded_at = rows_at + sent_bytes;
    const int64_t reasons_at = recorded_at + round_up(recorded_bytes, 64);
    const int64_t text_at = reasons_at + round_up(block.capacity_, 64);
    const auto text_chars =
        static_cast<int64_t>(simd::base64_size(static_cast<size_t>(sent_bytes + kLeadRoom)));
    MOETAPE_ASSIGN(block.memory_, Buffer::allocate(text_at + text_chars));
    std::byte* memory = block.memory_.mutable_data();
    block.sent_ = memory + rows_at;
    block.recorded_ = block.in_place() ? block.sent_ : memory + recorded_at;
    block.reasons_ = reinterpret_cast<Reason*>(memory + reasons_at);
    block.text_ = memory + text_at;
    block.clear_sent();
    return block;
  }

  int64_t capacity() const { return capacity_; }
  int64_t row_bytes() const { return columns_.sent * int_type_bytes(form_.type); }
  std::byte* recorded() { return recorded_; }
  std::span<Reason> reasons(int64_t num_rows) { return {reasons_, static_cast<size_t>(num_rows)}; }
  std::byte* sent() { return sent_; }

  // Writes bytes that lie in the block; returns their end.
  char* write(char* out, const std::byte* bytes, size_t num_bytes, bool streaming) {
    if (form_.coding == Coding::kRaw) return put_text(out, bytes, num_bytes, streaming);
    if (!streaming) return out + simd::base64_encode(out, bytes, num_bytes);
    const size_t chars = simd::base64_encode(reinterpret_cast<char*>(text_), bytes, num_bytes);
    return put_text(out, text_, chars, true);
  }

  // recorded() → sent()
  void lay_out(int64_t num_rows) {
    if (in_place()) return;
    if (std::exchange(has_marks_, false)) clear_sent();
    if (columns_.same()) return put(sent_, recorded_, num_rows * columns_.recorded);
    for (int64_t row = 0; row < num_rows; ++row) {
      const std::byte* from = recorded_ + row * columns_.recorded * id_bytes_;
      std::byte* to = sent_ + row * row_bytes();
      for (const ColumnRun& run : columns_.runs) {
        put(to + run.sent * int_type_bytes(form_.type), from + run.recorded * id_bytes_, run.count);
      }
    }
  }

  // A row that is laid out: -1 in all ids.
  void mark_missing(int64_t row) {
    std::memset(sent_ + row * row_bytes(), 0xff, static_cast<size_t>(row_bytes()));
    has_marks_ = true;
  }

 private:
  Block(const RouteSpec& spec, const Form& form)
      : form_(form), columns_(make_columns(spec, form.axis)), id_bytes_(spec.id_bytes()) {}

  bool in_place() const { return columns_.same() && id_bytes_ == int_type_bytes(form_.type); }

  // Columns without a record are not written again, unless a row was marked.
  void clear_sent() {
    if (!columns_.same()) std::memset(sent_, 0, static_cast<size_t>(capacity_ * row_bytes()));
  }

  void put(std::byte* to, const std::byte* from, int64_t num_ids) const {
    simd::widen(to, form_.type, from, id_bytes_, num_ids);
  }

  static char* put_text(char* out, const std::byte* text, size_t chars, bool streaming) {
    if (streaming) {
      simd::copy_in(reinterpret_cast<std::byte*>(out), text, chars);
    } else {
      std::memcpy(out, text, chars);
    }
    return out + chars;
  }

  const Form& form_;
  Columns columns_;
  int id_bytes_;
  int64_t capacity_ = 0;
  bool has_marks_ = false;
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

// Rows as lists: [[0,1],[2,3]].
class RowText {
 public:
  RowText(const RouteSpec& spec, const Form& form)
      : layers_(num_layers(spec, form.axis)), top_k_(spec.top_k()), max_chars_(list_row_chars(spec, form)) {
    ids_.resize(static_cast<size_t>(spec.num_experts()));
    for (size_t id = 0; id < ids_.size(); ++id) {
      const auto [end, size] = fmt::format_to_n(ids_[id].digits.begin(), kMaxDigits, "{}", id);
      ids_[id].size = static_cast<uint8_t>(size);
    }
  }

  // `ids` are int32.
  void make(const std::byte* ids, std::string& text) const {
    text.resize(static_cast<size_t>(max_chars_) + kMaxDigits);
    char* out = text.data();
    *out++ = '[';
    for (int64_t layer = 0; layer < layers_; ++layer) {
      *out++ = '[';
      for (int64_t k = 0; k < top_k_; ++k, ids += sizeof(int32_t)) {
        int32_t id = 0;
        std::memcpy(&id, ids, sizeof(id));
        const IdText& id_text = ids_[static_cast<size_t>(id)];
        std::memcpy(out, id_text.digits.data(), kMaxDigits);
        out += id_text.size;
        *out++ = ',';
      }
      out[-1] = ']';
      *out++ = ',';
    }
    out[-1] = ']';
    text.resize(static_cast<size_t>(out - text.data()));
  }

 private:
  static constexpr size_t kMaxDigits = 7;
  struct IdText {
    std::array<char, kMaxDigits> digits;
    uint8_t size;
  };

  int64_t layers_;
  int64_t top_k_;
  int64_t max_chars_;
  std::vector<IdText> ids_;
};

// Writes one form after the other out of one source.
class FormWriter {
 public:
  FormWriter(RowSource& source, std::string_view dialect, const EncodeOptions& options, bool streaming,
             char* out)
      : source_(source),
        spec_(source.spec()),
        dialect_(dialect),
        options_(options),
        streaming_(streaming),
        out_(out) {}

  Status write(const Form& form) {
    MOETAPE_ASSIGN(Block block, Block::create(spec_, form));
    put(form.before);
    MOETAPE_TRY(form.coding == Coding::kLists ? write_lists(form, block) : write_bytes(form, block));
    put(form.after);
    return {};
  }

  char* end() const { return out_; }

 private:
  void put(std::string_view text) { out_ = std::ranges::copy(text, out_).out; }

  Status write_bytes(const Form& form, Block& block) {
    // Of the header, what does not fill a group of base64 goes before the rows.
    const int64_t lead = form.coding == Coding::kRaw ? 0 : static_cast<int64_t>(form.header.size() % 3);
    const auto* const header = reinterpret_cast<const std::byte*>(form.header.data());
    const size_t groups = form.header.size() - static_cast<size_t>(lead);
    out_ = block.write(out_, header, groups, false);
    std::byte* const begin = block.sent() - lead;
    std::copy_n(header + groups, lead, begin);

    const int64_t num_rows = form.num_rows + form.surplus_rows;
    int64_t bytes = lead;  // from `begin` on, not yet written
    for (int64_t row = 0; row < num_rows;) {
      const int64_t count = std::min(block.capacity(), num_rows - row);
      MOETAPE_TRY(fetch(form, block, std::clamp<int64_t>(form.num_rows - row, 0, count), count));
      row += count;
      bytes = lead + count * block.row_bytes();
      if (row == num_rows) break;
      out_ = block.write(out_, begin, static_cast<size_t>(bytes - lead), streaming_);
      std::copy_n(begin + bytes - lead, lead, begin);
    }
    out_ = block.write(out_, begin, static_cast<size_t>(bytes), streaming_);
    return {};
  }

  Status write_lists(const Form& form, Block& block) {
    const RowText text(spec_, form);
    std::string row_text;
    for (int64_t row = 0; row < form.num_rows;) {
      const int64_t count = std::min(block.capacity(), form.num_rows - row);
      MOETAPE_TRY(fetch(form, block, count, count));
      for (int64_t i = 0; i < count; ++i, ++row) {
        if (row > 0) put(",");
        text.make(block.sent() + i * block.row_bytes(), row_text);
        put(row_text);
      }
    }
    return {};
  }

  // Fills the block with `count` rows, of which the first num_recorded are the source's next, the rest zeros.
  Status fetch(const Form& form, Block& block, int64_t num_recorded, int64_t count) {
    const std::span<Reason> reasons = block.reasons(num_recorded);
    MOETAPE_TRY(source_.pull(next_, num_recorded, block.recorded(), reasons.data()));
    const int64_t row_bytes = spec_.row_bytes();
    std::memset(block.recorded() + num_recorded * row_bytes, 0,
                static_cast<size_t>((count - num_recorded) * row_bytes));
    const bool complete = all_valid(reasons);
    const bool mark = form.says_missing && options_.missing == MissingFill::kRefuse;
    if (!complete && !mark) MOETAPE_TRY(fill_missing(block, num_recorded));
    block.lay_out(count);
    for (int64_t row = 0; row < num_recorded && !complete && mark; ++row) {
      if (reasons[static_cast<size_t>(row)] != Reason::kValid) block.mark_missing(row);
    }
    next_ += num_recorded;
    return {};
  }

  Status fill_missing(Block& block, int64_t count) {
    if (options_.missing == MissingFill::kRefuse)
      return refuse_missing(source_, dialect_, block, next_, count);
    for (int64_t row = 0; row < count; ++row) {
      if (block.reasons(count)[static_cast<size_t>(row)] == Reason::kValid) continue;
      fill_row(spec_, options_.missing, block.recorded() + row * spec_.row_bytes());
    }
    return {};
  }

  RowSource& source_;
  const RouteSpec& spec_;
  std::string_view dialect_;
  const EncodeOptions& options_;
  bool streaming_;
  int64_t next_ = 0;  // row of the source
  char* out_;
};

}  // namespace

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

Result<size_t> forms_size(const RouteSpec& spec, std::span<const Form> forms) {
  size_t size = 0;
  for (const Form& form : forms) {
    const int64_t num_rows = form.num_rows + form.surplus_rows;
    const bool lists = form.coding == Coding::kLists;
    const int64_t row_bytes =
        lists ? list_row_chars(spec, form) : row_ids(spec, form) * int_type_bytes(form.type);
    const std::optional<int64_t> bytes = checked_multiply(num_rows, row_bytes);
    // Base64 adds a third.
    if (!bytes || *bytes > std::numeric_limits<int64_t>::max() / 4) {
      return fail(ErrorCode::kOutOfRange, "rows: {} rows of {} bytes are more than a text can hold", num_rows,
                  row_bytes);
    }
    const size_t payload = form.header.size() + static_cast<size_t>(*bytes);
    size += form.before.size() + form.after.size();
    size += form.coding == Coding::kBase64 ? simd::base64_size(payload) : payload;
  }
  return size;
}

Result<size_t> write_forms(RowSource& source, std::span<const Form> forms, std::string_view dialect,
                           const EncodeOptions& options, char* out) {
  MOETAPE_TRY(check_fill(source.spec(), dialect, options.missing));
  MOETAPE_ASSIGN(const size_t size, forms_size(source.spec(), forms));
  FormWriter writer(source, dialect, options, size >= kStreamingChars, out);
  for (const Form& form : forms) MOETAPE_TRY(writer.write(form));
  if (size >= kStreamingChars) simd::store_fence();
  return static_cast<size_t>(writer.end() - out);
}

}  // namespace moetape::inline v0::wire
