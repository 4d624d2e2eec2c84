// Wire: what engines and trainers send today, in and out of Routes. One encoder and one strict decoder a
// dialect; docs/wire.md shows each.
//
//   sglang      base64 of int32 (or uint16, uint8) and nothing else
//   vllm        base64 of a .npy file, uint8 or uint16
//   vllm-split  JSON of two such texts: the prompt's rows, and the others with one too many (v0.21)
//   lightllm    JSON of shape, dtype and base64 data; MoE layers
//   prime-rl    JSON of these and the start; all layers
//   skyrl       JSON in the narrowest of uint8, int16, int32 that holds the largest id; all layers
//   nemo-rl     text "nrlre1:<dtype>:<S>x<L>x<K>:<base64>"; -1 in all ids says that a row is missing
//   megatron    nested JSON lists; MoE layers
//   trtllm      array of int16; MoE layers
//   verl, slime, miles   arrays of int16 or int32; all layers
//   npy         a .npy file
//   tape        moetape's own, a tape of one sequence (tape.h): all that routes hold but reasons; of a
//               source, which has neither tokens nor versions, the rows
//   tape-base64 the same in base64
//
// "All layers" forms have a zero column for every layer without a record. Ids are little-endian
// [rows, layers, k] in C order. Only nemo-rl and tapes can say "missing": elsewhere, encoding routes with
// missing rows is refused (kMissingRows) unless a fill is named. Free functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_source.h"

namespace moetape::inline v0 {

enum class Dialect : uint8_t {
  kSglang,
  kVllm,
  kVllmSplit,
  kLightllm,
  kPrimeRl,
  kSkyrl,
  kNemoRl,
  kMegatron,
  kTrtllm,
  kVerl,
  kSlime,
  kMiles,
  kNpy,
  kTape,
  kTapeBase64,
};
inline constexpr int kNumDialects = static_cast<int>(Dialect::kTapeBase64) + 1;

// What the layers of a form are.
enum class LayerAxis : uint8_t { kAll, kMoe };

enum class FormKind : uint8_t {
  kText,   // ASCII
  kBytes,  // a file
  kArray,  // the bytes of an array, whose type and shape travel beside it
};

// One row of the table of dialects.
struct DialectInfo {
  std::string_view name;
  FormKind kind = FormKind::kText;
  bool says_missing = false;
  bool says_start = false;
  bool sized = true;                // its size is known beforehand
  std::span<const IntType> types;   // that it takes; the first that holds the experts is written
  std::span<const LayerAxis> axes;  // that it takes; the first is written
};
const DialectInfo& dialect_info(Dialect dialect);

std::string_view dialect_name(Dialect dialect);
Result<Dialect> dialect_from_name(std::string_view name);  // kInvalidArgument lists the names

enum class MissingFill : uint8_t {
  kRefuse,    // or said, where the form can
  kZeros,     // expert 0 in all columns, what engines send for a row they lost
  kDistinct,  // experts 0 .. k-1
};

// kUnsupported, naming what the dialect has, for a type or axis that it has not, or a type that cannot hold
// the spec's experts.
struct EncodeOptions {
  MissingFill missing = MissingFill::kRefuse;
  std::optional<IntType> type = {};
  std::optional<LayerAxis> layers = {};
  int64_t prompt_rows = 0;  // vllm-split: how many rows, from the first on, are the prompt's
};

// Bytes (characters) of rows from position `start` on: exactly, but for megatron, and for skyrl above 256
// experts, the most that there can be. kUnsupported for tapes: of the dialects that are not sized, use
// encode().
Result<size_t> encoded_size(const RouteSpec& spec, int64_t num_rows, Dialect dialect,
                            const EncodeOptions& options = {}, int64_t start = 0);
// Writes the form and returns its size; kCapacity if `out` is smaller than encoded_size(). Pulls the source
// once, in order; skyrl above 256 experts gathers it first, to know the largest id.
Result<size_t> encode_into(RowSource& source, Dialect dialect, std::span<char> out,
                           const EncodeOptions& options = {});
// kOutOfMemory.
Result<std::string> encode(RowSource& source, Dialect dialect, const EncodeOptions& options = {});
Result<std::string> encode(const Routes& routes, Dialect dialect, const EncodeOptions& options = {});

// Of the array that the bytes of a kArray dialect are.
struct ArrayForm {
  IntType type = IntType::kInt32;
  std::array<int64_t, 3> shape{};  // rows, layers, k
};
Result<ArrayForm> array_form(const RouteSpec& spec, int64_t num_rows, Dialect dialect,
                             const EncodeOptions& options = {});

struct DecodeOptions {
  std::optional<int64_t> start = {};     // position of the first row; none: as the form says, else 0
  std::optional<int64_t> num_rows = {};  // rows expected; kWrongShape if another number comes
  std::optional<uint32_t> version = {};  // that the rows were computed under, if known
  std::optional<IntType> type = {};      // of ids where the form does not say it (sglang, bytes of arrays)
  // Rows at lower positions are not known to the sender (a decode worker's prompt): they come out missing
  // (kNotSent), and what stands there is not looked at.
  int64_t known_from = 0;
  // Last rows that belong to no token that was fed: left out, not looked at, not among num_rows.
  int64_t surplus_rows = 0;
};

// Strict: kCorruptData names the place and what stood there; ids and distinctness are checked as in
// Routes::from_ids; a column of a layer without a record must be all zero; kWrongShape if the form says
// another start than the options. Allocates no more than the text justifies.
Result<Routes> decode(std::string_view text, Dialect dialect, const RouteSpec& spec,
                      const DecodeOptions& options = {});

// The same for an array that an engine hands over as it is: [num_rows, layers, k] in C order, of any type and
// of the dialect's axes. kUnsupported for vllm-split, which is two arrays, and tapes.
Result<Routes> decode_array(const void* ids, IntType type, std::span<const int64_t> shape, Dialect dialect,
                            const RouteSpec& spec, const DecodeOptions& options = {});

// The rows of a text, decoded as they are pulled, in bounded memory: a rank looks at its own rows only, and
// what stands in others is not checked. The text must outlive it. vllm-split, lightllm, prime-rl, skyrl,
// megatron and tapes are decoded at once. Rows carry no version.
Result<std::unique_ptr<RowSource>> decode_rows(std::string_view text, Dialect dialect, const RouteSpec& spec,
                                               const DecodeOptions& options = {});

// What a text or file may be, by its first bytes and its fields.
struct Sniffed {
  std::vector<Dialect> dialects = {};  // the likeliest first
  bool answer = false;                 // a whole HTTP answer, for read_answer()
};
// kUnsupported says what was seen.
Result<Sniffed> sniff(std::string_view bytes);

}  // namespace moetape::inline v0
