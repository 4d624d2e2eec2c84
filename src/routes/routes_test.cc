#include "moetape/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <numeric>

#include "base/test_util.h"
#include "moetape/row_source.h"
#include "routes/routes_reference.h"

namespace moetape::inline v0 {
namespace {

using reference::build;
using reference::make_spec;
using reference::read_back;
using reference::Row;
using reference::Table;
using testing::ElementsAre;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Rows of two layers of two ids, every position another one.
Row row_at(int64_t position, std::optional<uint32_t> version = {}) {
  const int first = static_cast<int>(position) % 6;
  return {Reason::kValid, {first, first + 1, first + 2, first}, version};
}

Row missing_row(Reason reason) { return {reason}; }

Routes rows_at(int64_t start, int64_t end) {
  Table table{.start = start};
  for (int64_t position = start; position < end; ++position) table.rows.push_back(row_at(position));
  return build(make_spec({0, 1}, 2, 8), table);
}

template <class T>
Routes::Source source_of(const std::vector<T>& ids, IntType type, int64_t num_rows) {
  return {.ids = ids.data(), .type = type, .num_rows = num_rows};
}

TEST(Routes, TakesIdsOfAnyIntegerType) {
  const RouteSpec spec = make_spec({3, 5}, 2, 8);
  const Table expected = {.start = 4,
                          .rows = {{Reason::kValid, {0, 7, 1, 2}}, {Reason::kValid, {3, 4, 6, 5}}}};
  const auto check = [&]<class T>(T, IntType type) {
    const std::vector<T> ids = {0, 7, 1, 2, 3, 4, 6, 5};
    EXPECT_EQ(read_back(value_of(Routes::from_ids(spec, 4, source_of(ids, type, 2)))), expected)
        << int_type_name(type);
  };
  check(int8_t{}, IntType::kInt8);
  check(uint8_t{}, IntType::kUint8);
  check(int16_t{}, IntType::kInt16);
  check(uint16_t{}, IntType::kUint16);
  check(int32_t{}, IntType::kInt32);
  check(uint32_t{}, IntType::kUint32);
  check(int64_t{}, IntType::kInt64);
  check(uint64_t{}, IntType::kUint64);
}

// case D01: id 255 of 256 experts is kept in one byte, id 256 of 257 in two.
// case D04: 255 is an expert; missing is said elsewhere.
// case D07: no check is made in the narrow type.
TEST(Routes, ChecksIdsBeforeTheyAreNarrow) {
  const std::vector<uint8_t> bytes = {255, 0};
  const Routes largest =
      value_of(Routes::from_ids(make_spec({0}, 2, 256), 0, source_of(bytes, IntType::kUint8, 1)));
  EXPECT_EQ(largest.ids().size(), 2);
  EXPECT_EQ(read_back(largest).rows[0].ids, (std::vector<int>{255, 0}));
  EXPECT_TRUE(largest.complete());
  expect_error(Routes::from_ids(make_spec({0}, 2, 255), 0, source_of(bytes, IntType::kUint8, 1)),
               ErrorCode::kOutOfRange, "ids: row 0, layer 0: expected ids in [0, 255), got 255");
  const std::vector<int32_t> words = {256, 0};
  EXPECT_EQ(
      read_back(value_of(Routes::from_ids(make_spec({0}, 2, 257), 0, source_of(words, IntType::kInt32, 1)))),
      (Table{.rows = {{Reason::kValid, {256, 0}}}}));
  expect_error(Routes::from_ids(make_spec({0}, 2, 256), 0, source_of(words, IntType::kInt32, 1)),
               ErrorCode::kOutOfRange, "got 256");
}

// case I07: [[0, 0], [1, 2]] is refused, naming row 0.
TEST(Routes, RefusesOutsideIdsByRowLayerAndValue) {
  const std::vector<int64_t> twice = {0, 0, 1, 2};
  expect_error(Routes::from_ids(make_spec({0}, 2, 8), 0, source_of(twice, IntType::kInt64, 2)),
               ErrorCode::kInvalidArgument, "ids: row 0, layer 0: expected 2 different ids, got 0 twice");
  EXPECT_TRUE(Routes::from_ids(
      value_of(RouteSpec::create({.layers = {0}, .top_k = 2, .num_experts = 8, .distinct = false})), 0,
      source_of(twice, IntType::kInt64, 2)));
  const std::vector<int64_t> negative = {0, 1, 2, 3, 4, 5, 6, -1};
  expect_error(Routes::from_ids(make_spec({3, 7}, 2, 8), 0, source_of(negative, IntType::kInt64, 2)),
               ErrorCode::kOutOfRange, "ids: row 1, layer 7: expected ids in [0, 8), got -1");
}

// Beyond the block in which rows are narrowed, and behind a missing row.
TEST(Routes, NamesTheFaultyRowOfALongArray) {
  const RouteSpec spec = make_spec({2, 4, 6}, 2, 512);
  const int64_t num_rows = 5000;
  std::vector<int16_t> ids(static_cast<size_t>(num_rows * 6));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int16_t>(i % 500);
  std::vector<uint8_t> valid(static_cast<size_t>(num_rows), 1);
  valid[17] = 0;
  ids[17 * 6] = -1;
  Routes::Source source = source_of(ids, IntType::kInt16, num_rows);
  source.valid = valid;
  const Table kept = read_back(value_of(Routes::from_ids(spec, 0, source)));
  for (int64_t row = 0; row < num_rows; ++row) {
    const std::vector<int> expected(ids.begin() + row * 6, ids.begin() + row * 6 + 6);
    ASSERT_EQ(kept.rows[static_cast<size_t>(row)].ids, row == 17 ? std::vector<int>() : expected) << row;
  }
  ids[4321 * 6 + 3] = 512;
  expect_error(Routes::from_ids(spec, 0, source), ErrorCode::kOutOfRange,
               "ids: row 4321, layer 4: expected ids in [0, 512), got 512");
}

TEST(Routes, TakesMissingRowsWithoutLookingAtTheirIds) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, -1, -1, -1, -1, 9, 9, 9, 9, 4, 5, 6, 7};
  const std::vector<uint8_t> valid = {1, 0, 0, 1};
  const std::vector<int32_t> tokens = {10, 11, 12, 13};
  Routes::Source source = source_of(ids, IntType::kInt32, 4);
  source.valid = valid;
  source.reason = Reason::kRefused;
  source.version = 5;
  source.tokens = tokens;
  const Routes routes = value_of(Routes::from_ids(make_spec({0, 1}, 2, 8), 100, source));
  EXPECT_EQ(read_back(routes), (Table{.start = 100,
                                      .rows = {{Reason::kValid, {0, 1, 2, 3}, 5, 10},
                                               {Reason::kRefused, {}, {}, 11},
                                               {Reason::kRefused, {}, {}, 12},
                                               {Reason::kValid, {4, 5, 6, 7}, 5, 13}}}));
  EXPECT_THAT(routes.versions(), ElementsAre(VersionRun{100, 101, 5}, VersionRun{103, 104, 5}));
}

TEST(Routes, RefusesSourcesThatDoNotFit) {
  const RouteSpec spec = make_spec({0}, 2, 8);
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<uint8_t> valid = {1};
  const std::vector<int32_t> tokens = {7, 8, 9};
  const auto refused = [&](auto change, int64_t start, ErrorCode code, const std::string& words) {
    Routes::Source source = source_of(ids, IntType::kInt32, 2);
    change(source);
    expect_error(Routes::from_ids(spec, start, source), code, words);
  };
  using Source = Routes::Source;
  refused([](Source& s) { s.ids = nullptr; }, 0, ErrorCode::kInvalidArgument,
          "ids: expected 2 rows, got no array");
  refused([](Source& s) { s.num_rows = -1; }, 0, ErrorCode::kWrongShape, "rows: expected 0 or more, got -1");
  refused([&](Source& s) { s.valid = valid; }, 0, ErrorCode::kWrongShape,
          "valid: expected one value for each of 2");
  refused([&](Source& s) { s.tokens = tokens; }, 0, ErrorCode::kWrongShape,
          "tokens: expected one for each of 2 rows, got 3");
  refused([](Source& s) { s.reason = Reason::kValid; }, 0, ErrorCode::kInvalidArgument, "reason");
  refused([](Source& s) { s.version = kMaxVersion + 1; }, 0, ErrorCode::kInvalidArgument,
          "version: expected 0 to 16777214, got 16777215");
  refused([](Source&) {}, -1, ErrorCode::kOutOfRange, "start: expected a position of 0 or more, got -1");
}

// case K01: sizes that no machine has are errors, not crashes.
TEST(Routes, SizesThatOverflowAreRefused) {
  const RouteSpec spec = make_spec({0, 1}, 2, 512);
  expect_error(RoutesBuilder::create(spec, 0, kHuge / 2), ErrorCode::kInvalidArgument, "rows of 8 bytes");
  expect_error(RoutesBuilder::create(spec, 1, kHuge), ErrorCode::kOutOfRange, "below 2^63");
  expect_error(RoutesBuilder::create(spec, 0, kHuge / 16), ErrorCode::kOutOfMemory, "");
  expect_error(Routes::empty(spec, -1), ErrorCode::kOutOfRange, "got -1");
  EXPECT_EQ(value_of(Routes::empty(spec, kHuge)).end(), kHuge);
  expect_error(rows_at(0, 2).extend(value_of(Routes::empty(rows_at(0, 2).spec(), kHuge))),
               ErrorCode::kInvalidArgument, "rows of 4 bytes");
  expect_error(rows_at(0, 2).extend(value_of(Routes::empty(rows_at(0, 2).spec(), kHuge / 8))),
               ErrorCode::kOutOfMemory, "");
}

// case C20: 10 tokens have 9 rows; from 9 on there are none, which is no error; beyond is one.
TEST(Routes, SlicesByPosition) {
  const Routes routes = rows_at(0, 9);
  EXPECT_EQ(value_of(routes.slice(0, 9)).num_rows(), 9);
  EXPECT_EQ(value_of(routes.slice(8, 9)).num_rows(), 1);
  EXPECT_EQ(value_of(routes.slice(9, 9)).num_rows(), 0);
  expect_error(routes.slice(10, 10), ErrorCode::kOutOfRange,
               "slice: expected positions within [0, 9), got [10, 10)");
  expect_error(routes.slice(-1, 4), ErrorCode::kOutOfRange, "got [-1, 4)");
  expect_error(routes.slice(4, 3), ErrorCode::kOutOfRange, "got [4, 3)");
  expect_error(routes.slice(0, 10), ErrorCode::kOutOfRange, "got [0, 10)");
  const Routes later = value_of(routes.slice(3, 7));
  expect_error(later.slice(2, 5), ErrorCode::kOutOfRange, "within [3, 7), got [2, 5)");
  EXPECT_EQ(read_back(value_of(later.slice(4, 6))), read_back(rows_at(4, 6)));
}

// case C04: 10 ids cut to 7 leave at most 7 rows, by the one function that cuts.
// case C05: prompt 5 and 2 of 6 outputs are 6 rows.
TEST(Routes, CutsRowsWithTheIds) {
  EXPECT_EQ(value_of(rows_at(0, 9).slice(0, 7)).num_rows(), 7);
  EXPECT_EQ(value_of(rows_at(0, 10).slice(0, 5 - 1 + 2)).num_rows(), 6);
}

TEST(Routes, SlicesShareTheBytes) {
  const Routes routes = rows_at(0, 9);
  const Routes part = value_of(routes.slice(4, 8));
  EXPECT_EQ(part.ids().data(), routes.ids().data() + 4 * routes.spec().row_bytes());
  EXPECT_EQ(part.reasons().data(), routes.reasons().data() + 4);
  EXPECT_EQ(part.owner(), routes.owner());
  const auto tokens = std::vector<int32_t>{1, 2, 3, 4};
  const Routes named = value_of(part.with_tokens(tokens));
  EXPECT_EQ(named.ids().data(), part.ids().data());
  EXPECT_EQ(value_of(named.slice(5, 7)).tokens().data(), named.tokens().data() + 1);
  std::shared_ptr<const void> owner;
  {
    owner = value_of(rows_at(0, 3).slice(1, 2)).owner();
  }
  EXPECT_NE(owner, nullptr);
}

// case C06: a header of 9 rows over 7 ids is refused.
// case C10: 7 tokens go with 7 rows; 5 and 8 never do.
// case C12: cumulative rows with the ids of one chunk are refused.
TEST(Routes, TokensAreOnePerRow) {
  const std::vector<int32_t> seven(7, 1);
  expect_error(rows_at(0, 9).with_tokens(seven), ErrorCode::kWrongShape,
               "tokens: expected one for each of 9 rows, got 7");
  EXPECT_TRUE(rows_at(0, 7).with_tokens(seven));
  EXPECT_TRUE(rows_at(0, 6).with_tokens(std::span(seven).first(6)));
  EXPECT_FALSE(rows_at(0, 5).with_tokens(seven));
  EXPECT_FALSE(rows_at(0, 8).with_tokens(seven));
  expect_error(rows_at(0, 3).with_tokens(std::span(seven).first(1)), ErrorCode::kWrongShape, "3 rows, got 1");
  EXPECT_FALSE(rows_at(0, 3).has_tokens());
  EXPECT_TRUE(value_of(value_of(Routes::empty(rows_at(0, 1).spec(), 0)).with_tokens({})).has_tokens());
}

// case J04: absent is no Routes, empty is one of no rows, missing rows are rows.
// case I22: a record of no rows is legal.
TEST(Routes, EmptyIsNotMissing) {
  const RouteSpec spec = make_spec({0, 1}, 2, 8);
  const Routes empty = value_of(Routes::empty(spec, 5));
  EXPECT_EQ(read_back(empty), (Table{.start = 5}));
  EXPECT_TRUE(empty.complete());
  EXPECT_EQ(value_of(Routes::from_ids(spec, 5, {})), empty);
  const Routes missing = build(spec, {.start = 5, .rows = {missing_row(Reason::kLost)}});
  EXPECT_FALSE(missing.complete());
  EXPECT_NE(missing, empty);
}

TEST(Routes, AnEmptySliceHasNoVersions) {
  const RouteSpec spec = make_spec({0, 1}, 2, 8);
  const std::vector<uint8_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const Routes routes = value_of(Routes::from_ids(spec, 5, {.ids = ids.data(), .num_rows = 2, .version = 3}));
  EXPECT_TRUE(value_of(routes.slice(6, 6)).versions().empty());
  EXPECT_EQ(value_of(routes.slice(6, 6)), value_of(Routes::empty(spec, 6)));
}

TEST(Routes, CountsByReason) {
  Table table;
  for (int reason = 0; reason < kNumReasons; ++reason) {
    for (int times = 0; times <= reason; ++times) {
      table.rows.push_back(reason == 0 ? row_at(0) : missing_row(static_cast<Reason>(reason)));
    }
  }
  const Routes routes = build(make_spec({0, 1}, 2, 8), table);
  for (int reason = 0; reason < kNumReasons; ++reason) {
    EXPECT_EQ(routes.count_by_reason()[static_cast<size_t>(reason)], reason + 1);
    EXPECT_EQ(std::ranges::count(routes.reasons(), static_cast<Reason>(reason)), reason + 1);
  }
  EXPECT_EQ(value_of(routes.slice(1, 3)).num_missing(), 2);
}

TEST(Routes, NamesReasons) {
  std::vector<std::string_view> names;
  for (int reason = 0; reason < kNumReasons; ++reason)
    names.push_back(reason_name(static_cast<Reason>(reason)));
  EXPECT_THAT(names, ElementsAre("valid", "unwritten", "no_slot", "pending", "invalidated", "later",
                                 "refused", "lost", "torn", "gap", "outdated", "not_sent"));
}

TEST(Routes, VersionRunsSkipMissingRowsAndAreClipped) {
  RoutesBuilder builder = value_of(RoutesBuilder::create(make_spec({0}, 1, 8), 10, 8));
  std::memset(builder.ids(), 0, 8);
  std::fill_n(builder.reasons(), 8, Reason::kValid);
  builder.reasons()[3] = Reason::kTorn;
  builder.add_version(0, 2, 1);
  builder.add_version(2, 4, 2);
  builder.add_version(6, 1, 2);
  builder.add_version(7, 0, 9);
  const Routes routes = std::move(builder).finish();
  EXPECT_THAT(routes.versions(),
              ElementsAre(VersionRun{10, 12, 1}, VersionRun{12, 13, 2}, VersionRun{14, 17, 2}));
  EXPECT_THAT(value_of(routes.slice(11, 15)).versions(),
              ElementsAre(VersionRun{11, 12, 1}, VersionRun{12, 13, 2}, VersionRun{14, 15, 2}));
  EXPECT_THAT(value_of(routes.slice(13, 14)).versions(), ElementsAre());
  EXPECT_THAT(value_of(routes.slice(17, 18)).versions(), ElementsAre());
}

TEST(Routes, EqualityIsOfWhatIsKnown) {
  const RouteSpec spec = make_spec({0, 1}, 2, 8);
  const Table table = {.start = 2, .rows = {row_at(0, 3), missing_row(Reason::kLost), row_at(1, 3)}};
  const auto changed = [&](auto change) {
    Table other = table;
    change(other);
    return build(spec, other);
  };
  const Routes routes = build(spec, table);
  EXPECT_EQ(changed([](Table&) {}), routes);
  EXPECT_EQ(changed([](Table& t) { t.rows[1].reason = Reason::kTorn; }), routes)
      << "why it is missing is no content";
  EXPECT_NE(changed([](Table& t) { t.rows[1] = row_at(1); }), routes);
  EXPECT_NE(changed([](Table& t) { t.start = 3; }), routes);
  EXPECT_NE(changed([](Table& t) { t.rows.pop_back(); }), routes);
  EXPECT_NE(changed([](Table& t) { t.rows[0].ids[0] = 7; }), routes);
  EXPECT_NE(changed([](Table& t) { t.rows[0].version = 4; }), routes);
  EXPECT_NE(changed([](Table& t) { t.rows[0].version.reset(); }), routes);
  const std::vector<int32_t> tokens = {1, 2, 3}, others = {1, 2, 4};
  EXPECT_NE(value_of(routes.with_tokens(tokens)), routes);
  EXPECT_NE(value_of(routes.with_tokens(tokens)), value_of(routes.with_tokens(others)));
  EXPECT_EQ(value_of(value_of(routes.with_tokens(others)).with_tokens(tokens)),
            value_of(routes.with_tokens(tokens)));
  RouteSpecFields named = spec.fields();
  named.model = "another";
  EXPECT_NE(build(value_of(RouteSpec::create(named)), table), routes) << "the same fingerprint, other fields";
}

TEST(Routes, WrapIdsThatLieSomewhereElse) {
  const RouteSpec spec = make_spec({0, 1}, 2, 8);
  const Routes routes =
      build(spec, {.start = 4, .rows = {row_at(0, 3), missing_row(Reason::kLost), row_at(1)}});
  const auto owner = std::make_shared<int>(1);
  const std::span<const std::byte> ids = routes.ids();
  const Buffer elsewhere = Buffer::wrap(ids.data(), std::ssize(ids), owner);

  RoutesBuilder builder = value_of(RoutesBuilder::wrap(spec, 4, 3, elsewhere));
  builder.reasons()[0] = builder.reasons()[2] = Reason::kValid;
  builder.add_version(0, 2, 3);
  const Routes wrapped = std::move(builder).finish();
  EXPECT_EQ(wrapped, routes);
  EXPECT_EQ(wrapped.ids().data(), ids.data()) << "nothing is copied";
  EXPECT_EQ(owner.use_count(), 3) << "the owner lives as long as the routes";

  expect_error(RoutesBuilder::wrap(spec, 4, 2, elsewhere), ErrorCode::kWrongShape,
               "ids: expected 8 bytes for 2 rows, got 12");
  EXPECT_EQ(RoutesBuilder::wrap(spec, -1, 3, elsewhere).error().code, ErrorCode::kOutOfRange);
}

TEST(RoutesSource, PullsRowsInPieces) {
  const RouteSpec spec = make_spec({0, 1}, 2, 8);
  const Routes routes =
      value_of(build(spec, {.rows = {row_at(9), row_at(0), missing_row(Reason::kLost), row_at(2), row_at(3)}})
                   .slice(1, 5));
  RoutesSource source(routes);
  EXPECT_EQ(source.num_rows(), 4);
  EXPECT_EQ(source.start(), 1);
  EXPECT_EQ(source.spec(), spec);
  std::vector<std::byte> rows(4 * 4);
  std::vector<Reason> reasons(4);
  ASSERT_TRUE(source.pull(0, 3, rows.data(), reasons.data()));
  ASSERT_TRUE(source.pull(3, 1, rows.data() + 12, reasons.data() + 3));
  ASSERT_TRUE(source.pull(4, 0, nullptr, nullptr));
  EXPECT_TRUE(std::ranges::equal(rows, routes.ids()));
  EXPECT_TRUE(std::ranges::equal(reasons, routes.reasons()));
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 3}, {-1, 1}, {0, -1}, {5, 0}, {1, kHuge}}) {
    EXPECT_EQ(source.pull(first, count, rows.data(), reasons.data()).error().code, ErrorCode::kOutOfRange);
  }
  expect_error(source.pull(2, 3, rows.data(), reasons.data()), ErrorCode::kOutOfRange,
               "rows: expected a part of [0, 4), got [2, 5)");
  expect_error(source.pull(1, kHuge, rows.data(), reasons.data()), ErrorCode::kOutOfRange,
               "got [1, 1 + 9223372036854775807)");
}

}  // namespace
}  // namespace moetape::inline v0
