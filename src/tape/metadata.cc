#include "tape/metadata.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/fail.h"
#include "tape/text.h"

namespace moetape::inline v0::tape {
namespace {

namespace json = simdjson::ondemand;

constexpr std::array<std::string_view, 17> kKeys = {
    "format", "format_version", "stack",          "model",          "layers",       "num_layers",
    "top_k",  "num_experts",    "shared_columns", "distinct",       "excluded",     "fingerprint",
    "codec",  "layer_groups",   "block_rows",     kContentChecksum, kHeaderChecksum};

std::string list(const std::vector<int32_t>& layers) { return fmt::format("[{}]", fmt::join(layers, ",")); }

std::string lists(const std::vector<std::vector<int32_t>>& groups) {
  std::string text = "[";
  for (const auto& group : groups) text += (text.size() > 1 ? "," : "") + list(group);
  return text + "]";
}

std::string object(const std::map<int32_t, std::string>& entries) {
  std::string text = "{";
  for (const auto& [layer, reason] : entries) {
    text += fmt::format("{}\"{}\":{}", text.size() > 1 ? "," : "", layer, quote(reason));
  }
  return text + "}";
}

Status check_groups(const RouteSpec& spec, const std::vector<std::vector<int32_t>>& groups) {
  std::vector<int32_t> all;
  for (const auto& group : groups) {
    if (group.empty() || std::ranges::adjacent_find(group, std::greater_equal()) != group.end()) {
      return fail(ErrorCode::kInvalidArgument, "layer_groups: expected layers in ascending order, got {}",
                  group);
    }
    all.insert(all.end(), group.begin(), group.end());
  }
  std::ranges::sort(all);
  if (std::ranges::equal(all, spec.layers())) return {};
  return fail(ErrorCode::kInvalidArgument,
              "layer_groups: expected each of the layers {} in one group, got {}", spec.layers(), groups);
}

// Reads the texts of one tape's metadata.
class MetadataReader {
 public:
  MetadataReader(std::string_view file, const Header& header) : file_(file), header_(header) {}

  Result<Description> read() const {
    for (const auto& [key, value] : header_.metadata) {
      if (std::ranges::find(kKeys, key) == kKeys.end()) {
        return fail(ErrorCode::kUnsupported, "{}: metadata {:?} are not known to this moetape", file_, key);
      }
    }
    MOETAPE_ASSIGN(const RouteSpec spec, read_spec());
    MOETAPE_ASSIGN(const std::string_view codec_text, text("codec"));
    const Result<Codec> codec = codec_from_name(codec_text);
    if (!codec) {
      return fail(ErrorCode::kUnsupported, "{}: codec {:?} is not known to this moetape", file_, codec_text);
    }
    Description description{.spec = spec, .codec = *codec};
    if (header_.metadata.contains("layer_groups")) {
      MOETAPE_TRY(parse("layer_groups", [&](json::value& value) {
        return each(value, [&](json::value& group) {
          return read_layers(group, description.layer_groups.emplace_back());
        });
      }));
      if (const Status status = check_groups(spec, description.layer_groups); !status) {
        return fail(ErrorCode::kCorruptData, "{}: {}", file_, status.error().message);
      }
    }
    MOETAPE_ASSIGN(description.block_rows, number("block_rows", kMaxBlockRows));
    if (description.block_rows < 1) return bad("block_rows", "1 or more");
    MOETAPE_ASSIGN(const std::string_view content, text(kContentChecksum));
    if (!parse_hex(content)) return bad(kContentChecksum, "16 hexadecimal digits");
    return description;
  }

 private:
  Result<RouteSpec> read_spec() const {
    RouteSpecFields fields;
    MOETAPE_ASSIGN(fields.stack, text("stack"));
    MOETAPE_ASSIGN(fields.model, text("model"));
    MOETAPE_TRY(parse("layers", [&](json::value& value) { return read_layers(value, fields.layers); }));
    MOETAPE_ASSIGN(fields.num_layers, small_number("num_layers"));
    MOETAPE_ASSIGN(fields.top_k, small_number("top_k"));
    MOETAPE_ASSIGN(fields.num_experts, small_number("num_experts"));
    MOETAPE_ASSIGN(fields.shared_columns, small_number("shared_columns"));
    MOETAPE_ASSIGN(const std::string_view distinct, text("distinct"));
    if (distinct != "true" && distinct != "false") return bad("distinct", "true or false");
    fields.distinct = distinct == "true";
    MOETAPE_TRY(parse("excluded", [&](json::value& value) { return read_excluded(value, fields.excluded); }));
    if (fields.num_layers == 0) return bad("num_layers", "1 or more");

    Result<RouteSpec> spec = RouteSpec::create(std::move(fields));
    if (!spec) return fail(ErrorCode::kCorruptData, "{}: metadata: {}", file_, spec.error().message);
    MOETAPE_ASSIGN(const std::string_view fingerprint, text("fingerprint"));
    if (parse_hex(fingerprint) != spec->fingerprint()) {
      return bad("fingerprint", hex(spec->fingerprint()) + ", that of the fields beside it");
    }
    return spec;
  }

  Result<std::string_view> text(std::string_view key) const {
    const auto found = header_.metadata.find(key);
    if (found != header_.metadata.end()) return std::string_view(found->second);
    return fail(ErrorCode::kCorruptData, "{}: metadata: expected {:?}, got none", file_, key);
  }

  Result<int64_t> number(std::string_view key, int64_t largest) const {
    MOETAPE_ASSIGN(const std::string_view digits, text(key));
    const std::optional<int64_t> value = parse_number(digits);
    if (!value || *value > largest) return bad(key, fmt::format("a number of 0 to {}", largest));
    return *value;
  }

  Result<int32_t> small_number(std::string_view key) const {
    MOETAPE_ASSIGN(const int64_t value, number(key, std::numeric_limits<int32_t>::max()));
    return static_cast<int32_t>(value);
  }

  // Gives the JSON of a key to `read`, which returns what simdjson says.
  template <class Read>
  Status parse(std::string_view key, Read read) const {
    MOETAPE_ASSIGN(const std::string_view json_text, text(key));
    const simdjson::padded_string padded(json_text);
    json::parser parser;
    json::document document;
    json::value value;
    simdjson::error_code error = parser.iterate(padded).get(document);
    if (error == simdjson::SUCCESS) error = document.get_value().get(value);
    if (error == simdjson::SUCCESS) error = read(value);
    const char* rest = nullptr;
    if (error == simdjson::SUCCESS && document.current_location().get(rest) == simdjson::SUCCESS) {
      error = simdjson::TRAILING_CONTENT;
    }
    if (error == simdjson::SUCCESS) return {};
    return bad(key, fmt::format("another JSON ({})", simdjson::error_message(error)));
  }

  template <class Visit>
  static simdjson::error_code each(json::value& value, Visit visit) {
    json::array array;
    if (const auto error = value.get_array().get(array)) return error;
    for (auto result : array) {
      json::value element;
      if (const auto error = std::move(result).get(element)) return error;
      if (const auto error = visit(element)) return error;
    }
    return simdjson::SUCCESS;
  }

  static simdjson::error_code read_layers(json::value& value, std::vector<int32_t>& layers) {
    return each(value, [&](json::value& element) {
      int64_t layer = 0;
      if (const auto error = element.get_int64().get(layer)) return error;
      if (layer < 0 || layer > std::numeric_limits<int32_t>::max()) return simdjson::NUMBER_ERROR;
      layers.push_back(static_cast<int32_t>(layer));
      return simdjson::SUCCESS;
    });
  }

  static simdjson::error_code read_excluded(json::value& value, std::map<int32_t, std::string>& excluded) {
    json::object entries;
    if (const auto error = value.get_object().get(entries)) return error;
    for (auto result : entries) {
      json::field field;
      if (const auto error = std::move(result).get(field)) return error;
      std::string_view key;
      if (const auto error = field.unescaped_key().get(key)) return error;
      const std::optional<int64_t> layer = parse_number(key);
      if (!layer || *layer > std::numeric_limits<int32_t>::max()) return simdjson::NUMBER_ERROR;
      std::string_view reason;
      if (const auto error = field.value().get_string().get(reason)) return error;
      if (!excluded.emplace(static_cast<int32_t>(*layer), reason).second) return simdjson::TAPE_ERROR;
    }
    return simdjson::SUCCESS;
  }

  Failure bad(std::string_view key, std::string_view expected) const {
    constexpr size_t kMostShown = 80;
    return fail(ErrorCode::kCorruptData, "{}: metadata {:?}: expected {}, got {:?}", file_, key, expected,
                std::string_view(header_.metadata.find(key)->second).substr(0, kMostShown));
  }

  std::string_view file_;
  const Header& header_;
};

}  // namespace

Result<Description> describe(const RouteSpec& spec, const TapeOptions& options) {
  if (!options.layer_groups.empty()) MOETAPE_TRY(check_groups(spec, options.layer_groups));
  Description description{.spec = spec, .codec = options.codec};
  if (options.layer_groups.size() > 1) description.layer_groups = options.layer_groups;
  return description;
}

Result<MetadataList> write_metadata(const Description& description) {
  const RouteSpecFields& fields = description.spec.fields();
  MOETAPE_TRY(check_utf8("stack", fields.stack));
  MOETAPE_TRY(check_utf8("model", fields.model));
  for (const auto& [layer, reason] : fields.excluded) {
    MOETAPE_TRY(check_utf8(fmt::format("excluded: layer {}", layer), reason));
  }
  MetadataList metadata = {{"format", std::string(kFormat)},
                           {"format_version", std::string(kFormatVersion)},
                           {"stack", fields.stack},
                           {"model", fields.model},
                           {"layers", list(fields.layers)},
                           {"num_layers", std::to_string(fields.num_layers)},
                           {"top_k", std::to_string(fields.top_k)},
                           {"num_experts", std::to_string(fields.num_experts)},
                           {"shared_columns", std::to_string(fields.shared_columns)},
                           {"distinct", fields.distinct ? "true" : "false"},
                           {"excluded", object(fields.excluded)},
                           {"fingerprint", hex(description.spec.fingerprint())},
                           {"codec", std::string(codec_name(description.codec))}};
  if (!description.layer_groups.empty()) {
    metadata.emplace_back("layer_groups", lists(description.layer_groups));
  }
  metadata.emplace_back("block_rows", std::to_string(description.block_rows));
  return metadata;
}

Result<Description> read_metadata(std::string_view file, const Header& header) {
  return MetadataReader(file, header).read();
}

}  // namespace moetape::inline v0::tape
