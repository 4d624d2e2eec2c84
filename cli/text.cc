#include "text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace moetape::cli {
namespace {

// Characters, as far as a terminal shows one for each code point.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

}  // namespace

std::string count_text(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t place = digits.size(); place > first + 3; place -= 3) digits.insert(place - 3, 1, ',');
  return digits;
}

std::string counted(int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", count_text(number), what, number == 1 ? "" : "s");
}

std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 999.5 && unit + 1 < std::size(kUnits)) {
    number /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", number, number < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string rate_text(std::optional<double> rate) { return rate ? fmt::format("{:.2f}%", *rate * 100) : "-"; }

std::string decimal_text(std::optional<double> number) {
  return number ? fmt::format("{:.3f}", *number) : "-";
}

std::string layers_text(std::span<const int32_t> layers) {
  std::vector<std::string> runs;
  for (size_t first = 0; first < layers.size();) {
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    runs.push_back(first == last ? fmt::format("{}", layers[first])
                                 : fmt::format("{}-{}", layers[first], layers[last]));
    first = last + 1;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

Table::Table(std::string columns, std::vector<std::string> heading) : columns_(std::move(columns)) {
  if (!heading.empty()) add(std::move(heading), Style::kHeading);
}

void Table::add(std::vector<std::string> cells, Style style) {
  for (std::string& cell : cells) cell = printable(cell);
  cells.resize(columns_.size());
  lines_.push_back({std::move(cells), style});
}

std::string Table::text(const Console& console) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const Line& line : lines_) {
    for (size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], width(line.cells[column]));
    }
  }
  std::string text;
  for (const Line& line : lines_) {
    std::string row;
    for (size_t column = 0; column < widths.size(); ++column) {
      const std::string& cell = line.cells[column];
      const size_t space = widths[column] - width(cell);
      const bool is_number = columns_[column] == 'r';
      row.append(column > 0 ? 2 : 0, ' ').append(is_number ? space : 0, ' ');
      row.append(cell).append(is_number ? 0 : space, ' ');
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text.append(console.styled(line.style, row)).append("\n");
  }
  return text;
}

std::string facts_text(const Console& console,
                       const std::vector<std::pair<std::string, std::string>>& facts) {
  Table table("ll");
  for (const auto& [name, value] : facts) table.add({name, value});
  return table.text(console);
}

}  // namespace moetape::cli
