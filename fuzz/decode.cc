// One target a dialect, which dialect.cc names: what decodes encodes, and decodes to the same.
#include <string>

#include "fuzz.h"
#include "moetape/wire.h"

namespace moetape::fuzz {

// Readers of JSON index its text, 4 bytes a character, beside a copy of it; a tape in base64 is what tape.cc
// says of its bytes; other forms never grow.
const int64_t kJustified = kDialectName == "tape-base64" ? 24 : 6;

namespace {

bool decode_with(std::string_view input, Dialect dialect, const RouteSpec& spec,
                 const DecodeOptions& options) {
  const Result<Routes> routes = decode(input, dialect, spec, options);
  if (!routes) {
    expect(!routes.error().message.empty(), "an error without words");
    return false;
  }
  // Forms that cannot say "missing" take a fill in its place, which is not what was read.
  if (!routes->complete() && !dialect_info(dialect).says_missing) return true;
  EncodeOptions encode_options;
  if (dialect == Dialect::kVllmSplit) encode_options.prompt_rows = routes->num_rows() / 2;
  const std::string text = taken(encode(*routes, dialect, encode_options));
  const Routes again =
      taken(decode(text, dialect, spec, {.start = routes->start(), .version = options.version}));
  expect(again == *routes, "routes that went out and came back are another");
  return true;
}

}  // namespace

bool take(std::string_view input) {
  static const Dialect kDialect = taken(dialect_from_name(kDialectName));
  bool taken = false;
  for (const RouteSpec& spec : specs()) {
    taken |= decode_with(input, kDialect, spec, {});
    decode_with(input, kDialect, spec, {.start = 3, .num_rows = 3, .version = 1});
    decode_with(input, kDialect, spec, {.known_from = 1, .surplus_rows = 1});
    for (const IntType type : dialect_info(kDialect).types) {
      taken |= decode_with(input, kDialect, spec, {.type = type});
    }
  }
  return taken;
}

}  // namespace moetape::fuzz
