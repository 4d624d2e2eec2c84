// LightLLM, prime-rl and SkyRL: a JSON object of shape, dtype and base64 data; prime-rl's says the start too.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/fail.h"
#include "simd/narrow.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/json_text.h"
#include "wire/place.h"
#include "wire/types.h"

namespace moetape::inline v0::wire {
namespace {

// What stands in the object.
struct Fields {
  std::optional<std::array<int64_t, 3>> shape = {};
  std::optional<IntType> type = {};
  std::optional<int64_t> start = {};
  std::optional<std::string_view> data = {};  // of the caller's text
};

class ObjectReader {
 public:
  ObjectReader(const DialectInfo& info, std::string_view text) : info_(info), json_(info.name, text) {}

  Result<Fields> read() {
    MOETAPE_TRY(json_.open());
    json::object object;
    MOETAPE_TRY(json_.check(json_.document().get_object().get(object)));
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(json_.check(std::move(result).get(field)));
      MOETAPE_TRY(read_field(field));
    }
    MOETAPE_TRY(json_.end());
    if (!fields_.shape) return missing("shape");
    if (!fields_.type) return missing("dtype");
    if (!fields_.data) return missing("data");
    if (info_.says_start && !fields_.start) return missing("start");
    return fields_;
  }

 private:
  Status read_field(json::field& field) {
    std::string_view key;
    MOETAPE_TRY(json_.check(field.unescaped_key().get(key)));
    json::value value = field.value();
    if (key == "shape" && !fields_.shape) return read_shape(value);
    if (key == "dtype" && !fields_.type) return read_type(value);
    if (key == "start" && info_.says_start && !fields_.start) {
      return json_.check(value.get_int64().get(fields_.start.emplace()));
    }
    if (key == "data" && !fields_.data) {
      MOETAPE_ASSIGN(fields_.data, json_.take_string(value));
      return {};
    }
    return fail(ErrorCode::kCorruptData, "{}: expected the keys shape, dtype{} and data, once each, got {:?}",
                info_.name, info_.says_start ? ", start" : "", key.substr(0, kMostShown));
  }

  Status read_shape(json::value& value) {
    json::array array;
    MOETAPE_TRY(json_.check(value.get_array().get(array)));
    std::array<int64_t, 3> shape{};
    size_t dimensions = 0;
    for (auto element : array) {
      int64_t dimension = 0;
      MOETAPE_TRY(json_.check(element.get_int64().get(dimension)));
      if (dimensions < shape.size()) shape[dimensions] = dimension;
      ++dimensions;
    }
    if (dimensions != shape.size()) {
      return fail(ErrorCode::kWrongShape, "{}: shape: expected 3 dimensions, got {}", info_.name, dimensions);
    }
    fields_.shape = shape;
    return {};
  }

  Status read_type(json::value& value) {
    std::string_view name;
    MOETAPE_TRY(json_.check(value.get_string().get(name)));
    fields_.type = type_from_name(name);
    if (fields_.type && std::ranges::find(info_.types, *fields_.type) != info_.types.end()) return {};
    return fail(ErrorCode::kWrongType, "{}: dtype: expected {}, got {:?}", info_.name,
                type_names(info_.types), name.substr(0, kMostShown));
  }

  Failure missing(std::string_view key) const {
    return fail(ErrorCode::kCorruptData, "{}: expected a \"{}\", got none", info_.name, key);
  }

  const DialectInfo& info_;
  JsonText json_;
  Fields fields_;
};

std::string shape_text(const Wanted& wanted) { return fmt::format("[{}]", fmt::join(wanted.shape(), ",")); }

Form object_form(const Wanted& wanted, std::string before, std::string after) {
  return {.axis = wanted.axis,
          .type = wanted.type,
          .num_rows = wanted.num_rows,
          .before = std::move(before),
          .after = std::move(after)};
}

Status check_narrowest(const Traits& traits, IntType type, const Routes& routes) {
  const int id_bytes = routes.spec().id_bytes();
  const int64_t num_ids = static_cast<int64_t>(routes.ids().size()) / id_bytes;
  const int64_t largest = simd::largest_id(routes.ids().data(), id_bytes, num_ids);
  MOETAPE_ASSIGN(const IntType narrowest, first_type(traits.info, largest + 1));
  if (type == narrowest) return {};
  return fail(ErrorCode::kWrongType,
              "{}: dtype: expected {}, the narrowest that holds the largest id, {}, got {}", traits.name(),
              int_type_name(narrowest), largest, int_type_name(type));
}

}  // namespace

std::vector<Form> lightllm_forms(const Wanted& wanted) {
  return {object_form(
      wanted,
      fmt::format(R"({{"shape":{},"dtype":"{}","data":")", shape_text(wanted), int_type_name(wanted.type)),
      R"("})")};
}

std::vector<Form> prime_rl_forms(const Wanted& wanted) {
  return {object_form(wanted, R"({"data":")",
                      fmt::format(R"(","shape":{},"start":{},"dtype":"{}"}})", shape_text(wanted),
                                  wanted.start, int_type_name(wanted.type)))};
}

std::vector<Form> skyrl_forms(const Wanted& wanted) {
  return {object_form(
      wanted, R"({"data":")",
      fmt::format(R"(","shape":{},"dtype":"{}"}})", shape_text(wanted), int_type_name(wanted.type)))};
}

Result<Routes> decode_json_object(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                  const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Fields fields, ObjectReader(traits.info, text).read());
  MOETAPE_TRY(check_type(traits.info, *fields.type, options));
  MOETAPE_ASSIGN(const LayerAxis axis, axis_of(traits.info, spec, *fields.shape));
  const auto data_at = static_cast<size_t>(fields.data->data() - text.data());
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(traits.name(), *fields.data, data_at));
  const Arrival arrival{.dialect = traits.name(),
                        .axis = axis,
                        .type = *fields.type,
                        .num_rows = (*fields.shape)[0],
                        .start = fields.start};
  MOETAPE_ASSIGN(Routes routes, decode_rows(reader, spec, arrival, options));
  // Rows that were left out may have held the largest id.
  const bool all_seen = routes.complete() && options.surplus_rows == 0;
  if (traits.narrowest && all_seen) MOETAPE_TRY(check_narrowest(traits, *fields.type, routes));
  return routes;
}

}  // namespace moetape::inline v0::wire
