// Ranges: lists of numbers as users write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moetape::cli {

// "0-5,7": both ends of a range belong to it. In the order given; refuses numbers above `most`.
std::vector<int64_t> parse_numbers(std::string_view text, std::string_view option, int64_t most);

// The same for layers, ascending and none twice.
std::vector<int32_t> parse_layers(std::string_view text, std::string_view option);

// "100:200", ":200", "100:": positions from the first to before the second; an end left out is INT64_MAX.
std::pair<int64_t, int64_t> parse_positions(std::string_view text, std::string_view option);

}  // namespace moetape::cli
