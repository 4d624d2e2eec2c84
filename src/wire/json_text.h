// A JSON text whose long parts simdjson never sees: base64 strings and lists of integers are many megabytes
// that it would copy and index for nothing.
//
// They are cut out between their quotes or brackets, simdjson walks the rest, and whatever it points at is
// given back as a place in the caller's text. Of a list an integer stays, so that it is none of no elements.
#pragma once

#include <simdjson.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "moetape/buffer.h"
#include "moetape/error.h"

namespace moetape::inline v0::wire {

namespace json = simdjson::ondemand;

// One thread, one walk; the text must outlive it. Errors are kCorruptData and name the character's position.
class JsonText {
 public:
  // `thing` begins every message.
  JsonText(std::string_view thing, std::string_view text) : thing_(thing), text_(text) {}
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  Status open();
  json::document& document() { return document_; }
  // After the walk: nothing but the document stands in the text.
  Status end();

  Status check(simdjson::error_code error);

  // The value as it stands in the caller's text, with its quotes or brackets; moves on behind it.
  Result<std::string_view> take(json::value& value);
  // The same for a string, without its quotes. Nothing is unescaped: forms need no escapes.
  Result<std::string_view> take_string(json::value& value);

  size_t offset_of(std::string_view part) const { return static_cast<size_t>(part.data() - text_.data()); }

 private:
  // Characters of the text are left out before character `at` of the rest, `total` of them up to here.
  struct Cut {
    size_t at = 0;
    size_t total = 0;
  };

  Status cut_long_parts();
  void keep(std::string_view part);
  void cut(std::string_view part);
  void keep_between_strings(std::string_view part);

  const char* begin() const { return reinterpret_cast<const char*>(padded_.data()); }
  size_t position_of(const char* at) const;
  Failure unexpected(std::string_view expected, size_t position) const;

  std::string_view thing_;
  std::string_view text_;
  Buffer padded_;
  size_t size_ = 0;  // of what simdjson sees
  std::vector<Cut> cuts_;
  json::parser parser_;
  json::document document_;
};

}  // namespace moetape::inline v0::wire
