// The bytes of a tape, as such and as the dialect of that name. Where the fuzzer writes them, checksums are
// not compared: it would never get past them.
#include "moetape/tape.h"

#include <memory>
#include <string>
#include <vector>

#include "fuzz.h"
#include "moetape/buffer.h"
#include "moetape/wire.h"

namespace moetape::fuzz {

// An id of one bit becomes a byte, a bit of a row its reason; both stand in two results at once.
const int64_t kJustified = 32;

namespace {

void read_rows(const Tape& tape, int64_t sequence, const TapeEntry& entry) {
  const auto rows = tape.rows(sequence);
  if (!rows) return;
  expect((*rows)->start() == entry.start && (*rows)->num_rows() == entry.end - entry.start,
         "rows of another span");
  std::vector<std::byte> ids(static_cast<size_t>((*rows)->num_rows() * tape.spec().row_bytes()));
  std::vector<Reason> reasons(static_cast<size_t>((*rows)->num_rows()));
  (void)(*rows)->pull(0, (*rows)->num_rows(), ids.data(), reasons.data());
}

// What is sound is written and read again.
void round_trip(const Tape& tape) {
  std::vector<Routes> routes;
  std::vector<TapeSequence> sequences;
  for (int64_t i = 0; i < tape.num_sequences(); ++i) {
    const TapeEntry entry = taken(tape.entry(i));
    routes.push_back(taken(tape.read(i)));
    sequences.push_back({.id = entry.id, .meta = entry.meta});
  }
  const Tape again = taken(Tape::from_bytes(taken(tape_bytes(tape.spec(), routes, sequences))));
  for (int64_t i = 0; i < tape.num_sequences(); ++i) {
    expect(taken(again.read(i)) == routes[static_cast<size_t>(i)], "a sequence came back as another");
  }
}

}  // namespace

bool take(std::string_view input) {
  for (const RouteSpec& spec : specs()) {
    (void)decode(input, Dialect::kTape, spec);
    (void)decode(input, Dialect::kTape, spec, {.num_rows = 3, .version = 1, .known_from = 1});
  }
  const auto size = static_cast<int64_t>(input.size());
  const Result<Tape> tape = Tape::from_bytes(Buffer::wrap(input.data(), size, nullptr));
  if (!tape) return false;
  for (int64_t i = 0; i < tape->num_sequences(); ++i) {
    const Result<TapeEntry> entry = tape->entry(i);
    if (!entry) continue;
    (void)tape->find(entry->id);
    (void)tape->read(i);
    (void)tape->read(i, entry->start, entry->end, tape->spec().layers().first(1));
    read_rows(*tape, i, *entry);
  }
  const bool sound = tape->verify().empty();
  if (sound) round_trip(*tape);
  return sound;
}

}  // namespace moetape::fuzz
