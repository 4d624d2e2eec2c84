// LightLLM: JSON of shape, dtype and base64 data, MoE layers only, in routed_experts of /generate.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "moetape/buffer.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {
namespace {

namespace json = simdjson::ondemand;

constexpr std::string_view kName = "lightllm";
constexpr int32_t kMaxExperts = 32768;  // what int16 can count

// The three fields as they stand in the text.
struct Fields {
  std::optional<std::array<int64_t, 3>> shape;
  std::optional<IntType> type;
  std::optional<std::string_view> data;  // of the caller's text
};

// A part of a text: [begin, end).
struct Part {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// What stands in the longest string, if it is long, of a document of few strings and no escaped quotes. In
// any other, it may stand between two strings: without it these touch, which is no JSON.
Part long_string(std::string_view text) {
  constexpr int kNumStrings = 5;     // three keys, dtype, data
  constexpr size_t kLong = 1 << 10;  // longer than all of them but data, however they are escaped
  Part longest;
  size_t open = text.find('"');
  for (int i = 0; i < kNumStrings && open != std::string_view::npos; ++i) {
    const Part string{open + 1, std::min(text.find('"', open + 1), text.size())};
    if (string.size() > longest.size()) longest = string;
    open = text.find('"', string.end + 1);
  }
  return longest.size() < kLong ? Part() : longest;
}

// Walks the document once, without its long string: that is the data, many megabytes that simdjson would
// index for nothing.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), cut_(long_string(text)) {}

  Result<Fields> read() {
    const size_t short_size = text_.size() - cut_.size();
    const int64_t padded_bytes = static_cast<int64_t>(short_size + simdjson::SIMDJSON_PADDING);
    MOETAPE_ASSIGN(padded_, Buffer::allocate(padded_bytes));
    char* to = reinterpret_cast<char*>(padded_.mutable_data());
    to = std::ranges::copy(text_.substr(0, cut_.begin), to).out;
    to = std::ranges::copy(text_.substr(cut_.end), to).out;
    std::fill_n(to, simdjson::SIMDJSON_PADDING, '\0');
    const simdjson::error_code error =
        parser_.iterate(begin(), short_size, static_cast<size_t>(padded_bytes)).get(document_);
    if (error != simdjson::SUCCESS) {
      return fail(ErrorCode::kCorruptData, "{}: {}", kName, simdjson::error_message(error));
    }

    json::object object;
    MOETAPE_TRY(check(document_.get_object().get(object)));
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(check(std::move(result).get(field)));
      MOETAPE_TRY(read_field(field));
    }
    const char* rest = nullptr;
    if (document_.current_location().get(rest) == simdjson::SUCCESS) return unexpected("nothing more", rest);
    if (!fields_.shape) return missing("shape");
    if (!fields_.type) return missing("dtype");
    if (!fields_.data) return missing("data");
    return fields_;
  }

 private:
  Status read_field(json::field& field) {
    std::string_view key;
    MOETAPE_TRY(check(field.unescaped_key().get(key)));
    json::value value = field.value();
    if (key == "shape" && !fields_.shape) return read_shape(value);
    if (key == "dtype" && !fields_.type) return read_type(value);
    if (key == "data" && !fields_.data) return read_data(value);
    return fail(ErrorCode::kCorruptData, "{}: expected the keys shape, dtype and data, once each, got {:?}",
                kName, key.substr(0, kMostShown));
  }

  Status read_shape(json::value& value) {
    json::array array;
    MOETAPE_TRY(check(value.get_array().get(array)));
    std::array<int64_t, 3> shape{};
    size_t dimensions = 0;
    for (auto element : array) {
      int64_t dimension = 0;
      MOETAPE_TRY(check(element.get_int64().get(dimension)));
      if (dimensions < shape.size()) shape[dimensions] = dimension;
      ++dimensions;
    }
    if (dimensions != shape.size()) {
      return fail(ErrorCode::kWrongShape, "{}: shape: expected 3 dimensions, got {}", kName, dimensions);
    }
    fields_.shape = shape;
    return {};
  }

  Status read_type(json::value& value) {
    std::string_view name;
    MOETAPE_TRY(check(value.get_string().get(name)));
    for (const IntType type : {IntType::kUint8, IntType::kInt16, IntType::kInt8}) {
      if (name == int_type_name(type)) fields_.type = type;
    }
    if (fields_.type) return {};
    return fail(ErrorCode::kWrongType, "{}: dtype: expected uint8, int16 or int8, got {:?}", kName,
                name.substr(0, kMostShown));
  }

  // Base64 needs no escapes, so the string is used where it stands.
  Status read_data(json::value& value) {
    json::json_type type{};
    MOETAPE_TRY(check(value.type().get(type)));
    const std::string_view token = value.raw_json_token();
    if (type != json::json_type::string) return unexpected("a string", token.data());
    const size_t open = position_of(token.data());
    const size_t close = position_of(token.data() + token.rfind('"'));
    fields_.data = text_.substr(open + 1, close - open - 1);
    return {};
  }

  Status check(simdjson::error_code error) {
    if (error == simdjson::SUCCESS) return {};
    const char* at = nullptr;
    const bool ends_early = error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT;
    const bool has_place = !ends_early && document_.current_location().get(at) == simdjson::SUCCESS;
    const size_t position = has_place ? position_of(at) : text_.size();
    return fail(ErrorCode::kCorruptData, "{}: character {}: {} Got {}", kName, position,
                simdjson::error_message(error), shown_at(text_, position));
  }

  const char* begin() const { return reinterpret_cast<const char*>(padded_.data()); }
  // In the text that the caller gave.
  size_t position_of(const char* at) const {
    const auto position = static_cast<size_t>(at - begin());
    return position < cut_.begin ? position : position + cut_.size();
  }
  Failure unexpected(std::string_view expected, const char* at) const {
    return fail(ErrorCode::kCorruptData, "{}: character {}: expected {}, got {}", kName, position_of(at),
                expected, shown_at(text_, position_of(at)));
  }
  static Failure missing(std::string_view key) {
    return fail(ErrorCode::kCorruptData, "{}: expected a \"{}\", got none", kName, key);
  }

  std::string_view text_;
  Part cut_;
  Buffer padded_;
  json::parser parser_;
  json::document document_;
  Fields fields_;
};

}  // namespace

Result<Form> lightllm_form(const RouteSpec& spec, int64_t num_rows) {
  if (spec.num_experts() > kMaxExperts) {
    return fail(ErrorCode::kUnsupported,
                "{}: num_experts: expected at most {}, which int16 can count, got {}", kName, kMaxExperts,
                spec.num_experts());
  }
  return Form{
      .all_layers = false,
      .id_bytes = spec.id_bytes(),
      .before = fmt::format(R"({{"shape":[{},{},{}],"dtype":"{}","data":")", num_rows, spec.num_moe_layers(),
                            spec.top_k(), spec.id_bytes() == 1 ? "uint8" : "int16"),
      .after = R"("})"};
}

Result<Routes> decode_lightllm(std::string_view text, const RouteSpec& spec, const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Fields fields, Reader(text).read());
  MOETAPE_TRY(check_shape(spec, kName, false, *fields.shape));
  const size_t data_at = static_cast<size_t>(fields.data->data() - text.data());
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(kName, *fields.data, data_at));

  const Arrival arrival{
      .dialect = kName, .all_layers = false, .type = *fields.type, .num_rows = (*fields.shape)[0]};
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (checked_multiply(arrival.num_rows, row_bytes) != reader.remaining()) {
    return fail(ErrorCode::kCorruptData,
                "{}: data: expected {} rows of {} bytes, as shape and dtype say, got {} bytes", kName,
                arrival.num_rows, row_bytes, reader.remaining());
  }
  return decode_rows(reader, spec, arrival, options);
}

}  // namespace moetape::inline v0::wire
