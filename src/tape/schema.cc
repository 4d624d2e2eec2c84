#include "tape/schema.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace moetape::inline v0::tape {

const SmallTensorInfo& small_tensor(SmallTensor tensor) {
  static constexpr std::array<SmallTensorInfo, kNumSmallTensors> kSmallTensors = {
      {{"offsets", "I64"},
       {"start", "I64"},
       {"block_offsets", "I64"},
       {"block_xxh3", "U64"},
       {"sequence_xxh3", "U64"},
       {"sequence_id_offsets", "I64"},
       {"meta_offsets", "I64"},
       {"version_rows", "I64"},
       {"token_offsets", "I64"},
       {"version_ids", "I32"},
       {kTokens, "I32"},
       {kValid, "U8"},
       {"sequence_id_bytes", "U8"},
       {"meta_bytes", "U8"}}};
  return kSmallTensors[tensor];
}

std::optional<int64_t> dtype_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

std::string ids_name(int group, std::string_view codec) {
  std::string name(kIds);
  if (group >= 0) name += fmt::format(".g{}", group);
  if (codec != "none") name += fmt::format(".{}", codec);
  return name;
}

}  // namespace moetape::inline v0::tape
