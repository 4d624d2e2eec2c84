// Megatron: nested JSON lists of ids.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/checked.h"
#include "base/fail.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {
namespace {

// The ids of [[[0, 1], …], …] as int32. The shape, which is known beforehand, says what comes next.
class ListReader final : public ByteReader {
 public:
  ListReader(std::string_view thing, std::string_view text, std::array<int64_t, 3> shape)
      : thing_(thing), text_(text), top_k_(shape[2]), ids_of_row_(shape[1] * shape[2]) {
    num_ids_ = shape[0] * ids_of_row_;
    remaining_ = num_ids_ * kIdBytes;
  }

  // For a shape of no rows.
  Status expect_empty() {
    if (expect('[') && expect(']') && expect_end()) return {};
    return unexpected();
  }

  Result<const std::byte*> next(int64_t bytes, std::byte* scratch) override {
    remaining_ -= bytes;
    for (std::byte* out = scratch; out < scratch + bytes; out += kIdBytes) {
      int32_t id = 0;
      if (!open_lists() || !number(id) || !close_lists()) return unexpected();
      std::memcpy(out, &id, kIdBytes);
    }
    return scratch;
  }

 private:
  static constexpr int64_t kIdBytes = sizeof(int32_t);

  // The comma and brackets before the next id.
  bool open_lists() {
    if (taken_ > 0 && !expect(',')) return false;
    if (taken_of_list_ > 0) return true;
    if (taken_ == 0 && !expect('[')) return false;
    if (taken_of_row_ == 0 && !expect('[')) return false;
    return expect('[');
  }

  // The brackets behind the id just taken.
  bool close_lists() {
    ++taken_;
    ++taken_of_row_;
    if (++taken_of_list_ < top_k_) return true;
    taken_of_list_ = 0;
    if (!expect(']')) return false;
    if (taken_of_row_ < ids_of_row_) return true;
    taken_of_row_ = 0;
    if (!expect(']')) return false;
    return taken_ < num_ids_ || (expect(']') && expect_end());
  }

  bool number(int32_t& id) {
    skip_spaces();
    const char* const begin = text_.data() + next_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), id);
    const char* const digits = begin + (begin < end && *begin == '-' ? 1 : 0);
    if (error != std::errc() || (end - digits > 1 && *digits == '0')) {
      expected_ = "a 32-bit integer";
      return false;
    }
    next_ += static_cast<size_t>(end - begin);
    return true;
  }

  bool expect(char character) {
    skip_spaces();
    if (next_ < text_.size() && text_[next_] == character) {
      ++next_;
      return true;
    }
    expected_ = character == ',' ? "','" : character == '[' ? "'['" : "']'";
    return false;
  }

  bool expect_end() {
    skip_spaces();
    expected_ = "nothing more";
    return next_ == text_.size();
  }

  void skip_spaces() {
    const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
    while (next_ < text_.size() && is_space(text_[next_])) ++next_;
  }

  Failure unexpected() const {
    return fail(ErrorCode::kCorruptData, "{}: character {}: expected {}, got {}", thing_, next_, expected_,
                shown_at(text_, next_));
  }

  std::string_view thing_;
  std::string_view text_;
  int64_t top_k_;
  int64_t ids_of_row_;
  int64_t num_ids_ = 0;
  int64_t taken_ = 0;
  int64_t taken_of_row_ = 0;
  int64_t taken_of_list_ = 0;
  size_t next_ = 0;
  std::string_view expected_;
};

// What brackets and commas say: every list has a bracket, all ids but the first have a comma before them.
Result<std::array<int64_t, 3>> shape_of(const DialectInfo& info, std::string_view text,
                                        const RouteSpec& spec) {
  const auto lists = std::ranges::count(text, '[') - 1;
  const auto ids = std::ranges::count(text, ',') + 1;
  std::array<int64_t, 3> shape{0, num_layers(spec, info.axes.front()), spec.top_k()};
  if (lists <= 0) return shape;
  for (const LayerAxis axis : info.axes) {
    shape[1] = num_layers(spec, axis);
    shape[0] = lists / (1 + shape[1]);
    const bool fits = lists % (1 + shape[1]) == 0;
    if (fits && checked_multiply(shape[0] * shape[1], shape[2]) == ids) return shape;
  }
  return fail(ErrorCode::kWrongShape,
              "{}: expected rows of {} or {} lists of {} ids, got {} lists and {} ids in all", info.name,
              num_layers(spec, info.axes.front()), num_layers(spec, info.axes.back()), spec.top_k(), lists,
              ids);
}

}  // namespace

std::vector<Form> lists_forms(const Wanted& wanted) {
  return {{.coding = Coding::kLists,
           .axis = wanted.axis,
           .type = wanted.type,
           .num_rows = wanted.num_rows,
           .before = "[",
           .after = "]"}};
}

Result<Routes> decode_lists(const Traits& traits, std::string_view text, const RouteSpec& spec,
                            const DecodeOptions& options) {
  MOETAPE_ASSIGN(const auto shape, shape_of(traits.info, text, spec));
  MOETAPE_ASSIGN(const LayerAxis axis, axis_of(traits.info, spec, shape));
  ListReader reader(traits.name(), text, shape);
  if (shape[0] == 0) MOETAPE_TRY(reader.expect_empty());
  const Arrival arrival{
      .dialect = traits.name(), .axis = axis, .type = IntType::kInt32, .num_rows = shape[0]};
  return decode_rows(reader, spec, arrival, options);
}

}  // namespace moetape::inline v0::wire
