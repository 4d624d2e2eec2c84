// Random sequences through random tapes, against the table that they came from.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "moetape/tape.h"
#include "routes/routes_random.h"

namespace moetape::inline v0::reference {
namespace {

// What a tape keeps of a row: not why it is missing.
Table as_on_tape(Table table) {
  for (Row& row : table.rows) {
    if (row.reason != Reason::kValid) row.reason = Reason::kNotSent;
  }
  return table;
}

RC_GTEST_PROP(TapeModel, GivesBackAnySequenceAndAnyPartOfIt, ()) {
  const int32_t num_experts = one_in(3) ? 300 : static_cast<int32_t>(pick(4, 40));
  const RouteSpec spec = make_spec({0, 1, 5}, static_cast<int32_t>(pick(1, 4)), num_experts);
  TapeOptions options = {.codec = one_in(2) ? Codec::kBitpack : Codec::kNone};
  if (one_in(2)) options.layer_groups = {{0, 5}, {1}};
  std::vector<Table> tables;
  std::vector<Routes> routes;
  for (int64_t i = pick(0, 6); i > 0; --i) {
    tables.push_back(*random_table(spec));
    for (Row& row : tables.back().rows) {
      if (row.reason != Reason::kValid) row.version.reset();
    }
    routes.push_back(build(spec, tables.back()));
  }
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, routes, {}, options))));
  RC_ASSERT(tape.verify().empty());
  RC_ASSERT(tape.num_sequences() == std::ssize(tables));
  for (size_t i = 0; i < tables.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    RC_ASSERT(read_back(value_of(tape.read(sequence))) == as_on_tape(tables[i]));
    const int64_t start = pick(tables[i].start, tables[i].end() + 1);
    const int64_t end = pick(start, tables[i].end() + 1);
    RC_ASSERT(value_of(tape.read(sequence, start, end)) == value_of(routes[i].slice(start, end)));
  }
}

}  // namespace
}  // namespace moetape::inline v0::reference
