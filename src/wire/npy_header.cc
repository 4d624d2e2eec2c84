#include "wire/npy_header.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/fail.h"
#include "wire/marks.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {
namespace {

// NumPy keeps this many digits for the first dimension, so that a file can grow in place.
constexpr size_t kFirstDimensionDigits = 21;
constexpr size_t kAlignment = 64;

struct Descr {
  std::string_view text;
  IntType type;
};
constexpr std::array kDescrs = {Descr{"|u1", IntType::kUint8},  Descr{"|i1", IntType::kInt8},
                                Descr{"<u2", IntType::kUint16}, Descr{"<i2", IntType::kInt16},
                                Descr{"<u4", IntType::kUint32}, Descr{"<i4", IntType::kInt32},
                                Descr{"<u8", IntType::kUint64}, Descr{"<i8", IntType::kInt64}};

// A reader of the one Python literal that may stand in a header.
class DictParser {
 public:
  DictParser(std::string_view thing, std::string_view text) : thing_(thing), text_(text) {}

  Result<NpyDict> parse() {
    MOETAPE_TRY(expect('{'));
    while (!skip('}')) {
      MOETAPE_ASSIGN(const std::string_view key, quoted());
      MOETAPE_TRY(expect(':'));
      MOETAPE_TRY(value(key));
      if (skip(',')) continue;
      MOETAPE_TRY(expect('}'));
      break;
    }
    if (!text_.ends_with('\n')) return unexpected("a line end behind the dict", text_.size());
    if (const size_t rest = text_.find_first_not_of(' ', next_); rest + 1 != text_.size()) {
      return unexpected("spaces up to the line end", rest);
    }
    if (!has_type_) return missing("descr");
    if (!has_order_) return missing("fortran_order");
    if (!has_shape_) return missing("shape");
    return dict_;
  }

 private:
  Status value(std::string_view key) {
    if (key == "descr" && !std::exchange(has_type_, true)) return descr();
    if (key == "fortran_order" && !std::exchange(has_order_, true)) return order();
    if (key == "shape" && !std::exchange(has_shape_, true)) return shape();
    return fail(ErrorCode::kCorruptData,
                "{}: npy header: expected descr, fortran_order and shape, once each, got {:?}", thing_,
                key.substr(0, kMostShown));
  }

  Status descr() {
    MOETAPE_ASSIGN(const std::string_view text, quoted());
    const auto known = std::ranges::find(kDescrs, text, &Descr::text);
    if (known == kDescrs.end()) {
      return fail(ErrorCode::kWrongType, "{}: npy header: descr: expected a little-endian integer, got {:?}",
                  thing_, text.substr(0, kMostShown));
    }
    dict_.type = known->type;
    return {};
  }

  Status order() {
    if (skip_word("False")) return {};
    if (!skip_word("True")) return unexpected("False", next_);
    return fail(ErrorCode::kUnsupported, "{}: npy header: fortran_order: expected False, got True", thing_);
  }

  Status shape() {
    MOETAPE_TRY(expect('('));
    std::vector<int64_t> dimensions;
    while (!skip(')')) {
      skip_spaces();
      int64_t dimension = -1;
      const char* const begin = text_.data() + next_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), dimension);
      const bool padded = end - begin > 1 && *begin == '0';
      if (error != std::errc() || dimension < 0 || padded) return unexpected("a dimension below 2^63", next_);
      next_ += static_cast<size_t>(end - begin);
      dimensions.push_back(dimension);
      if (skip(',')) continue;
      MOETAPE_TRY(expect(')'));
      break;
    }
    if (dimensions.size() != dict_.shape.size()) {
      return fail(ErrorCode::kWrongShape, "{}: npy header: shape: expected (rows, layers, k), got ({})",
                  thing_, fmt::join(dimensions, ", "));
    }
    std::ranges::copy(dimensions, dict_.shape.begin());
    return {};
  }

  Result<std::string_view> quoted() {
    skip_spaces();
    const char quote = next_ < text_.size() ? text_[next_] : '\0';
    if (quote != '\'' && quote != '"') return unexpected("a string", next_);
    const size_t begin = next_ + 1;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) return unexpected("the end of the string", text_.size());
    next_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  void skip_spaces() {
    while (next_ < text_.size() && text_[next_] == ' ') ++next_;
  }
  bool skip_word(std::string_view word) {
    skip_spaces();
    if (!text_.substr(next_).starts_with(word)) return false;
    next_ += word.size();
    return true;
  }
  bool skip(char character) { return skip_word({&character, 1}); }
  Status expect(char character) {
    if (skip(character)) return {};
    return unexpected(fmt::format("'{}'", character), next_);
  }

  Failure unexpected(std::string_view expected, size_t position) const {
    return fail(ErrorCode::kCorruptData, "{}: npy header: byte {}: expected {}, got {}", thing_,
                static_cast<size_t>(kNpyPrefixBytes) + position, expected, shown_at(text_, position));
  }
  Failure missing(std::string_view key) const {
    return fail(ErrorCode::kCorruptData, "{}: npy header: expected a '{}', got none", thing_, key);
  }

  std::string_view thing_;
  std::string_view text_;
  size_t next_ = 0;
  NpyDict dict_;
  bool has_type_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

}  // namespace

std::string npy_header(IntType type, std::array<int64_t, 3> shape) {
  const std::string_view descr = std::ranges::find(kDescrs, type, &Descr::type)->text;
  const std::string rows = fmt::format("{}", shape[0]);
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}, {}), }}", descr,
                                 rows, shape[1], shape[2]);
  dict.append(kFirstDimensionDigits - rows.size(), ' ');
  const size_t used = kNpyPrefixBytes + dict.size() + 1;
  dict.append(kAlignment - used % kAlignment, ' ');
  dict += '\n';
  std::string header(kNpyMark);
  header += {1, 0, static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

Result<int64_t> npy_dict_bytes(std::string_view thing, std::string_view prefix) {
  if (!prefix.starts_with(kNpyMark)) {
    const auto [at, unused] = std::ranges::mismatch(prefix, kNpyMark);
    const size_t position = static_cast<size_t>(at - prefix.begin());
    return fail(ErrorCode::kCorruptData, "{}: npy header: byte {}: expected the magic \\x93NUMPY, got {}",
                thing, position, shown_at(prefix, position));
  }
  const auto byte = [&](size_t index) {
    return static_cast<int64_t>(static_cast<unsigned char>(prefix[index]));
  };
  if (byte(6) != 1 || byte(7) != 0) {
    return fail(ErrorCode::kUnsupported, "{}: npy version: expected 1.0, got {}.{}", thing, byte(6), byte(7));
  }
  return byte(8) | byte(9) << 8;
}

Result<NpyDict> parse_npy_dict(std::string_view thing, std::string_view dict) {
  return DictParser(thing, dict).parse();
}

}  // namespace moetape::inline v0::wire
