#include "spec_from_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

using Names = std::span<const std::string_view>;

// The first name that a configuration has counts.
constexpr std::string_view kNumExperts[] = {"n_routed_experts", "num_experts", "num_local_experts",
                                            "moe_num_experts", "num_routed_experts"};
constexpr std::string_view kTopK[] = {
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts",
    "experts_per_token",   "num_selected_experts"};
constexpr std::string_view kNumLayers[] = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"};
constexpr std::string_view kTextConfigs[] = {"text_config", "llm_config", "language_config",
                                             "thinker_config"};
constexpr std::string_view kZeroExperts[] = {"zero_expert_num"};

// More than any model has; keeps a number out of a file from becoming memory.
constexpr int64_t kMostLayers = 65'536;

using Layers = std::set<int64_t>;

int64_t checked_int(std::string_view name, const ParsedJson& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    refuse("config.{}: expected an integer, got {}", name, shown(value));
  }
  return value.get<int64_t>();
}

int32_t narrowed(std::string_view name, int64_t value) {
  if (value < INT32_MIN || value > INT32_MAX) refuse("config.{}: expected 32 bits, got {}", name, value);
  return static_cast<int32_t>(value);
}

std::vector<int64_t> checked_layers(std::string_view name, const ParsedJson& value) {
  if (!value.is_array()) refuse("config.{}: expected a list of layers, got {}", name, shown(value));
  std::vector<int64_t> layers;
  for (const ParsedJson& layer : value) layers.push_back(checked_int(name, layer));
  return layers;
}

// What Python takes for true.
bool is_true(const ParsedJson& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return value.is_string() ? !value.get_ref<const std::string&>().empty() : !value.empty();
}

// The numbers below num_layers that Python's slice [first:end:step] takes: negative bounds count from the
// end.
Layers sliced(int64_t num_layers, int64_t first, int64_t end, int64_t step) {
  const auto bounded = [num_layers](int64_t place) {
    return std::clamp<int64_t>(place < 0 ? place + num_layers : place, 0, num_layers);
  };
  Layers layers;
  step = std::min(step, num_layers + 1);
  for (int64_t layer = bounded(first); layer < bounded(end); layer += step) layers.insert(layer);
  return layers;
}

std::vector<std::string> split_text(const std::string& text) {
  std::vector<std::string> items;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(',', first), text.size());
    std::string item = text.substr(first, end - first);
    item.erase(0, item.find_first_not_of(" \t\r\n"));
    item.erase(item.find_last_not_of(" \t\r\n") + 1);
    if (!item.empty()) items.push_back(std::move(item));
    first = end + 1;
  }
  return items;
}

// "2,3,5" as a list: numbers where the items are decimal, and texts, which are refused later.
ParsedJson layers_of_text(const std::string& text) {
  ParsedJson layers = ParsedJson::array();
  for (const std::string& item : split_text(text)) {
    const bool decimal = item.size() < 10 && item.find_first_not_of("0123456789") == std::string::npos;
    layers.push_back(decimal ? ParsedJson(std::stoll(item)) : ParsedJson(item));
  }
  return layers;
}

// The part about the text decoder, where a configuration has several parts.
const ParsedJson& text_config(const ParsedJson& config) {
  const ParsedJson* part = &config;
  for (bool deeper = true; deeper;) {
    deeper = false;
    for (const std::string_view name : kTextConfigs) {
      if (!part->is_object() || !part->contains(name) || (*part)[std::string(name)].is_null()) continue;
      part = &(*part)[std::string(name)];
      deeper = true;
      break;
    }
  }
  return *part;
}

// A configuration by the names of its settings; null counts as absent.
class Settings {
 public:
  explicit Settings(const ParsedJson& config) : config_(config) {
    const ParsedJson& type = get("model_type");
    const ParsedJson& path = get("_name_or_path");
    model_ = type.is_string() ? type.get<std::string>() : "";
    if (path.is_string() && is_true(path)) {
      model_ += (model_.empty() ? "" : " ") + path.get<std::string>();
    }
    // Two sub-layers of attention share one MoE layer; num_hidden_layers counts the former; none is dense.
    is_longcat_ = model_.starts_with("longcat");
  }

  RouteSpec spec() const;

 private:
  const ParsedJson& get(std::string_view name) const {
    static const ParsedJson kAbsent;
    const auto found = config_.is_object() ? config_.find(name) : config_.end();
    return config_.is_object() && found != config_.end() ? *found : kAbsent;
  }
  std::string described() const { return model_.empty() ? "a configuration" : model_; }

  std::pair<std::string_view, const ParsedJson&> first_of(Names names) const;
  std::optional<int64_t> largest(Names names) const;
  int64_t int_or(std::string_view name, int64_t absent) const;
  int64_t positive(std::string_view name) const;
  std::optional<std::vector<ParsedJson>> list(std::string_view name, int64_t length) const;

  int64_t num_layers() const;
  std::vector<std::string> layer_kinds(int64_t num_layers) const;
  std::vector<int64_t> moe_layers(int64_t num_layers) const;
  std::optional<std::vector<int64_t>> listed_layers(int64_t num_layers) const;
  std::optional<Layers> interval_rule(int64_t num_layers) const;
  std::optional<Layers> dense_first_rule(int64_t num_layers) const;
  int64_t top_k(std::span<const int32_t> layers) const;

  const ParsedJson& config_;
  std::string model_;
  bool is_longcat_ = false;
};

std::pair<std::string_view, const ParsedJson&> Settings::first_of(Names names) const {
  for (const std::string_view name : names) {
    if (const ParsedJson& value = get(name); !value.is_null()) return {name, value};
  }
  return {names.front(), get(names.front())};
}

std::optional<int64_t> Settings::largest(Names names) const {
  const auto& [name, value] = first_of(names);
  if (value.is_null()) return {};
  if (!value.is_array()) return checked_int(name, value);
  const std::vector<int64_t> values = checked_layers(name, value);
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

int64_t Settings::int_or(std::string_view name, int64_t absent) const {
  const ParsedJson& value = get(name);
  return value.is_null() ? absent : checked_int(name, value);
}

int64_t Settings::positive(std::string_view name) const {
  const int64_t number = int_or(name, 1);
  if (number < 1) refuse("config.{}: expected 1 or more, got {}", name, number);
  return number;
}

// A setting with one item per layer, or none where it is absent or of another kind.
std::optional<std::vector<ParsedJson>> Settings::list(std::string_view name, int64_t length) const {
  const ParsedJson& value = get(name);
  if (!value.is_array()) return {};
  // Some files list the layers of multi-token prediction behind those of the stack.
  if (static_cast<int64_t>(value.size()) < length) {
    refuse("config.{}: expected one item for each of {} layers, got {}", name, length, value.size());
  }
  return std::vector<ParsedJson>(value.begin(), value.begin() + length);
}

int64_t Settings::num_layers() const {
  const Names names = is_longcat_ ? Names(kNumLayers).subspan(1, 1) : Names(kNumLayers);
  const auto& [name, value] = first_of(names);
  if (value.is_null()) {
    refuse("config: expected one of {}, got {} with none of them", fmt::join(names, ", "), described());
  }
  const int64_t number = checked_int(name, value);
  if (number < 0 || number > kMostLayers) {
    refuse("config.{}: expected 0 to {} layers, got {}", name, kMostLayers, number);
  }
  return number;
}

// What each layer's feed-forward part is called, where the configuration lists it.
std::vector<std::string> Settings::layer_kinds(int64_t num_layers) const {
  const auto texts = [](const std::vector<ParsedJson>& items) {
    std::vector<std::string> result;
    for (const ParsedJson& item : items)
      result.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    return result;
  };
  if (const auto kinds = list("mlp_layer_types", num_layers)) return texts(*kinds);
  if (const auto blocks = list("layers_block_type", num_layers)) {
    if (std::find(blocks->begin(), blocks->end(), "moe") != blocks->end()) return texts(*blocks);
  }
  std::vector<std::string> kinds;
  if (const ParsedJson& pattern = get("hybrid_override_pattern"); pattern.is_string()) {
    for (const char letter : pattern.get<std::string>().substr(0, static_cast<size_t>(num_layers))) {
      kinds.emplace_back(letter == 'E' ? "moe" : std::string(1, letter));
    }
  }
  return kinds;
}

// The layers with experts, by the first of the field's rules that the configuration follows.
std::vector<int64_t> Settings::moe_layers(int64_t num_layers) const {
  std::vector<int64_t> layers;
  if (const auto kinds = layer_kinds(num_layers); !kinds.empty()) {
    for (size_t layer = 0; layer < kinds.size(); ++layer) {
      if (kinds[layer] == "sparse" || kinds[layer] == "moe") layers.push_back(static_cast<int64_t>(layer));
    }
    return layers;
  }
  if (const auto listed = listed_layers(num_layers)) {
    std::copy_if(listed->begin(), listed->end(), std::back_inserter(layers),
                 [num_layers](int64_t layer) { return layer >= 0 && layer < num_layers; });
    return layers;
  }
  const auto interval = interval_rule(num_layers);
  const auto dense_first = dense_first_rule(num_layers);
  const bool two_widths = is_true(get("moe_intermediate_size")) && is_true(get("intermediate_size"));
  if (!interval && !dense_first && two_widths && !is_longcat_) {
    refuse(
        "config: expected what tells MoE layers from dense ones, such as first_k_dense_replace or "
        "mlp_layer_types, got {} without; write a spec that names the layers",
        described());
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if ((!interval || interval->contains(layer)) && (!dense_first || dense_first->contains(layer))) {
      layers.push_back(layer);
    }
  }
  return layers;
}

std::optional<std::vector<int64_t>> Settings::listed_layers(int64_t num_layers) const {
  static constexpr std::string_view kNames[] = {"moe_layers", "moe_layers_enum"};
  const auto& [name, value] = first_of(kNames);
  if (!value.is_null()) {
    std::vector<int64_t> layers =
        checked_layers(name, value.is_string() ? layers_of_text(value.get<std::string>()) : value);
    std::sort(layers.begin(), layers.end());
    return layers;
  }
  const auto frequencies = list("moe_layer_freq", num_layers);
  if (!frequencies) return {};
  std::vector<int64_t> layers;
  for (size_t layer = 0; layer < frequencies->size(); ++layer) {
    if (is_true((*frequencies)[layer])) layers.push_back(static_cast<int64_t>(layer));
  }
  return layers;
}

std::optional<Layers> Settings::interval_rule(int64_t num_layers) const {
  const auto has = [this](std::string_view name) { return !get(name).is_null(); };
  if (has("interleave_moe_layer_step")) {
    const int64_t step = positive("interleave_moe_layer_step");
    return sliced(num_layers, step - 1, num_layers, step);
  }
  if (has("expert_layer_period")) {
    return sliced(num_layers, int_or("expert_layer_offset", 0), num_layers, positive("expert_layer_period"));
  }
  if (has("moe_layer_start_index") || has("moe_layer_interval")) {
    const int64_t interval = positive("moe_layer_interval");
    const int64_t first = int_or("moe_layer_start_index", 0);
    const int64_t last = int_or("moe_layer_end_index", -1);
    Layers layers = sliced(num_layers, first, last == -1 || last > num_layers ? num_layers : last + 1, 1);
    std::erase_if(layers, [interval](int64_t layer) { return (layer + 1) % interval != 0; });
    return layers;
  }
  if (has("decoder_sparse_step") || has("mlp_only_layers")) {
    const int64_t step = positive("decoder_sparse_step");
    Layers layers = sliced(num_layers, step - 1, num_layers, step);
    if (has("mlp_only_layers")) {
      for (const int64_t layer : checked_layers("mlp_only_layers", get("mlp_only_layers"))) {
        layers.erase(layer);
      }
    }
    return layers;
  }
  return {};
}

std::optional<Layers> Settings::dense_first_rule(int64_t num_layers) const {
  static constexpr std::string_view kNames[] = {"first_k_dense_replace", "num_dense_layers"};
  const auto& [name, value] = first_of(kNames);
  if (value.is_null()) return {};
  const int64_t every = positive("moe_layer_freq");
  Layers layers = sliced(num_layers, std::max<int64_t>(0, checked_int(name, value)), num_layers, 1);
  std::erase_if(layers, [every](int64_t layer) { return layer % every != 0; });
  return layers;
}

int64_t Settings::top_k(std::span<const int32_t> layers) const {
  const auto& [name, value] = first_of(kTopK);
  if (value.is_null()) {
    refuse("config: expected one of {}, got {} with none of them", fmt::join(kTopK, ", "), described());
  }
  if (!value.is_array()) return checked_int(name, value);
  std::set<int64_t> different;
  for (const int32_t layer : layers) {
    if (static_cast<size_t>(layer) < value.size()) different.insert(checked_int(name, value[layer]));
  }
  if (different.size() != 1) {
    refuse("config.{}: expected the same for all MoE layers, got {}", name, shown(value));
  }
  return *different.begin();
}

RouteSpec Settings::spec() const {
  const auto num_experts = largest(kNumExperts);
  if (!num_experts || *num_experts < 2) {  // one expert is a dense layer under another name
    refuse("config: expected a model with MoE layers, got {} without 2 or more of {}", described(),
           fmt::join(kNumExperts, ", "));
  }
  RouteSpecFields fields;
  const int64_t layers = num_layers();
  const auto kinds = layer_kinds(layers);
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] == "hash_moe") fields.excluded[static_cast<int32_t>(layer)] = "hash-routed";
  }
  for (const int64_t layer : moe_layers(layers)) fields.layers.push_back(static_cast<int32_t>(layer));
  if (fields.layers.empty()) {
    refuse("config: expected a model with MoE layers, got {} with none", described());
  }
  fields.top_k = narrowed("top_k", top_k(fields.layers));
  const int32_t zero_experts = narrowed("zero_expert_num", largest(kZeroExperts).value_or(0));
  fields.num_experts = narrowed("num_experts", int64_t{narrowed("num_experts", *num_experts)} + zero_experts);
  fields.num_layers = static_cast<int32_t>(layers);
  fields.model = model_;
  return need(RouteSpec::create(std::move(fields)));
}

}  // namespace

RouteSpec spec_from_config(const ParsedJson& config) { return Settings(text_config(config)).spec(); }

}  // namespace moetape::cli
