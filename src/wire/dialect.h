// What a dialect says about itself: what it takes, the form of its rows, and how to read it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/wire.h"
#include "wire/columns.h"
#include "wire/decoder.h"

namespace moetape::inline v0::wire {

enum class Coding : uint8_t { kBase64, kRaw, kLists };

// form = before + coding(header + ids) + after; ids are little-endian [rows, layers, k]. Lists have neither
// header nor a width: their ids are digits.
struct Form {
  Coding coding = Coding::kBase64;
  LayerAxis axis = LayerAxis::kAll;
  IntType type = IntType::kUint8;
  int64_t num_rows = 0;
  int64_t surplus_rows = 0;   // of zeros, behind them
  bool says_missing = false;  // by -1 in all ids
  std::string before = {};
  std::string header = {};
  std::string after = {};
};

// What is to be written; type and axis are such as the dialect has.
struct Wanted {
  RouteSpec spec;
  int64_t num_rows;
  int64_t start;
  int64_t prompt_rows;  // 0 .. num_rows
  IntType type;
  LayerAxis axis;

  std::array<int64_t, 3> shape() const { return {num_rows, num_layers(spec, axis), spec.top_k()}; }
};

struct Traits {
  DialectInfo info;
  // Only the narrowest type that holds the largest id is this dialect.
  bool narrowest;
  // Written one behind the other; together they hold num_rows rows. Null for tapes.
  std::vector<Form> (*forms)(const Wanted& wanted);
  // One of the two: opens a form whose rows stand one behind the other, or decodes one as a whole.
  Result<OpenForm> (*open)(const Traits& traits, std::string_view text, const RouteSpec& spec,
                           const DecodeOptions& options);
  Result<Routes> (*decode)(const Traits& traits, std::string_view text, const RouteSpec& spec,
                           const DecodeOptions& options);

  std::string_view name() const { return info.name; }
};

const Traits& traits_of(Dialect dialect);

// plain.cc: ids and nothing else.
std::vector<Form> base64_forms(const Wanted& wanted);
std::vector<Form> raw_forms(const Wanted& wanted);
Result<OpenForm> open_base64(const Traits& traits, std::string_view text, const RouteSpec& spec,
                             const DecodeOptions& options);
Result<OpenForm> open_raw(const Traits& traits, std::string_view text, const RouteSpec& spec,
                          const DecodeOptions& options);

// npy.cc
std::vector<Form> npy_forms(const Wanted& wanted);
std::vector<Form> base64_npy_forms(const Wanted& wanted);
std::vector<Form> split_npy_forms(const Wanted& wanted);
Result<OpenForm> open_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                          const DecodeOptions& options);
Result<OpenForm> open_base64_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                 const DecodeOptions& options);
Result<Routes> decode_split_npy(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                const DecodeOptions& options);
// Base64 of a text, and where that begins in what the caller was given.
struct TextPart {
  std::string_view text;
  size_t offset = 0;
};
// The prompt's rows, and the others with one row too many.
Result<Routes> join_split(const Traits& traits, TextPart prompt, TextPart others, const RouteSpec& spec,
                          const DecodeOptions& options);

// json_object.cc
std::vector<Form> lightllm_forms(const Wanted& wanted);
std::vector<Form> prime_rl_forms(const Wanted& wanted);
std::vector<Form> skyrl_forms(const Wanted& wanted);
Result<Routes> decode_json_object(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                  const DecodeOptions& options);

// tape.cc
Result<Routes> decode_tape(const Traits& traits, std::string_view text, const RouteSpec& spec,
                           const DecodeOptions& options);
Result<Routes> decode_base64_tape(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                  const DecodeOptions& options);

// nemo_rl.cc
std::vector<Form> nemo_rl_forms(const Wanted& wanted);
Result<OpenForm> open_nemo_rl(const Traits& traits, std::string_view text, const RouteSpec& spec,
                              const DecodeOptions& options);

// lists.cc
std::vector<Form> lists_forms(const Wanted& wanted);
Result<Routes> decode_lists(const Traits& traits, std::string_view text, const RouteSpec& spec,
                            const DecodeOptions& options);

}  // namespace moetape::inline v0::wire
