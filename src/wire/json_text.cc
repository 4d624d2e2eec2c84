#include "wire/json_text.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fail.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {
namespace {

// Longer than any key, name or number.
constexpr size_t kLong = 1 << 10;
constexpr std::string_view kSpaces = " \t\n\r";

// Where the string ends whose first character is at `begin`: at its closing quote, or npos.
size_t end_of_string(std::string_view text, size_t begin) {
  for (size_t quote = text.find('"', begin); quote != std::string_view::npos;
       quote = text.find('"', quote + 1)) {
    size_t backslashes = 0;
    while (quote - backslashes > begin && text[quote - backslashes - 1] == '\\') ++backslashes;
    if (backslashes % 2 == 0) return quote;
  }
  return std::string_view::npos;
}

// +1 and -1 for brackets, 0 for what else stands in nested lists of integers, 2 for all other characters.
constexpr std::array<int8_t, 256> kListCharacters = [] {
  std::array<int8_t, 256> table{};
  table.fill(2);
  for (const char character : std::string_view("0123456789-, \t\n\r")) {
    table[static_cast<unsigned char>(character)] = 0;
  }
  table['['] = 1;
  table[']'] = -1;
  return table;
}();

// The inside of the list whose opening bracket is at `open`; empty if it holds anything but integers, or
// none.
std::string_view inside_of_list(std::string_view text, size_t open) {
  int64_t depth = 0;
  for (size_t at = open; at < text.size(); ++at) {
    const int8_t step = kListCharacters[static_cast<unsigned char>(text[at])];
    if (step == 2) return {};
    depth += step;
    if (depth > 0) continue;
    const std::string_view inside = text.substr(open + 1, at - open - 1);
    return inside.find_first_not_of(kSpaces) == std::string_view::npos ? std::string_view() : inside;
  }
  return {};
}

}  // namespace

Status JsonText::open() {
  MOETAPE_TRY(cut_long_parts());
  const auto padded_size = static_cast<size_t>(padded_.size());
  std::memset(padded_.mutable_data() + size_, 0, simdjson::SIMDJSON_PADDING);
  const simdjson::error_code error = parser_.iterate(begin(), size_, padded_size).get(document_);
  if (error == simdjson::SUCCESS) return {};
  return fail(ErrorCode::kCorruptData, "{}: {}", thing_, simdjson::error_message(error));
}

Status JsonText::cut_long_parts() {
  MOETAPE_ASSIGN(padded_, Buffer::allocate(static_cast<int64_t>(text_.size() + simdjson::SIMDJSON_PADDING)));
  size_t done = 0;
  while (done < text_.size()) {
    const size_t open = std::min(text_.find('"', done), text_.size());
    keep_between_strings(text_.substr(done, open - done));
    if (open == text_.size()) break;
    const size_t close = std::min(end_of_string(text_, open + 1), text_.size());
    const std::string_view inside = text_.substr(open + 1, close - open - 1);
    const bool is_long = close < text_.size() && inside.size() >= kLong;
    keep(text_.substr(open, 1));
    is_long ? cut(inside) : keep(inside);
    done = std::min(close + 1, text_.size());
    keep(text_.substr(close, done - close));
  }
  return {};
}

void JsonText::keep(std::string_view part) {
  if (part.empty()) return;
  std::memcpy(padded_.mutable_data() + size_, part.data(), part.size());
  size_ += part.size();
}

void JsonText::cut(std::string_view part) {
  cuts_.push_back({size_, (cuts_.empty() ? 0 : cuts_.back().total) + part.size()});
}

void JsonText::keep_between_strings(std::string_view part) {
  const size_t open = part.size() < kLong ? std::string_view::npos : part.find('[');
  const std::string_view inside =
      open == std::string_view::npos ? std::string_view() : inside_of_list(part, open);
  if (inside.size() < kLong) return keep(part);
  keep(part.substr(0, open + 1));
  keep("0");
  cut(inside.substr(1));
  keep(part.substr(open + 1 + inside.size()));
}

Status JsonText::end() {
  const char* rest = nullptr;
  if (document_.current_location().get(rest) != simdjson::SUCCESS) return {};
  return unexpected("nothing more", position_of(rest));
}

Status JsonText::check(simdjson::error_code error) {
  if (error == simdjson::SUCCESS) return {};
  const char* at = nullptr;
  const bool ends_early = error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT;
  const bool has_place = !ends_early && document_.current_location().get(at) == simdjson::SUCCESS;
  const size_t position = has_place ? position_of(at) : text_.size();
  return fail(ErrorCode::kCorruptData, "{}: character {}: {} Got {}", thing_, position,
              simdjson::error_message(error), shown_at(text_, position));
}

Result<std::string_view> JsonText::take(json::value& value) {
  json::json_type type{};
  MOETAPE_TRY(check(value.type().get(type)));
  std::string_view raw;
  if (type == json::json_type::array) {
    json::array array;
    MOETAPE_TRY(check(value.get_array().get(array)));
    MOETAPE_TRY(check(array.raw_json().get(raw)));
  } else if (type == json::json_type::object) {
    json::object object;
    MOETAPE_TRY(check(value.get_object().get(object)));
    MOETAPE_TRY(check(object.raw_json().get(raw)));
  } else {
    raw = value.raw_json_token();
  }
  // simdjson counts the white space behind a value among it.
  while (!raw.empty() && kSpaces.find(raw.back()) != std::string_view::npos) {
    raw.remove_suffix(1);
  }
  if (raw.empty()) return unexpected("a value", position_of(raw.data()));
  const size_t first = position_of(raw.data());
  const size_t last = position_of(raw.data() + raw.size() - 1);
  return text_.substr(first, last - first + 1);
}

Result<std::string_view> JsonText::take_string(json::value& value) {
  json::json_type type{};
  MOETAPE_TRY(check(value.type().get(type)));
  const char* const at = type == json::json_type::string ? nullptr : value.raw_json_token().data();
  if (at != nullptr) return unexpected("a string", position_of(at));
  MOETAPE_ASSIGN(const std::string_view raw, take(value));
  if (raw.size() < 2 || raw.back() != '"')
    return unexpected("the end of a string", offset_of(raw) + raw.size());
  return raw.substr(1, raw.size() - 2);
}

size_t JsonText::position_of(const char* at) const {
  const auto position = static_cast<size_t>(at - begin());
  const auto behind = std::ranges::upper_bound(cuts_, position, {}, &Cut::at);
  return behind == cuts_.begin() ? position : position + std::prev(behind)->total;
}

Failure JsonText::unexpected(std::string_view expected, size_t position) const {
  return fail(ErrorCode::kCorruptData, "{}: character {}: expected {}, got {}", thing_, position, expected,
              shown_at(text_, position));
}

}  // namespace moetape::inline v0::wire
