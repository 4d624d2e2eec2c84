// Rows of a form, checked and made into Routes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_source.h"
#include "moetape/wire.h"
#include "wire/byte_reader.h"

namespace moetape::inline v0::wire {

// What arrives: integers of `type`, [num_rows, layers, k].
struct Arrival {
  std::string_view dialect;  // stands in messages
  LayerAxis axis = LayerAxis::kAll;
  IntType type = IntType::kUint8;
  int64_t num_rows = 0;
  std::optional<int64_t> start = {};  // that the form says
  bool says_missing = false;          // by -1 in all ids
};

// A form whose head was read.
struct OpenForm {
  std::unique_ptr<ByteReader> reader;
  Arrival arrival;
};

// Bytes of a row that arrives.
int64_t arriving_row_bytes(const RouteSpec& spec, const Arrival& arrival);

// The axis of rows [rows, layers, k] of this spec; kWrongShape, naming both, for another shape.
Result<LayerAxis> axis_of(const DialectInfo& info, const RouteSpec& spec, std::span<const int64_t> shape);

// kWrongType, naming those it takes, for a type that the dialect has not, or another than asked for.
Status check_type(const DialectInfo& info, IntType type, const DecodeOptions& options);

// The type of ids in a form that does not say it.
Result<IntType> unsaid_type(const DialectInfo& info, const RouteSpec& spec, const DecodeOptions& options);

// What is left of rows from position `said_start` on (none: the form does not say it), as the options ask.
struct Kept {
  int64_t start = 0;
  int64_t num_rows = 0;
  int64_t first_known = 0;  // rows before this one are not
};
Result<Kept> rows_kept(std::string_view dialect, int64_t num_rows, std::optional<int64_t> said_start,
                       const DecodeOptions& options);

// Reads all that the reader has; kCorruptData if that is not what arrival says.
Result<Routes> decode_rows(ByteReader& reader, const RouteSpec& spec, const Arrival& arrival,
                           const DecodeOptions& options);

// The same as the rows are pulled; going back opens the form anew.
Result<std::unique_ptr<RowSource>> pull_rows(std::function<Result<OpenForm>()> open, const RouteSpec& spec,
                                             const DecodeOptions& options);

}  // namespace moetape::inline v0::wire
