// Wire: what engines and trainers send today, in and out of Routes. One encoder and one strict decoder a
// dialect.
//
//   sglang    base64 of int32 [rows, all layers, k]; neither shape nor dtype in it
//   vllm      base64 of a .npy file, uint8 or uint16 [rows, all layers, k]
//   lightllm  JSON {"shape":[S,L,K],"dtype":"uint8"|"int16","data":"<base64>"}, MoE layers only
//
// "All layers" forms have a zero column for every dense layer. None of the three can say "missing": encoding
// routes with missing rows is refused (kMissingRows) unless a fill is named. Free functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_source.h"

namespace moetape::inline v0 {

enum class Dialect : uint8_t { kSglang, kVllm, kLightllm };
std::string_view dialect_name(Dialect dialect);
Result<Dialect> dialect_from_name(std::string_view name);  // kInvalidArgument lists the names

enum class MissingFill : uint8_t {
  kRefuse,
  kZeros,     // expert 0 in all columns, what engines send for a row they lost
  kDistinct,  // experts 0 .. k-1
};

struct EncodeOptions {
  MissingFill missing = MissingFill::kRefuse;
};

// The exact size of the text.
Result<size_t> encoded_size(const RouteSpec& spec, int64_t num_rows, Dialect dialect);
// Writes exactly encoded_size() characters; kCapacity if `out` is smaller. Pulls the source once, in order.
Status encode_into(RowSource& source, Dialect dialect, std::span<char> out,
                   const EncodeOptions& options = {});
Result<std::string> encode(RowSource& source, Dialect dialect, const EncodeOptions& options = {});
Result<std::string> encode(const Routes& routes, Dialect dialect, const EncodeOptions& options = {});

struct DecodeOptions {
  int64_t start = 0;                     // position of the first row
  std::optional<int64_t> num_rows = {};  // rows expected; kWrongShape if another number comes
  std::optional<uint32_t> version = {};  // that the rows were computed under, if known
};

// Strict: kCorruptData names the place and what stood there; ids and distinctness are checked as in
// Routes::from_ids; a column of a dense layer must be all zero. Allocates no more than the text justifies.
Result<Routes> decode(std::string_view text, Dialect dialect, const RouteSpec& spec,
                      const DecodeOptions& options = {});

// The same for an array that an engine hands over as it is: [num_rows, num_layers or MoE layers, k] in C
// order.
Result<Routes> decode_array(const void* ids, IntType type, std::span<const int64_t> shape, Dialect dialect,
                            const RouteSpec& spec, const DecodeOptions& options = {});

}  // namespace moetape::inline v0
