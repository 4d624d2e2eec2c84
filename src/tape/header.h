// The header of a safetensors file: parsed strictly, written, and sealed by its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "tape/schema.h"

namespace moetape::inline v0::tape {

struct Header {
  std::map<std::string, std::string, std::less<>> metadata;
  std::vector<TensorInfo> tensors;  // ascending, without holes, to the file's end
  int64_t num_bytes = 0;            // with the length: where the data begin
};

// Of the whole file. kCorruptData and kUnsupported, naming `file`, the byte and what stood there.
Result<Header> parse_header(std::string_view file, std::span<const std::byte> bytes);

// The bytes of a header, its length first, filled with spaces to `num_bytes` (0: to the next multiple of 64).
// `metadata` in its order, behind which header_xxh3 comes. kCapacity if it does not fit, or is above the
// format's limit.
using MetadataList = std::vector<std::pair<std::string, std::string>>;
Result<std::string> format_header(const MetadataList& metadata, std::span<const TensorInfo> tensors,
                                  int64_t num_bytes = 0);

// Where the 16 digits of header_xxh3 stand; kCorruptData if they do not. For tests that change a header, too.
Result<size_t> find_header_checksum(std::span<const std::byte> header);

}  // namespace moetape::inline v0::tape
