// .npy files: as they are, in base64 (vLLM), and two of them in a JSON object (vLLM v0.21).
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/fail.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/json_text.h"
#include "wire/npy_header.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {
namespace {

constexpr std::string_view kPromptKey = "prompt_routed_experts";
constexpr std::string_view kOthersKey = "routed_experts";

Result<std::string> read_string(ByteReader& reader, std::string_view dialect, std::string_view thing,
                                int64_t bytes) {
  if (bytes > reader.remaining()) {
    return fail(ErrorCode::kCorruptData, "{}: {}: expected {} bytes, got {}", dialect, thing, bytes,
                reader.remaining());
  }
  std::string string(static_cast<size_t>(bytes), '\0');
  MOETAPE_ASSIGN(const std::byte* const at, reader.next(bytes, reinterpret_cast<std::byte*>(string.data())));
  if (at != reinterpret_cast<const std::byte*>(string.data())) {
    string.assign(reinterpret_cast<const char*>(at), static_cast<size_t>(bytes));
  }
  return string;
}

// Reads the head.
Result<Arrival> open_file(ByteReader& reader, const Traits& traits, const RouteSpec& spec,
                          const DecodeOptions& options) {
  const std::string_view name = traits.name();
  MOETAPE_ASSIGN(const std::string prefix, read_string(reader, name, "npy header", kNpyPrefixBytes));
  MOETAPE_ASSIGN(const int64_t dict_bytes, npy_dict_bytes(name, prefix));
  MOETAPE_ASSIGN(const std::string dict, read_string(reader, name, "npy dict", dict_bytes));
  MOETAPE_ASSIGN(const NpyDict npy, parse_npy_dict(name, dict));
  MOETAPE_TRY(check_type(traits.info, npy.type, options));
  MOETAPE_ASSIGN(const LayerAxis axis, axis_of(traits.info, spec, npy.shape));
  return Arrival{.dialect = name, .axis = axis, .type = npy.type, .num_rows = npy.shape[0]};
}

Result<Routes> decode_file(ByteReader& reader, const Traits& traits, const RouteSpec& spec,
                           const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Arrival arrival, open_file(reader, traits, spec, options));
  return decode_rows(reader, spec, arrival, options);
}

Form file_form(Coding coding, const Wanted& wanted) {
  return {.coding = coding,
          .axis = wanted.axis,
          .type = wanted.type,
          .num_rows = wanted.num_rows,
          .header = npy_header(wanted.type, wanted.shape())};
}

// Base64 of the two files, as they stand in an object.
struct Halves {
  std::optional<std::string_view> prompt = {};
  std::optional<std::string_view> others = {};
};

Result<Halves> read_halves(const DialectInfo& info, std::string_view text) {
  JsonText json(info.name, text);
  MOETAPE_TRY(json.open());
  Halves halves;
  json::object object;
  MOETAPE_TRY(json.check(json.document().get_object().get(object)));
  for (auto result : object) {
    json::field field;
    MOETAPE_TRY(json.check(std::move(result).get(field)));
    std::string_view key;
    MOETAPE_TRY(json.check(field.unescaped_key().get(key)));
    std::optional<std::string_view>& half = key == kPromptKey ? halves.prompt : halves.others;
    if ((key != kPromptKey && key != kOthersKey) || half) {
      return fail(ErrorCode::kCorruptData, "{}: expected the keys {} and {}, once each, got {:?}", info.name,
                  kPromptKey, kOthersKey, key.substr(0, kMostShown));
    }
    json::value value = field.value();
    MOETAPE_ASSIGN(half, json.take_string(value));
  }
  MOETAPE_TRY(json.end());
  if (!halves.prompt || !halves.others) {
    return fail(ErrorCode::kCorruptData, "{}: expected a \"{}\", got none", info.name,
                halves.prompt ? kOthersKey : kPromptKey);
  }
  return halves;
}

}  // namespace

std::vector<Form> npy_forms(const Wanted& wanted) { return {file_form(Coding::kRaw, wanted)}; }

std::vector<Form> base64_npy_forms(const Wanted& wanted) { return {file_form(Coding::kBase64, wanted)}; }

std::vector<Form> split_npy_forms(const Wanted& wanted) {
  Wanted prompt = wanted;
  prompt.num_rows = wanted.prompt_rows;
  Wanted others = wanted;
  others.num_rows = wanted.num_rows - wanted.prompt_rows + 1;
  std::vector<Form> forms = {file_form(Coding::kBase64, prompt), file_form(Coding::kBase64, others)};
  forms[0].before = fmt::format(R"({{"{}":")", kPromptKey);
  forms[1].before = fmt::format(R"(","{}":")", kOthersKey);
  forms[1].after = R"("})";
  forms[1].num_rows -= 1;
  forms[1].surplus_rows = 1;
  return forms;
}

Result<OpenForm> open_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                          const DecodeOptions& options) {
  auto reader = std::make_unique<RawReader>(text.data(), static_cast<int64_t>(text.size()));
  MOETAPE_ASSIGN(const Arrival arrival, open_file(*reader, traits, spec, options));
  return OpenForm{std::move(reader), arrival};
}

Result<OpenForm> open_base64_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                 const DecodeOptions& options) {
  MOETAPE_ASSIGN(Base64Reader created, Base64Reader::create(traits.name(), text));
  auto reader = std::make_unique<Base64Reader>(std::move(created));
  MOETAPE_ASSIGN(const Arrival arrival, open_file(*reader, traits, spec, options));
  return OpenForm{std::move(reader), arrival};
}

Result<Routes> join_split(const Traits& traits, TextPart prompt, TextPart others, const RouteSpec& spec,
                          const DecodeOptions& options) {
  DecodeOptions part = options;
  part.num_rows.reset();
  part.surplus_rows = 0;
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(traits.name(), prompt.text, prompt.offset));
  MOETAPE_ASSIGN(const Routes first, decode_file(reader, traits, spec, part));
  part.start = first.end();
  part.surplus_rows = 1 + options.surplus_rows;
  MOETAPE_ASSIGN(reader, Base64Reader::create(traits.name(), others.text, others.offset));
  MOETAPE_ASSIGN(const Routes second, decode_file(reader, traits, spec, part));
  MOETAPE_ASSIGN(Routes all, first.extend(second));
  if (!options.num_rows || *options.num_rows == all.num_rows()) return all;
  return fail(ErrorCode::kWrongShape, "{}: rows: expected {}, got {}", traits.name(), *options.num_rows,
              all.num_rows());
}

Result<Routes> decode_split_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Halves halves, read_halves(traits.info, text));
  const auto part = [&](std::string_view half) {
    return TextPart{half, static_cast<size_t>(half.data() - text.data())};
  };
  return join_split(traits, part(*halves.prompt), part(*halves.others), spec, options);
}

}  // namespace moetape::inline v0::wire
