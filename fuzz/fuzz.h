// What the fuzz targets share. A target is a function over bytes from anywhere; it finds a fault by a crash,
// by a sanitizer, by expect(), or by taking more memory than its input justifies.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/spec.h"

namespace moetape::fuzz {

// Each target defines these. take() says whether the input was taken for good by any reader.
bool take(std::string_view input);
// The most bytes that what an input says can justify, for each of its bytes; twice that is allowed.
extern const int64_t kJustified;

// Of the targets of decode.cc: whose texts they read.
extern const std::string_view kDialectName;

// Runs take() within the memory that the input justifies; nothing is measured where no sanitizer counts.
bool run(std::string_view input);

// Stops the program, saying so, unless it holds.
void expect(bool holds, std::string_view what);

// Bytes that a program made must be taken.
template <class T>
T taken(Result<T> result) {
  if (!result) expect(false, result.error().message);
  return *std::move(result);
}

// Specs under which every input is read: narrow and wide ids, dense layers, ids that may repeat.
const std::vector<RouteSpec>& specs();

}  // namespace moetape::fuzz
