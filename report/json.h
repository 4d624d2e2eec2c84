// Writes JSON that may stand inside an HTML page, and text that may stand in its markup.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moetape::inline v0::report {

// Commas are set by the writer; that braces match is the caller's duty.
class JsonWriter {
 public:
  JsonWriter& open(char bracket);   // '{' or '['
  JsonWriter& close(char bracket);  // '}' or ']'
  JsonWriter& key(std::string_view name);
  JsonWriter& null();
  JsonWriter& number(int64_t value);
  JsonWriter& number(std::optional<int64_t> value);
  // Four digits, which is what pictures show.
  JsonWriter& rounded(std::optional<double> value);
  // Any bytes: what is no UTF-8 becomes \xE2 and the like, characters that HTML knows are escaped, and long
  // texts are cut to kMostTextBytes and end in "…".
  JsonWriter& text(std::string_view value);

  std::string take() && { return std::move(out_); }

 private:
  void separate();

  std::string out_;
  bool needs_comma_ = false;
};

inline constexpr size_t kMostTextBytes = 400;

// Any bytes as the content of an HTML element, cut as above.
std::string html_text(std::string_view value);

}  // namespace moetape::inline v0::report
