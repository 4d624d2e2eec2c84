// What docs/tape-format.md fixes: names, limits, and the tensors of one file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moetape::inline v0::tape {

static_assert(std::endian::native == std::endian::little, "tapes are mapped as they are");

inline constexpr std::string_view kFormat = "moetape.tape";
inline constexpr std::string_view kFormatVersion = "1";
inline constexpr int64_t kLengthBytes = 8;  // of the header's length, at the file's begin
inline constexpr int64_t kMaxHeaderBytes = 65'536 - kLengthBytes;
inline constexpr int64_t kBlockRows = 1024;  // what is written
inline constexpr int64_t kMaxBlockRows = int64_t{1} << 30;
inline constexpr int64_t kMaxChannelRowBytes = int64_t{1} << 40;
inline constexpr int64_t kAlignment = 64;  // of the data and of tensors of rows

inline constexpr std::string_view kContentChecksum = "content_xxh3";
inline constexpr std::string_view kHeaderChecksum = "header_xxh3";

inline constexpr std::string_view kIds = "ids";
inline constexpr std::string_view kTokens = "tokens";
inline constexpr std::string_view kValid = "valid";
inline constexpr std::string_view kChannelPrefix = "channel.";
inline constexpr std::string_view kPaddingPrefix = "padding.";

struct TensorInfo {
  std::string name;
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  int64_t begin = 0;  // in the data, which begins behind the header
  int64_t end = 0;

  int64_t num_bytes() const { return end - begin; }
};

// A tensor besides the ids that has something for every row.
struct Channel {
  std::string name;  // with its prefix
  std::string dtype;
  std::vector<int64_t> row_shape;
  int64_t row_bytes = 0;
  bool operator==(const Channel&) const = default;
};

// The tensors that are written behind those of rows, in the order of the file: wide elements first.
enum SmallTensor : uint8_t {
  kOffsets,
  kStart,
  kBlockOffsets,
  kBlockChecksums,
  kSequenceChecksums,
  kIdOffsets,
  kMetaOffsets,
  kVersionRows,
  kTokenOffsets,
  kVersionIds,
  kTokenValues,
  kValidBits,
  kIdBytes,
  kMetaBytes,
  kNumSmallTensors
};

struct SmallTensorInfo {
  std::string_view name;
  std::string_view dtype;
};
const SmallTensorInfo& small_tensor(SmallTensor tensor);

// Bytes of an element; nothing for types that schema 1 does not take.
std::optional<int64_t> dtype_bytes(std::string_view dtype);

// "ids.g1.bitpack"; group -1: there are no groups.
std::string ids_name(int group, std::string_view codec);

constexpr int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace moetape::inline v0::tape
