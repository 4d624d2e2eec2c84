// Rows of a form, checked and made into Routes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "moetape/array.h"
#include "moetape/buffer.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/wire.h"
#include "wire/base64_reader.h"
#include "wire/columns.h"

namespace moetape::inline v0::wire {

// What arrives: integers of `type`, [num_rows, layers, k].
struct Arrival {
  std::string_view dialect;  // stands in messages
  bool all_layers = false;
  IntType type = IntType::kUint8;
  int64_t num_rows = 0;
};

// Bytes of a row that arrives.
int64_t arriving_row_bytes(const RouteSpec& spec, const Arrival& arrival);

// kWrongShape, naming both, unless `shape` is [rows, layers, k] of this spec.
Status check_shape(const RouteSpec& spec, std::string_view dialect, bool all_layers,
                   std::span<const int64_t> shape);

// The caller has made sure that as many bytes are there.
Result<Routes> decode_rows(Base64Reader& reader, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options);
Result<Routes> decode_rows(const std::byte* rows, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options);

}  // namespace moetape::inline v0::wire
