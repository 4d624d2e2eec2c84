// Text: numbers and tables as people read them. Everything that commands show goes through here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "console.h"

namespace moetape::cli {

std::string count_text(int64_t number);                      // "1,234,567"
std::string counted(int64_t number, std::string_view what);  // "1 row", "1,234 rows"
std::string bytes_text(int64_t bytes);                       // "11.5 MB", in powers of 1000
std::string rate_text(std::optional<double> rate);           // "12.34%", or "-" where there is none
std::string decimal_text(std::optional<double> number);      // "1.234", or "-"
std::string layers_text(std::span<const int32_t> layers);    // "3-60", "1, 3, 5"

// Lines of cells. `columns` has one letter a column: l for text, r for numbers. Cells come from anywhere:
// control characters are shown as text.
class Table {
 public:
  explicit Table(std::string columns, std::vector<std::string> heading = {});

  void add(std::vector<std::string> cells, Style style = Style::kPlain);
  std::string text(const Console& console) const;

 private:
  struct Line {
    std::vector<std::string> cells;
    Style style;
  };
  std::string columns_;
  std::vector<Line> lines_;
};

// Names and what they are, one a line.
std::string facts_text(const Console& console, const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace moetape::cli
