// Rows of a source as forms, in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "moetape/row_source.h"
#include "moetape/wire.h"
#include "wire/dialect.h"

namespace moetape::inline v0::wire {

// Bytes of the forms, at most (only lists take fewer); kOutOfRange if no text can be so long.
Result<size_t> forms_size(const RouteSpec& spec, std::span<const Form> forms);

// kInvalidArgument for distinct ids of fewer experts.
Status check_fill(const RouteSpec& spec, std::string_view dialect, MissingFill fill);
void fill_row(const RouteSpec& spec, MissingFill fill, std::byte* row);

// Writes the forms, which together hold the source's rows, one behind the other; returns their bytes.
// `dialect` stands in messages.
Result<size_t> write_forms(RowSource& source, std::span<const Form> forms, std::string_view dialect,
                           const EncodeOptions& options, char* out);

}  // namespace moetape::inline v0::wire
