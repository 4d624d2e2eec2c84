// The index of a tape of several files.
#include "fuzz.h"
#include "tape/index.h"

namespace moetape::fuzz {

const int64_t kJustified = 12;  // JSON as in decode.cc; a shard of some 60 characters is a value of 90 bytes

bool take(std::string_view input) {
  const std::span bytes = std::as_bytes(std::span(input));
  const Result<tape::Index> index = tape::parse_index("index", bytes);
  if (!index) return false;
  const std::string text = tape::format_index(*index);
  const tape::Index again = taken(tape::parse_index("index", std::as_bytes(std::span(text))));
  expect(again.fingerprint == index->fingerprint && again.shards == index->shards,
         "an index came back as another");
  return true;
}

}  // namespace moetape::fuzz
