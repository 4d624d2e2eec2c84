// LightLLM: JSON of shape, dtype and base64 data, MoE layers only, in routed_experts of /generate.
#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <cstring>
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

// Walks the document once. simdjson needs bytes behind the text, so it reads a copy.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Fields> read() {
    const int64_t padded_bytes = static_cast<int64_t>(text_.size() + simdjson::SIMDJSON_PADDING);
    MOETAPE_ASSIGN(padded_, Buffer::allocate(padded_bytes));
    std::memcpy(padded_.mutable_data(), text_.data(), text_.size());
    std::memset(padded_.mutable_data() + text_.size(), 0, simdjson::SIMDJSON_PADDING);
    const simdjson::error_code error =
        parser_.iterate(begin(), text_.size(), static_cast<size_t>(padded_bytes)).get(document_);
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
    return fail(ErrorCode::kCorruptData, "{}: expected the keys shape, dtype and data, once each, got \"{}\"",
                kName, key);
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
    return fail(ErrorCode::kWrongType, "{}: dtype: expected uint8, int16 or int8, got \"{}\"", kName, name);
  }

  // Base64 needs no escapes, so the string is used where it stands.
  Status read_data(json::value& value) {
    json::json_type type{};
    MOETAPE_TRY(check(value.type().get(type)));
    const std::string_view token = value.raw_json_token();
    if (type != json::json_type::string) return unexpected("a string", token.data());
    const size_t end = token.rfind('"');
    fields_.data = text_.substr(position_of(token.data()) + 1, end - 1);
    return {};
  }

  Status check(simdjson::error_code error) {
    if (error == simdjson::SUCCESS) return {};
    const char* at = nullptr;
    const bool ends_early = error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT;
    if (ends_early || document_.current_location().get(at) != simdjson::SUCCESS) at = end();
    return fail(ErrorCode::kCorruptData, "{}: character {}: {} Got {}", kName, position_of(at),
                simdjson::error_message(error), shown_at(text_, position_of(at)));
  }

  const char* begin() const { return reinterpret_cast<const char*>(padded_.data()); }
  const char* end() const { return begin() + text_.size(); }
  size_t position_of(const char* at) const { return static_cast<size_t>(at - begin()); }
  Failure unexpected(std::string_view expected, const char* at) const {
    return fail(ErrorCode::kCorruptData, "{}: character {}: expected {}, got {}", kName, position_of(at),
                expected, shown_at(text_, position_of(at)));
  }
  static Failure missing(std::string_view key) {
    return fail(ErrorCode::kCorruptData, "{}: expected a \"{}\", got none", kName, key);
  }

  std::string_view text_;
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
