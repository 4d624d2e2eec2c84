#include "moetape/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "compare/compare_reference.h"
#include "compare/compare_test_util.h"
#include "routes/routes_random.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

using reference::Table;
using testing::ElementsAre;
using testing::Pair;

Stats stats_of(const RouteSpec& spec, std::span<const Routes> records) {
  Stats stats = value_of(Stats::create(spec));
  for (const Routes& routes : records) EXPECT_TRUE(stats.add(routes));
  return stats;
}

void expect_same(const Stats& got, const Stats& wanted) {
  EXPECT_EQ(got.num_sequences, wanted.num_sequences);
  EXPECT_EQ(got.rows_by_reason, wanted.rows_by_reason);
  EXPECT_EQ(got.rows_by_version, wanted.rows_by_version);
  EXPECT_EQ(got.load, wanted.load);
  EXPECT_EQ(got.load_by_version, wanted.load_by_version);
  EXPECT_EQ(got.load_by_row, wanted.load_by_row);
  EXPECT_EQ(got.reuse, wanted.reuse);
  EXPECT_TRUE(got == wanted);
}

TEST(StatsOfARecord, CountEveryExpertOfEveryLayer) {
  const RouteSpec spec = make_spec({.layers = {1, 4}, .top_k = 2, .num_experts = 4});
  // Layer 1: 0 1, 0 2, 0 1; layer 4: 3 2 each time. The row in between is missing.
  const Routes routes =
      make_routes(spec, {0, 1, 3, 2, /**/ 0, 2, 3, 2, /**/ 9, 9, 9, 9, /**/ 0, 1, 3, 2}, {1, 1, 0, 1});
  const Stats stats = stats_of(spec, std::vector{routes});
  EXPECT_EQ(stats.num_sequences, 1);
  EXPECT_EQ(stats.num_rows(), 4);
  EXPECT_EQ(stats.num_valid_rows(), 3);
  EXPECT_EQ(stats.rows_by_reason[static_cast<size_t>(Reason::kNotSent)], 1);
  EXPECT_THAT(stats.layer_load(stats.load, 0), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(stats.layer_load(stats.load, 1), ElementsAre(0, 0, 3, 3));
  EXPECT_EQ(balance_of(stats.layer_load(stats.load, 1))->num_unused, 2);
  EXPECT_EQ(balance_of(stats.layer_load(stats.load, 1))->max_over_mean, 2);
  // Rows 0 and 1 are neighbours; nothing is a neighbour of the missing row.
  EXPECT_EQ(stats.reuse[0].num_rows, 1);
  EXPECT_EQ(stats.reuse[0].overlap(), 0.5);
  EXPECT_EQ(stats.reuse[1].overlap(), 1);
}

// case D07
TEST(StatsOfARecord, KnowExpert255) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 256});
  const Stats stats = stats_of(spec, std::vector{make_routes(spec, {255, 0, 255})});
  EXPECT_EQ(stats.load[255], 2);
  EXPECT_EQ(stats.load[0], 1);
}

TEST(StatsOfARecord, SizesOfTheForms) {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2}, .top_k = 3, .num_experts = 384});
  std::mt19937_64 random(4);
  const Stats stats = stats_of(spec, std::vector{make_routes(spec, random_ids(spec, 10, random))});
  // 9 ids of 9 bits = 81 bits = 11 bytes a row.
  EXPECT_EQ(stats.bytes(), (Stats::Bytes{.narrow = 180, .bitpacked = 110, .int32 = 360}));
  // An id of a single expert has a bit.
  const RouteSpec one = make_spec({.layers = {0, 1}, .top_k = 1, .num_experts = 1});
  EXPECT_EQ(stats_of(one, std::vector{make_routes(one, {0, 0, 0, 0})}).bytes(),
            (Stats::Bytes{.narrow = 4, .bitpacked = 2, .int32 = 16}));
}

TEST(StatsOfARecord, OfNothingAreEmpty) {
  const RouteSpec spec = reference::make_spec({0}, 2, 8);
  const Stats stats = stats_of(spec, std::vector{*Routes::empty(spec, 3)});
  EXPECT_EQ(stats.num_sequences, 1);
  EXPECT_EQ(stats.num_rows(), 0);
  EXPECT_FALSE(balance_of(stats.layer_load(stats.load, 0)));
  EXPECT_TRUE(stats.load_by_row.windows.empty());
  EXPECT_FALSE(stats.reuse[0].overlap());
}

TEST(StatsOfARecord, FollowTheVersions) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 4});
  const auto record = [&](int64_t expert, std::optional<uint32_t> version) {
    return value_of(Routes::from_ids(
        spec, 0, {.ids = &expert, .type = IntType::kInt64, .num_rows = 1, .version = version}));
  };
  const Stats stats =
      stats_of(spec, std::vector{record(0, 7), record(1, 9), record(2, 9), record(3, std::nullopt)});
  EXPECT_THAT(stats.rows_by_version, ElementsAre(Pair(std::nullopt, 1), Pair(7u, 1), Pair(9u, 2)));
  EXPECT_EQ(stats.load_by_version.start, 7);
  EXPECT_EQ(stats.load_by_version.width, 1);
  ASSERT_EQ(stats.load_by_version.windows.size(), 3u);
  EXPECT_THAT(stats.load_by_version.windows[0], ElementsAre(1, 0, 0, 0));
  EXPECT_TRUE(stats.layer_load(stats.load_by_version.windows[1], 0).empty());
  EXPECT_THAT(stats.load_by_version.windows[2], ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(stats.load, ElementsAre(1, 1, 1, 1));
}

TEST(StatsOfARecord, ManyExpertsHaveFewerWindows) {
  const RouteSpec spec = make_spec({.layers = {0, 1}, .top_k = 1, .num_experts = 65'536});
  std::mt19937_64 random(5);
  const Stats stats = stats_of(spec, std::vector{make_routes(spec, random_ids(spec, 100, random))});
  EXPECT_EQ(stats.load_by_row.width, 4);  // 32 windows of 131,072 counts are 2^22
  EXPECT_EQ(stats.load_by_row.windows.size(), 25u);
  EXPECT_EQ(std::reduce(stats.load.begin(), stats.load.end()), 200);
}

// Windows of more rows than are counted at once.
TEST(StatsOfARecord, LongOnesHaveLongWindows) {
  constexpr int64_t kNumRows = 70'000;
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 3});
  Ids ids(kNumRows);
  for (size_t row = 0; row < ids.size(); ++row) ids[row] = row % 7 == 0 ? 0 : static_cast<int64_t>(row % 3);
  const Stats stats = stats_of(spec, std::vector{make_routes(spec, ids)});
  ASSERT_EQ(stats.load_by_row.width, 2048);
  ASSERT_EQ(stats.load_by_row.windows.size(), 35u);
  for (size_t window = 0; window < 35; ++window) {
    Load wanted(3);
    for (size_t row = window * 2048; row < std::min<size_t>(window * 2048 + 2048, kNumRows); ++row) {
      ++wanted[static_cast<size_t>(ids[row])];
    }
    EXPECT_EQ(stats.load_by_row.windows[window], wanted) << window;
  }
}

TEST(StatsOfARecord, RefuseAnotherSpec) {
  const RouteSpec spec = reference::make_spec({0, 1}, 2, 8);
  const RouteSpec other = reference::make_spec({0, 2}, 2, 8);
  Stats stats = value_of(Stats::create(spec));
  const Status added = stats.add(*Routes::empty(other, 0));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kSpecMismatch);
  const Status merged = stats.merge(value_of(Stats::create(other)));
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, ErrorCode::kSpecMismatch);
  EXPECT_TRUE(stats == value_of(Stats::create(spec)));
}

// Routes are taken as they stand by whoever fills a builder; a count must not leave its array for that.
TEST(StatsOfARecord, RefuseAnExpertThatDoesNotExist) {
  const RouteSpec spec = reference::make_spec({0}, 1, 8);
  const Table bad = {.rows = {{.reason = Reason::kValid, .ids = {8}}}};
  Stats stats = value_of(Stats::create(spec));
  const Status added = stats.add(reference::build(spec, bad));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kOutOfRange);
  EXPECT_TRUE(stats == value_of(Stats::create(spec)));
}

RC_GTEST_PROP(StatsRandom, AreThoseOfTheReference, ()) {
  const RouteSpec spec = reference::make_spec({0, 3}, 3, *rc::gen::element(5, 300));
  const auto tables = *rc::gen::container<std::vector<Table>>(reference::random_table(spec));
  std::vector<Routes> records;
  for (const Table& table : tables) records.push_back(reference::build(spec, table));
  expect_same(stats_of(spec, records), reference::stats(spec, tables, kMostWindows));
}

// Long records: blocks, rows counted at once, windows of many rows.
RC_GTEST_PROP(StatsRandom, OfLongRecordsAreThoseOfTheReference, ()) {
  const int32_t top_k = *rc::gen::element(1, 4, 8, 40);
  const RouteSpec spec = reference::make_spec({0, 1, 5}, top_k, top_k + *rc::gen::element(0, 60, 260));
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  std::vector<Table> tables;
  std::vector<Routes> records;
  for (const int64_t num_rows : {int64_t{400}, static_cast<int64_t>(random() % 400)}) {
    tables.push_back(long_table(spec, num_rows, random));
    records.push_back(reference::build(spec, tables.back()));
  }
  expect_same(stats_of(spec, records), reference::stats(spec, tables, kMostWindows));
}

// Parts side by side: what either holds alone, merged in any order.
RC_GTEST_PROP(StatsRandom, OfPartsMergeInAnyOrder, ()) {
  const RouteSpec spec = reference::make_spec({0, 3}, 2, 7);
  const auto tables = *rc::gen::container<std::vector<Table>>(3, reference::random_table(spec));
  std::vector<Stats> parts;
  for (const Table& table : tables) {
    parts.push_back(stats_of(spec, std::vector{reference::build(spec, table)}));
  }
  Stats forward = parts[0];
  RC_ASSERT(forward.merge(parts[1]).has_value());
  RC_ASSERT(forward.merge(parts[2]).has_value());
  Stats backward = parts[2];
  RC_ASSERT(backward.merge(parts[1]).has_value());
  RC_ASSERT(backward.merge(parts[0]).has_value());
  expect_same(forward, backward);

  const Stats whole = reference::stats(spec, tables, kMostWindows);
  RC_ASSERT(forward.load == whole.load);
  RC_ASSERT(forward.load_by_version == whole.load_by_version);
  RC_ASSERT(forward.rows_by_version == whole.rows_by_version);
  RC_ASSERT(forward.rows_by_reason == whole.rows_by_reason);
  RC_ASSERT(forward.reuse == whole.reuse);
  RC_ASSERT(forward.num_sequences == 3);
}

}  // namespace
}  // namespace moetape::inline v0
