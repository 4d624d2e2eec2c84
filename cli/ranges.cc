#include "ranges.h"

#include <algorithm>
#include <charconv>

#include "refusal.h"

namespace moetape::cli {
namespace {

// More layers than any model has.
constexpr int64_t kLastLayer = 65'535;
// A list of more numbers is no list that somebody wrote.
constexpr int64_t kMostNumbers = int64_t{1} << 32;

int64_t parse_number(std::string_view text, std::string_view whole, std::string_view option, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number >= 0;
  if (!is_number) refuse("{}: expected a number or range such as 0-5,7, got '{}'", option, whole);
  if (number > most) refuse("{}: expected numbers up to {}, got {}", option, most, number);
  return number;
}

}  // namespace

std::vector<int64_t> parse_numbers(std::string_view text, std::string_view option, int64_t most) {
  std::vector<int64_t> numbers;
  for (size_t place = 0; place <= text.size();) {
    const size_t comma = std::min(text.find(',', place), text.size());
    const std::string_view item = text.substr(place, comma - place);
    const size_t dash = std::min(item.find('-'), item.size());
    const int64_t first = parse_number(item.substr(0, dash), text, option, most);
    const int64_t last =
        dash == item.size() ? first : parse_number(item.substr(dash + 1), text, option, most);
    if (last < first) refuse("{}: expected the lower number first, got '{}'", option, item);
    if (last - first >= kMostNumbers) refuse("{}: more than {} numbers in '{}'", option, kMostNumbers, item);
    for (int64_t number = first; number <= last; ++number) numbers.push_back(number);
    place = comma + 1;
  }
  return numbers;
}

std::vector<int32_t> parse_layers(std::string_view text, std::string_view option) {
  const std::vector<int64_t> numbers = parse_numbers(text, option, kLastLayer);
  std::vector<int32_t> layers(numbers.begin(), numbers.end());
  if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end()) {
    refuse("{}: expected ascending layers, got '{}'", option, text);
  }
  return layers;
}

std::pair<int64_t, int64_t> parse_positions(std::string_view text, std::string_view option) {
  const size_t colon = text.find(':');
  const auto position = [&](std::string_view part, int64_t absent) {
    if (part.empty()) return absent;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size() || number < 0) {
      refuse("{}: expected START:END, got '{}'", option, text);
    }
    return number;
  };
  if (colon == std::string_view::npos) refuse("{}: expected START:END, got '{}'", option, text);
  const int64_t start = position(text.substr(0, colon), 0);
  const int64_t end = position(text.substr(colon + 1), INT64_MAX);
  if (end < start) refuse("{}: expected START up to END, got '{}'", option, text);
  return {start, end};
}

}  // namespace moetape::cli
