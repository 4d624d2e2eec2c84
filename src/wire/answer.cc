#include "moetape/answer.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
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
constexpr int64_t kMostChoices = 65'536;
constexpr std::string_view kLookedFor =
    "routed_experts (also of meta_info, sglext and nvext) or moe_topk_indices";

constexpr std::string_view kRoutes = "routed_experts";
constexpr std::string_view kMegatronRoutes = "moe_topk_indices";

// The fields of one choice, as they stand in the answer; empty where there is none.
struct Found {
  std::optional<int64_t> index = {};
  std::string_view holder = {};  // where the routes stand, and under which key
  std::string_view key = {};
  std::string_view routes = {};
  std::string_view prompt = {};
  std::optional<IntType> type = {};

  bool says_something() const { return index || type || !routes.empty() || !prompt.empty(); }
};

std::string field_name(std::string_view holder, std::string_view key) {
  return fmt::format("{}{}{}", holder, holder.empty() ? "" : ".", key);
}

// The choices of an answer. Those that say nothing take no memory: there may be one for every few characters.
class FoundChoices {
 public:
  int64_t size() const { return size_; }
  void add(Found found) {
    if (found.says_something()) told_.emplace_back(size_, std::move(found));
    ++size_;
  }
  // The first one; made where there is none.
  Found& front() {
    size_ = std::max<int64_t>(size_, 1);
    if (told_.empty() || told_.front().first != 0) told_.emplace(told_.begin(), 0, Found());
    return told_.front().second;
  }
  // Of those that have none of their own.
  void set_prompt(std::string_view prompt) {
    for (auto& [_, found] : told_) {
      if (found.prompt.empty()) found.prompt = prompt;
    }
  }
  // Calls visit(number, found) for each until that fails.
  template <class Visit>
  Status for_each(Visit&& visit) const {
    auto next = told_.begin();
    for (int64_t number = 0; number < size_; ++number) {
      const bool told = next != told_.end() && next->first == number;
      MOETAPE_TRY(visit(number, told ? next->second : kNothing));
      if (told) ++next;
    }
    return {};
  }
  bool in_choices = false;  // of the answer

 private:
  static inline const Found kNothing = {};
  int64_t size_ = 0;
  std::vector<std::pair<int64_t, Found>> told_;  // ascending
};

// Walks the answer once and notes where routes stand.
class AnswerReader {
 public:
  AnswerReader(std::string_view hop, std::string_view text) : hop_(hop), json_(hop, text) {}

  Result<FoundChoices> read() {
    MOETAPE_TRY(json_.open());
    json::json_type type{};
    MOETAPE_TRY(json_.check(json_.document().type().get(type)));
    FoundChoices choices;
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
  Result<FoundChoices> read_list(json::array& array) {
    FoundChoices list;
    for (auto result : array) {
      json::object object;
      MOETAPE_TRY(json_.check(std::move(result).get_object().get(object)));
      if (list.size() == kMostChoices) {
        return fail(ErrorCode::kUnsupported, "{}: expected at most {} choices, got more", hop_, kMostChoices);
      }
      Found found;
      MOETAPE_TRY(read_fields(object, {}, found));
      list.add(std::move(found));
    }
    return list;
  }

  // Routes of the whole answer are those of its one choice, or, with several, of the first.
  Result<FoundChoices> read_root(json::object& object) {
    Found whole;
    std::optional<FoundChoices> choices;
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
    if (!choices) {
      choices.emplace().add(whole);
      return *std::move(choices);
    }
    choices->in_choices = true;
    if (!whole.routes.empty()) {
      Found& first = choices->front();
      if (!first.routes.empty()) return twice(field_name(whole.holder, whole.key));
      first.holder = whole.holder;
      first.key = whole.key;
      first.routes = whole.routes;
      first.type = whole.type;
    }
    choices->set_prompt(whole.prompt);
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
    if (key == kRoutes || key == kMegatronRoutes) {
      const std::string_view routes_key = key == kRoutes ? kRoutes : kMegatronRoutes;
      const bool had_none = found.routes.empty();
      MOETAPE_TRY(take_once(field_name(holder, routes_key), value, found.routes));
      if (!had_none || found.routes.empty()) return {};
      found.holder = holder;
      found.key = routes_key;
    } else if (key == "prompt_routed_experts") {
      return take_once(key, value, found.prompt);
    } else if (key == "routed_experts_dtype") {
      return read_type(value, found);
    } else if (key == "index" && holder.empty()) {
      return json_.check(value.get_int64().get(found.index.emplace()));
    }
    const auto held = holder.empty() ? std::ranges::find(kHolders, key) : kHolders.end();
    return held == kHolders.end() ? Status() : read_holder(*held, value, found);
  }

  Status read_holder(std::string_view key, json::value& value, Found& found) {
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

Result<Dialect> dialect_of(const Found& found, bool in_choices) {
  const std::string_view raw = found.routes;
  if (raw.front() == '[') return Dialect::kMegatron;
  if (raw.front() == '{') {
    MOETAPE_ASSIGN(const std::vector<std::string> keys, keys_of_object("object", raw));
    if (std::ranges::count(keys, "start") > 0) return Dialect::kPrimeRl;
    // LightLLM has no choices.
    return in_choices ? Dialect::kSkyrl : Dialect::kLightllm;
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

Status expect_routes(const FoundChoices& choices, std::string_view hop) {
  if (choices.size() == 0) {
    return fail(ErrorCode::kMissingRows, "{}: expected routes, since they were asked for, got no choices",
                hop);
  }
  return choices.for_each([&](int64_t number, const Found& choice) -> Status {
    if (!choice.routes.empty()) return {};
    return fail(ErrorCode::kMissingRows,
                "{}: choice {}: expected routes, since they were asked for, in {}, got none", hop,
                choice.index.value_or(number), kLookedFor);
  });
}

Result<AnswerChoice> decode_choice(const Found& found, int64_t number, bool in_choices, const RouteSpec& spec,
                                   const AnswerOptions& options) {
  AnswerChoice choice = {.index = found.index.value_or(number)};
  if (found.routes.empty()) return choice;
  const auto in_place = [&](const Error& error) {
    return fail(error.code, "{}: choice {}: {}: {}", options.hop, choice.index,
                field_name(found.holder, found.key), error.message);
  };
  const Result<Dialect> dialect = options.dialect ? *options.dialect : dialect_of(found, in_choices);
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
  return guard_memory(options.hop, [&]() -> Result<std::vector<AnswerChoice>> {
    MOETAPE_ASSIGN(const wire::FoundChoices found, wire::AnswerReader(options.hop, json).read());
    if (options.asked) MOETAPE_TRY(wire::expect_routes(found, options.hop));
    std::vector<AnswerChoice> choices;
    choices.reserve(static_cast<size_t>(found.size()));
    MOETAPE_TRY(found.for_each([&](int64_t number, const wire::Found& one) -> Status {
      MOETAPE_ASSIGN(choices.emplace_back(),
                     wire::decode_choice(one, number, found.in_choices, spec, options));
      return {};
    }));
    return choices;
  });
}

}  // namespace moetape::inline v0
