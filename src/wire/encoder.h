// Rows of a source as the text of a form, in one pass.
#pragma once

#include <cstdint>

#include "moetape/row_source.h"
#include "moetape/wire.h"
#include "wire/dialect.h"

namespace moetape::inline v0::wire {

// Characters of num_rows rows; kOutOfRange if no text can be so long.
Result<size_t> form_size(const RouteSpec& spec, int64_t num_rows, const Form& form);

// Writes form_size() characters to out. `dialect` stands in messages.
Status write_form(RowSource& source, const Form& form, std::string_view dialect, const EncodeOptions& options,
                  char* out);

}  // namespace moetape::inline v0::wire
