// What a tape's metadata say, as values and as texts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "moetape/spec.h"
#include "moetape/tape.h"
#include "tape/header.h"

namespace moetape::inline v0::tape {

struct Description {
  RouteSpec spec;
  Codec codec = Codec::kNone;
  std::vector<std::vector<int32_t>> layer_groups = {};  // empty = one tensor of all layers
  int64_t block_rows = kBlockRows;
  bool operator==(const Description&) const = default;
};

// The groups of `options`, empty for a single one; kInvalidArgument unless they are a partition of the spec's
// layers, ascending within.
Result<Description> describe(const RouteSpec& spec, const TapeOptions& options);

// kInvalidArgument for a text that is no UTF-8.
Result<MetadataList> write_metadata(const Description& description);
// kCorruptData and kUnsupported, naming `file` and the key.
Result<Description> read_metadata(std::string_view file, const Header& header);

}  // namespace moetape::inline v0::tape
