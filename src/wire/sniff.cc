#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "moetape/wire.h"
#include "simd/base64.h"
#include "wire/json_text.h"
#include "wire/marks.h"
#include "wire/place.h"

namespace moetape::inline v0 {
namespace wire {
namespace {

// As many characters of base64 are looked at.
constexpr size_t kLookedAt = 4096;

// Files that somebody may take for a form.
struct Stranger {
  std::string_view mark;
  std::string_view name;
};
constexpr std::array kStrangers = {
    Stranger{{"\x1f\x8b", 2}, "a gzip file"}, Stranger{{"\x28\xb5\x2f\xfd", 4}, "a zstd file"},
    Stranger{{"PK\x03\x04", 4}, "a zip file (.npz?)"}, Stranger{{"PAR1", 4}, "a Parquet file"}};

bool contains(std::span<const std::string> keys, std::initializer_list<std::string_view> wanted) {
  return std::ranges::all_of(wanted, [&](std::string_view key) { return std::ranges::count(keys, key) > 0; });
}

bool is_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t digits = text.find_last_not_of('=') + 1;
  if (text.size() % 4 != 0 || text.size() - digits > 2) return false;
  return text.substr(0, std::min(digits, kLookedAt)).find_first_not_of(kDigits) == std::string_view::npos;
}

// `head`: the first bytes of num_bytes.
bool is_tape_head(std::string_view head, size_t num_bytes) {
  uint64_t header_bytes = 0;
  if (head.size() < sizeof(header_bytes) + 2) return false;
  std::memcpy(&header_bytes, head.data(), sizeof(header_bytes));
  return header_bytes >= 2 && header_bytes <= num_bytes - sizeof(header_bytes) &&
         head.substr(sizeof(header_bytes), 2) == "{\"";
}

Failure unknown(std::string_view seen) {
  return fail(ErrorCode::kUnsupported, "sniff: expected a form or an answer, got {}", seen);
}

Result<Sniffed> sniff_object(std::string_view text) {
  MOETAPE_ASSIGN(const std::vector<std::string> keys, keys_of_object("sniff", text));
  if (contains(keys, {"shape", "dtype", "data"})) {
    if (contains(keys, {"start"})) return Sniffed{.dialects = {Dialect::kPrimeRl}};
    return Sniffed{.dialects = {Dialect::kLightllm, Dialect::kSkyrl}};
  }
  if (keys.size() == 2 && contains(keys, {"prompt_routed_experts", "routed_experts"})) {
    return Sniffed{.dialects = {Dialect::kVllmSplit}};
  }
  for (const std::string_view key :
       {"choices", "meta_info", "routed_experts", "moe_topk_indices", "sglext", "nvext"}) {
    if (contains(keys, {key})) return Sniffed{.answer = true};
  }
  std::string shown = fmt::format("{}", fmt::join(keys, ", "));
  return unknown(fmt::format("a JSON object of the keys {:?}", shown.substr(0, kMostShown)));
}

Result<Sniffed> sniff_list(std::string_view text) {
  const size_t second = text.find_first_not_of(" \t\n\r", 1);
  const char next = second == std::string_view::npos ? '\0' : text[second];
  if (next == '[' || next == ']') return Sniffed{.dialects = {Dialect::kMegatron}};
  if (next == '{') return Sniffed{.answer = true};
  return unknown(fmt::format("a JSON list that begins with {}", shown_at(text, second)));
}

}  // namespace

bool begins_as_tape(std::string_view bytes) { return is_tape_head(bytes, bytes.size()); }

bool begins_as_base64_tape(std::string_view text) {
  constexpr size_t kHeadChars = 16;
  std::array<std::byte, 12> head{};
  if (text.size() < kHeadChars) return false;
  const simd::Base64Decoded decoded = simd::base64_decode(head.data(), text.data(), kHeadChars);
  if (decoded.bad_position >= 0) return false;
  return is_tape_head({reinterpret_cast<const char*>(head.data()), decoded.bytes},
                      simd::base64_decoded_bound(text.size()));
}

Result<std::vector<std::string>> keys_of_object(std::string_view thing, std::string_view text) {
  JsonText json_text(thing, text);
  MOETAPE_TRY(json_text.open());
  json::object object;
  MOETAPE_TRY(json_text.check(json_text.document().get_object().get(object)));
  std::vector<std::string> keys;
  for (auto result : object) {
    json::field field;
    MOETAPE_TRY(json_text.check(std::move(result).get(field)));
    std::string_view key;
    MOETAPE_TRY(json_text.check(field.unescaped_key().get(key)));
    keys.emplace_back(key);
  }
  return keys;
}

}  // namespace wire

Result<Sniffed> sniff(std::string_view bytes) {
  if (bytes.starts_with(wire::kNpyMark)) return Sniffed{.dialects = {Dialect::kNpy}};
  if (wire::begins_as_tape(bytes)) return Sniffed{.dialects = {Dialect::kTape}};
  if (bytes.starts_with(wire::kNemoRlMark)) return Sniffed{.dialects = {Dialect::kNemoRl}};
  for (const auto& [mark, name] : wire::kStrangers) {
    if (bytes.starts_with(mark)) return wire::unknown(name);
  }
  const size_t first = bytes.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos) return wire::unknown(bytes.empty() ? "nothing" : "white space only");
  if (bytes[first] == '{') return wire::sniff_object(bytes);
  if (bytes[first] == '[') return wire::sniff_list(bytes.substr(first));
  if (wire::is_base64(bytes)) {
    if (bytes.starts_with(wire::kBase64NpyMark)) return Sniffed{.dialects = {Dialect::kVllm}};
    if (wire::begins_as_base64_tape(bytes))
      return Sniffed{.dialects = {Dialect::kTapeBase64, Dialect::kSglang}};
    return Sniffed{.dialects = {Dialect::kSglang}};
  }
  return wire::unknown(fmt::format("{} bytes that begin with {}", bytes.size(), wire::shown_at(bytes, 0)));
}

}  // namespace moetape::inline v0
