#include "moetape/answer.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/fail.h"
#include "wire/dialect.h"
#include "wire/json_text.h"
#include "wire/marks.h"
#include "wire/place.h"
#include "wire/types.h"

namespace moetape::inline v0 {
namespace wire {
namespace {

// Objects that may hold the fields of a choice, or of an answer of one choice.
constexpr std::array<std::string_view, 4> kHolders = {"meta_info", "sglext", "sgl_ext", "nvext"};
constexpr size_t kMostChoices = 65'536;
constexpr std::string_view kLookedFor =
    "routed_experts (also of meta_info, sglext and nvext) or moe_topk_indices";

// The fields of one choice, as they stand in the answer; empty where there is none.
struct Found {
  std::optional<int64_t> index = {};
  std::string field = {};   // where the routes stand
  bool in_choices = false;  // of the answer
  std::string_view routes = {};
  std::string_view prompt = {};
  std::optional<IntType> type = {};
};

// Walks the answer once and notes where routes stand.
class AnswerReader {
 public:
  AnswerReader(std::string_view hop, std::string_view text) : hop_(hop), json_(hop, text) {}

  Result<std::vector<Found>> read() {
    MOETAPE_TRY(json_.open());
    json::json_type type{};
    MOETAPE_TRY(json_.check(json_.document().type().get(type)));
    std::vector<Found> choices;
    if (type == json::json_type::array) {
      json::array array;
      MOETAPE_TRY(json_.check(json_.document().get_array().get(array)));
      MOETAPE_ASSIGN(choices, read_list(array));
    } else {
      json::object object;
      MOETAPE_TRY(json_.check(json_.document().get_object().get(object)));
      MOETAPE_ASSIGN(choices, read_root(object));
    }
    MOETAPE_TRY(json_.end());
    return choices;
  }

 private:
  Result<std::vector<Found>> read_list(json::array& array) {
    std::vector<Found> list;
    for (auto result : array) {
      json::object object;
      MOETAPE_TRY(json_.check(std::move(result).get_object().get(object)));
      if (list.size() == kMostChoices) {
        return fail(ErrorCode::kUnsupported, "{}: expected at most {} choices, got more", hop_, kMostChoices);
      }
      MOETAPE_TRY(read_fields(object, {}, list.emplace_back()));
    }
    return list;
  }

  // Routes of the whole answer are those of its one choice, or, with several, of the first.
  Result<std::vector<Found>> read_root(json::object& object) {
    Found whole;
    std::optional<std::vector<Found>> choices;
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(json_.check(std::move(result).get(field)));
      std::string_view key;
      MOETAPE_TRY(json_.check(field.unescaped_key().get(key)));
      json::value value = field.value();
      if (key == "choices") {
        if (choices) return twice(key);
        json::array array;
        MOETAPE_TRY(json_.check(value.get_array().get(array)));
        MOETAPE_ASSIGN(choices, read_list(array));
      } else {
        MOETAPE_TRY(read_field(key, value, {}, whole));
      }
    }
    if (!choices) return std::vector<Found>{whole};
    if (!whole.routes.empty() && choices->empty()) choices->emplace_back();
    if (!whole.routes.empty()) {
      Found& first = choices->front();
      if (!first.routes.empty()) return twice(whole.field);
      first.field = whole.field;
      first.routes = whole.routes;
      first.type = whole.type;
    }
    for (Found& choice : *choices) {
      choice.in_choices = true;
      if (choice.prompt.empty()) choice.prompt = whole.prompt;
    }
    return *std::move(choices);
  }

  // `holder` is the object in a choice or an answer that is read, or empty.
  Status read_fields(json::object& object, std::string_view holder, Found& found) {
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(json_.check(std::move(result).get(field)));
      std::string_view key;
      MOETAPE_TRY(json_.check(field.unescaped_key().get(key)));
      json::value value = field.value();
      MOETAPE_TRY(read_field(key, value, holder, found));
    }
    return {};
  }

  Status read_field(std::string_view key, json::value& value, std::string_view holder, Found& found) {
    if (key == "routed_experts" || key == "moe_topk_indices") {
      const std::string field = fmt::format("{}{}{}", holder, holder.empty() ? "" : ".", key);
      MOETAPE_TRY(take_once(field, value, found.routes));
      if (!found.routes.empty()) found.field = field;
    } else if (key == "prompt_routed_experts") {
      return take_once(key, value, found.prompt);
    } else if (key == "routed_experts_dtype") {
      return read_type(value, found);
    } else if (key == "index" && holder.empty()) {
      return json_.check(value.get_int64().get(found.index.emplace()));
    } else if (holder.empty() && std::ranges::find(kHolders, key) != kHolders.end()) {
      return read_holder(std::string(key), value, found);
    }
    return {};
  }

  Status read_holder(const std::string& key, json::value& value, Found& found) {
    json::json_type type{};
    MOETAPE_TRY(json_.check(value.type().get(type)));
    if (type != json::json_type::object) return {};
    json::object object;
    MOETAPE_TRY(json_.check(value.get_object().get(object)));
    return read_fields(object, key, found);
  }

  Status read_type(json::value& value, Found& found) {
    json::json_type type{};
    MOETAPE_TRY(json_.check(value.type().get(type)));
    if (type == json::json_type::null) return {};
    std::string_view name;
    MOETAPE_TRY(json_.check(value.get_string().get(name)));
    found.type = type_from_name(name);
    if (found.type) return {};
    return fail(ErrorCode::kWrongType, "{}: routed_experts_dtype: expected an integer type, got {:?}", hop_,
                name.substr(0, kMostShown));
  }

  // null is as good as no field.
  Status take_once(std::string_view key, json::value& value, std::string_view& found) {
    MOETAPE_ASSIGN(const std::string_view raw, json_.take(value));
    if (raw == "null") return {};
    if (!found.empty()) return twice(key);
    found = raw;
    return {};
  }

  Failure twice(std::string_view key) const {
    return fail(ErrorCode::kCorruptData, "{}: expected {} once, got it twice", hop_, key);
  }

  std::string_view hop_;
  JsonText json_;
};

Result<std::string_view> inside_quotes(std::string_view raw) {
  if (raw.size() >= 2 && raw.front() == '"' && raw.back() == '"') return raw.substr(1, raw.size() - 2);
  return fail(ErrorCode::kCorruptData, "expected a string, got {}", shown_at(raw, 0));
}

Result<Dialect> dialect_of(const Found& found) {
  const std::string_view raw = found.routes;
  if (raw.front() == '[') return Dialect::kMegatron;
  if (raw.front() == '{') {
    MOETAPE_ASSIGN(const std::vector<std::string> keys, keys_of_object("object", raw));
    if (std::ranges::count(keys, "start") > 0) return Dialect::kPrimeRl;
    // LightLLM has no choices.
    return found.in_choices ? Dialect::kSkyrl : Dialect::kLightllm;
  }
  MOETAPE_ASSIGN(const std::string_view text, inside_quotes(raw));
  if (text.starts_with(kNemoRlMark)) return Dialect::kNemoRl;
  if (begins_as_base64_tape(text)) return Dialect::kTapeBase64;
  if (!text.starts_with(kBase64NpyMark)) return Dialect::kSglang;
  return found.prompt.empty() ? Dialect::kVllm : Dialect::kVllmSplit;
}

Result<Routes> decode_found(const Found& found, Dialect dialect, const RouteSpec& spec,
                            DecodeOptions options) {
  if (found.type && dialect == Dialect::kSglang) options.type = found.type;
  if (found.routes.front() != '"') return decode(found.routes, dialect, spec, options);
  MOETAPE_ASSIGN(const std::string_view text, inside_quotes(found.routes));
  if (dialect != Dialect::kVllmSplit) return decode(text, dialect, spec, options);
  MOETAPE_ASSIGN(const std::string_view prompt, inside_quotes(found.prompt));
  return join_split(traits_of(dialect), {prompt, 0}, {text, 0}, spec, options);
}

Status expect_routes(std::span<const Found> choices, std::string_view hop) {
  if (choices.empty()) {
    return fail(ErrorCode::kMissingRows, "{}: expected routes, since they were asked for, got no choices",
                hop);
  }
  const auto lacking =
      std::ranges::find_if(choices, [](const Found& choice) { return choice.routes.empty(); });
  if (lacking == choices.end()) return {};
  return fail(ErrorCode::kMissingRows,
              "{}: choice {}: expected routes, since they were asked for, in {}, got none", hop,
              lacking->index.value_or(lacking - choices.begin()), kLookedFor);
}

Result<AnswerChoice> decode_choice(const Found& found, int64_t index, const RouteSpec& spec,
                                   const AnswerOptions& options) {
  AnswerChoice choice = {.index = found.index.value_or(index)};
  if (found.routes.empty()) return choice;
  const auto in_place = [&](const Error& error) {
    return fail(error.code, "{}: choice {}: {}: {}", options.hop, choice.index, found.field, error.message);
  };
  const Result<Dialect> dialect = options.dialect ? *options.dialect : dialect_of(found);
  if (!dialect) return in_place(dialect.error());
  Result<Routes> routes = decode_found(found, *dialect, spec, options.decode);
  if (!routes) return in_place(routes.error());
  choice.dialect = *dialect;
  choice.routes = *std::move(routes);
  return choice;
}

}  // namespace
}  // namespace wire

Result<std::vector<AnswerChoice>> read_answer(std::string_view json, const RouteSpec& spec,
                                              const AnswerOptions& options) {
  MOETAPE_ASSIGN(const std::vector<wire::Found> found, wire::AnswerReader(options.hop, json).read());
  if (options.asked) MOETAPE_TRY(wire::expect_routes(found, options.hop));
  std::vector<AnswerChoice> choices;
  for (size_t i = 0; i < found.size(); ++i) {
    MOETAPE_ASSIGN(AnswerChoice choice,
                   wire::decode_choice(found[i], static_cast<int64_t>(i), spec, options));
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace moetape::inline v0
