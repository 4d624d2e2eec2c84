// extend, merge_rows and without against a plain reference.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/test_util.h"
#include "moetape/routes.h"
#include "routes/routes_random.h"
#include "routes/routes_reference.h"

namespace moetape::inline v0 {
namespace {

using reference::build;
using reference::make_spec;
using reference::one_in;
using reference::pick;
using reference::random_table;
using reference::read_back;
using reference::Row;
using reference::Table;
using testing::ElementsAre;

RouteSpec small_spec() { return make_spec({0, 1}, 2, 300); }

Row valid_row(int first, std::optional<uint32_t> version = {}, std::optional<int32_t> token = {}) {
  return {Reason::kValid, {first, first + 1, first + 2, first + 3}, version, token};
}

Row missing_row(Reason reason, std::optional<int32_t> token = {}) { return {reason, {}, {}, token}; }

Table table_of(int64_t start, std::vector<Row> rows) { return {start, std::move(rows)}; }

// Rows of positions [start, end), every position its own ids.
Routes rows_at(int64_t start, int64_t end, std::optional<uint32_t> version = {}) {
  Table table{.start = start};
  for (int64_t position = start; position < end; ++position) {
    table.rows.push_back(valid_row(static_cast<int>(position), version));
  }
  return build(small_spec(), table);
}

// case C01: rows are the tokens that were fed: a prompt of 5 alone, with 1 output, with 3 outputs.
// case C02: prompt 4 and 3 outputs are 6 rows.
TEST(Extend, RowsAreTokensFed) {
  const auto fed = [](int64_t prompt, int64_t num_outputs) {
    Routes routes = rows_at(0, prompt);
    for (int64_t output = 1; output < num_outputs; ++output) {
      routes = value_of(routes.extend(rows_at(routes.end(), routes.end() + 1)));
    }
    return routes;
  };
  EXPECT_EQ(fed(5, 0).num_rows(), 5);
  EXPECT_EQ(fed(5, 1).num_rows(), 5);
  EXPECT_EQ(fed(5, 3).num_rows(), 7);
  EXPECT_EQ(fed(4, 3), rows_at(0, 6));
}

// case B11: prefill gives rows 0..3, decode gives rows 4..5 and knows nothing of the others.
TEST(Extend, PrefillAndDecodeOnDifferentMachines) {  // case J03
  Table decode = read_back(rows_at(0, 6));
  for (int64_t position = 0; position < 4; ++position) {
    decode.rows[static_cast<size_t>(position)] = missing_row(Reason::kUnwritten);
  }
  const Routes prefill = rows_at(0, 4);
  EXPECT_EQ(value_of(prefill.extend(build(small_spec(), decode))), rows_at(0, 6));
  EXPECT_EQ(value_of(build(small_spec(), decode).extend(prefill)), rows_at(0, 6));
  decode.rows[1] = valid_row(100);
  expect_error(prefill.extend(build(small_spec(), decode)), ErrorCode::kConflict,
               "other: position 1, layer 0: expected records that agree, got [1, 2] and [100, 101]");
}

// case D01: both chunks have the width of 300 experts, whatever ids they hold.
// case D05
TEST(Extend, WidthIsStableAcrossChunks) {
  const Routes first = build(small_spec(), table_of(0, {valid_row(3)}));
  const Routes second = build(small_spec(), table_of(1, {valid_row(296)}));
  EXPECT_EQ(first.ids().size(), second.ids().size());
  EXPECT_EQ(read_back(value_of(first.extend(second))), table_of(0, {valid_row(3), valid_row(296)}));
}

// case B05: rows 0..4 under version 1; after a retract they are fed again, and two more, under version 2.
TEST(Extend, RowsKeepTheVersionThatSampledThem) {
  const Routes before = rows_at(0, 5, 1);
  const Routes after = rows_at(0, 7, 2);
  const Routes joined = value_of(before.extend(after, OnOverlap::kKeepFirst));
  EXPECT_EQ(joined.num_rows(), 7);
  EXPECT_THAT(joined.versions(), ElementsAre(VersionRun{0, 5, 1}, VersionRun{5, 7, 2}));
  EXPECT_THAT(value_of(before.extend(after, OnOverlap::kKeepLast)).versions(),
              ElementsAre(VersionRun{0, 7, 2}));
  expect_error(before.extend(after), ErrorCode::kConflict, "position 0: expected one version, got 1 and 2");
  EXPECT_EQ(value_of(before.extend(rows_at(0, 7, 1))), rows_at(0, 7, 1))
      << "same weights, same rows: no conflict";
}

// case C08; trap 6: a server that returns the whole history again adds rows only where there were none.
// case C15: a continuation is told by its positions, never by its length.
TEST(Extend, CumulativeRowsAreNoDelta) {
  EXPECT_EQ(value_of(rows_at(0, 5).extend(rows_at(0, 8))), rows_at(0, 8));
  EXPECT_EQ(value_of(rows_at(0, 6).extend(rows_at(0, 9))), rows_at(0, 9));
  EXPECT_EQ(value_of(rows_at(0, 6).extend(rows_at(6, 9))), rows_at(0, 9));
  const Routes too_short = value_of(rows_at(0, 6).extend(rows_at(0, 4)));
  EXPECT_EQ(too_short, rows_at(0, 6));
  expect_error(too_short.slice(0, 9), ErrorCode::kOutOfRange, "got [0, 9)");
}

// case C12: chunks of 2 and 1, joined, are 3 rows with their 3 ids.
TEST(Extend, ChunksOfAStream) {
  const Routes first = value_of(rows_at(0, 2).with_tokens(std::vector<int32_t>{7, 8}));
  const Routes second = value_of(rows_at(2, 3).with_tokens(std::vector<int32_t>{9}));
  const Routes joined =
      value_of(value_of(value_of(Routes::empty(small_spec(), 0)).extend(first)).extend(second));
  EXPECT_EQ(joined, value_of(rows_at(0, 3).with_tokens(std::vector<int32_t>{7, 8, 9})));
}

// case C14: a prompt of 4 and 3 generated rows; with 2, one is missing and is counted.
TEST(Extend, CountsWhatIsMissing) {
  const Routes seven = value_of(rows_at(0, 4).extend(rows_at(4, 7)));
  EXPECT_EQ(seven.num_rows() - seven.num_missing(), 7);
  const Routes six = value_of(
      value_of(rows_at(0, 4).extend(rows_at(4, 6))).extend(value_of(Routes::empty(small_spec(), 7))));
  EXPECT_EQ(six.num_rows(), 7);
  EXPECT_EQ(six.num_missing(), 1);
}

// case C17: rows 0, 1, 2 and 5 are 6 rows of which 2 are missing; so are rows 0..3 of 6.
TEST(Extend, GapsAreMissing) {
  const Routes hole = value_of(rows_at(0, 3).extend(rows_at(5, 6)));
  EXPECT_EQ(read_back(hole), table_of(0, {valid_row(0), valid_row(1), valid_row(2), missing_row(Reason::kGap),
                                          missing_row(Reason::kGap), valid_row(5)}));
  const Routes tail = value_of(rows_at(0, 4).extend(value_of(Routes::empty(small_spec(), 6))));
  EXPECT_EQ(tail.num_rows(), 6);
  EXPECT_EQ(tail.num_missing(), 2);
}

TEST(Extend, AMissingRowKeepsTheFirstReasonThatIsNoGap) {
  const Routes gap =
      build(small_spec(), table_of(0, {missing_row(Reason::kGap), missing_row(Reason::kTorn)}));
  const Routes lost =
      build(small_spec(), table_of(0, {missing_row(Reason::kLost), missing_row(Reason::kLost)}));
  EXPECT_THAT(value_of(gap.extend(lost)).reasons(), ElementsAre(Reason::kLost, Reason::kTorn));
  EXPECT_THAT(value_of(lost.extend(gap)).reasons(), ElementsAre(Reason::kLost, Reason::kLost));
}

TEST(Extend, TokensMustAgreeWhereBothCarryThem) {
  const auto named = [](int64_t start, std::vector<int32_t> tokens) {
    return value_of(rows_at(start, start + std::ssize(tokens)).with_tokens(tokens));
  };
  expect_error(named(0, {1, 2, 3}).extend(named(1, {2, 4}), OnOverlap::kKeepFirst), ErrorCode::kConflict,
               "other: position 2: expected one token, got 3 and 4");
  EXPECT_THAT(value_of(named(0, {1, 2}).extend(named(1, {2, 3}))).tokens(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(value_of(named(0, {1, 2}).extend(named(3, {4}))).has_tokens()) << "a gap";
  EXPECT_FALSE(value_of(named(0, {1, 2}).extend(rows_at(1, 2))).has_tokens()) << "one without";
}

// case G09: the rows of a draft stack never join the target's.
TEST(Extend, RefusesAnotherSpec) {
  RouteSpecFields fields = small_spec().fields();
  fields.stack = "draft";
  const RouteSpec draft = value_of(RouteSpec::create(fields));
  expect_error(rows_at(0, 1).extend(value_of(Routes::empty(draft, 0))), ErrorCode::kSpecMismatch,
               "other: expected routes of spec");
  RouteSpecFields loose = small_spec().fields();
  loose.distinct = false;
  const Routes repeated =
      build(value_of(RouteSpec::create(loose)), table_of(1, {{Reason::kValid, {4, 4, 4, 4}}}));
  EXPECT_FALSE(value_of(rows_at(0, 1).extend(repeated)).spec().distinct());
}

// case A09: 5 tokens on two ranks give rows [0, 3) and [3, 5); one token gives one row, from rank 0.
TEST(MergeRows, JoinsTheSharesOfASequence) {
  EXPECT_EQ(value_of(merge_rows(std::vector<Routes>{rows_at(0, 3), rows_at(3, 5)})), rows_at(0, 5));
  EXPECT_EQ(value_of(merge_rows(std::vector<Routes>{rows_at(3, 5), rows_at(0, 3)})), rows_at(0, 5));
  EXPECT_EQ(
      value_of(merge_rows(std::vector<Routes>{rows_at(0, 1), value_of(Routes::empty(small_spec(), 1))})),
      rows_at(0, 1));
  expect_error(merge_rows({}), ErrorCode::kInvalidArgument, "parts: expected at least one, got none");
  expect_error(merge_rows(std::vector<Routes>{rows_at(0, 2), rows_at(2, 3),
                                              build(small_spec(), table_of(1, {valid_row(9)}))}),
               ErrorCode::kConflict, "parts[2]: position 1, layer 0");
}

TEST(Without, MakesOldRowsMissing) {
  const Table table = table_of(
      3, {valid_row(1, 4), valid_row(2, 5), missing_row(Reason::kLost), valid_row(3, 3), valid_row(4)});
  const Routes routes = build(small_spec(), table);
  Table expected = table;
  expected.rows[0] = expected.rows[3] = missing_row(Reason::kOutdated);
  EXPECT_EQ(read_back(value_of(routes.without(5))), expected);
  EXPECT_EQ(value_of(routes.without(3)).ids().data(), routes.ids().data())
      << "nothing to leave out, nothing to copy";
  EXPECT_EQ(value_of(routes.without(kMaxVersion)).num_missing(), 4);
  expect_error(routes.without(kMaxVersion + 2), ErrorCode::kInvalidArgument,
               "version_below: expected 0 to 16777215, got 16777216");
}

TEST(Without, LeavesOutTheNewestVersionToo) {
  const Table table = table_of(0, {valid_row(1, kMaxVersion), valid_row(2)});
  Table expected = table;
  EXPECT_EQ(read_back(value_of(build(small_spec(), table).without(kMaxVersion))), expected);
  expected.rows[0] = missing_row(Reason::kOutdated);
  EXPECT_EQ(read_back(value_of(build(small_spec(), table).without(kMaxVersion + 1))), expected);
}

// One row joined with the next record of its position; nothing where they conflict.
std::optional<Row> join_rows(const Row& have, const Row& given, OnOverlap on_overlap) {
  if (have.token && given.token && have.token != given.token) return std::nullopt;
  const auto with_token = [&](Row row) {
    row.token = have.token ? have.token : given.token;
    return row;
  };
  if (given.reason != Reason::kValid) return with_token(have.reason == Reason::kGap ? given : have);
  if (have.reason != Reason::kValid || on_overlap == OnOverlap::kKeepLast) return with_token(given);
  if (on_overlap == OnOverlap::kKeepFirst) return with_token(have);
  const bool versions_agree = !have.version || !given.version || have.version == given.version;
  if (have.ids != given.ids || !versions_agree) return std::nullopt;
  return with_token(have.version ? have : given);
}

std::optional<Table> join_tables(const std::vector<Table>& parts, OnOverlap on_overlap) {
  std::map<int64_t, Row> rows;
  bool all_named = true;
  int64_t start = parts[0].start, end = parts[0].end();
  for (const Table& part : parts) {
    start = std::min(start, part.start);
    end = std::max(end, part.end());
    all_named = all_named && (part.rows.empty() || part.has_tokens());
    for (int64_t position = part.start; position < part.end(); ++position) {
      const std::optional<Row> joined = join_rows(rows[position], *part.find(position), on_overlap);
      if (!joined) return std::nullopt;
      rows[position] = *joined;
    }
  }
  Table table{.start = start};
  for (int64_t position = start; position < end; ++position) table.rows.push_back(rows[position]);
  all_named =
      all_named && std::ranges::all_of(table.rows, [](const Row& row) { return row.token.has_value(); });
  for (Row& row : table.rows) {
    if (!all_named) row.token.reset();
  }
  return table;
}

constexpr int kRounds = 20;  // of each of RapidCheck's tests

void expect_joined(const Result<Routes>& joined, const std::optional<Table>& expected) {
  RC_ASSERT(joined.has_value() == expected.has_value());
  if (expected) RC_ASSERT(read_back(*joined) == *expected);
  if (!expected) RC_ASSERT(joined.error().code == ErrorCode::kConflict);
}

RC_GTEST_PROP(JoinRandom, ExtendIsTheReference, ()) {
  for (int round = 0; round < kRounds; ++round) {
    const RouteSpec spec = one_in(2) ? small_spec() : make_spec({0, 1}, 2, 20);
    const Table first = *random_table(spec), second = *random_table(spec);
    const auto on_overlap = static_cast<OnOverlap>(pick(0, 3));
    const Result<Routes> joined = build(spec, first).extend(build(spec, second), on_overlap);
    expect_joined(joined, join_tables({first, second}, on_overlap));
  }
}

RC_GTEST_PROP(JoinRandom, MergeRowsIsTheReference, ()) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Table> tables;
    std::vector<Routes> parts;
    for (int64_t left = pick(1, 5); left > 0; --left) {
      tables.push_back(*random_table(small_spec()));
      parts.push_back(build(small_spec(), tables.back()));
    }
    expect_joined(merge_rows(parts), join_tables(tables, OnOverlap::kMustAgree));
  }
}

// Any cut of a record joins to the record again.
RC_GTEST_PROP(JoinRandom, SlicesJoinToTheWhole, ()) {
  const RouteSpec spec = small_spec();
  const Table table = *random_table(spec);
  const Routes whole = build(spec, table);
  auto cuts =
      *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(table.start, table.end() + 1));
  cuts.insert(cuts.end(), {table.start, table.end()});
  std::ranges::sort(cuts);
  std::vector<Routes> parts;
  for (size_t i = 1; i < cuts.size(); ++i) parts.push_back(value_of(whole.slice(cuts[i - 1], cuts[i])));
  Routes joined = parts[0];
  for (const Routes& part : parts) joined = value_of(joined.extend(part));
  RC_ASSERT(joined == whole);
  if (*rc::gen::arbitrary<bool>()) std::ranges::reverse(parts);
  RC_ASSERT(value_of(merge_rows(parts)) == whole);
}

RC_GTEST_PROP(JoinRandom, WithoutIsTheReference, ()) {
  const RouteSpec spec = small_spec();
  const Table table = *random_table(spec);
  const auto version_below = static_cast<uint32_t>(pick(0, 5));
  const int64_t start = pick(table.start, table.end() + 1);
  const Routes kept = value_of(value_of(build(spec, table).slice(start, table.end())).without(version_below));
  Table expected{.start = start};
  for (int64_t position = start; position < table.end(); ++position) {
    Row row = *table.find(position);
    if (row.version && *row.version < version_below) row = missing_row(Reason::kOutdated, row.token);
    expected.rows.push_back(row);
  }
  RC_ASSERT(read_back(kept) == expected);
}

}  // namespace
}  // namespace moetape::inline v0
