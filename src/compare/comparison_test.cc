#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "compare/compare_reference.h"
#include "compare/compare_test_util.h"
#include "moetape/compare.h"
#include "routes/routes_random.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

using reference::Pair;
using reference::Table;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Comparison new_comparison(const RouteSpec& spec, const CompareOptions& options = {}) {
  return value_of(Comparison::create(spec, options));
}

Comparison compared(const Routes& a, const Routes& b) {
  Comparison comparison = new_comparison(a.spec());
  const Status added = comparison.add(a, b);
  EXPECT_TRUE(added) << (added ? "" : added.error().message);
  return comparison;
}

Comparison compared(const RouteSpec& spec, std::span<const Pair> pairs, const CompareOptions& options = {}) {
  Comparison comparison = new_comparison(spec, options);
  for (const auto& [a, b] : pairs) {
    const Status added = comparison.add(reference::build(spec, a), reference::build(spec, b));
    EXPECT_TRUE(added) << (added ? "" : added.error().message);
  }
  return comparison;
}

void expect_same(const Comparison& got, const Comparison& wanted) {
  EXPECT_EQ(got.num_sequences, wanted.num_sequences);
  EXPECT_EQ(got.num_rows_only_in_a, wanted.num_rows_only_in_a);
  EXPECT_EQ(got.num_rows_only_in_b, wanted.num_rows_only_in_b);
  EXPECT_EQ(got.num_rows_in_neither, wanted.num_rows_in_neither);
  EXPECT_EQ(got.missing_in_a, wanted.missing_in_a);
  EXPECT_EQ(got.missing_in_b, wanted.missing_in_b);
  EXPECT_EQ(got.total, wanted.total);
  EXPECT_EQ(got.by_layer, wanted.by_layer);
  EXPECT_EQ(got.by_position, wanted.by_position);
  EXPECT_TRUE(got.by_version == wanted.by_version);
  EXPECT_EQ(got.by_token, wanted.by_token);
  EXPECT_EQ(got.rows_by_rerouted_routers, wanted.rows_by_rerouted_routers);
  EXPECT_EQ(got.rerouted_rows, wanted.rerouted_rows);
  EXPECT_TRUE(got == wanted);
}

// case J06: 10 layers of 100 tokens; every router in ten is another, 94 tokens have at least one.
TEST(Comparing, CountsRoutersAndTokensThatDisagree) {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, .top_k = 2, .num_experts = 8});
  std::mt19937_64 random(1);
  const Ids ids = random_ids(spec, 100, random);
  Ids other = ids;
  for (size_t i = 0; i < 100; ++i) {
    const size_t token = i < 94 ? i : i - 94;
    int64_t& id = other[token * 20 + i % 10 * 2];
    const int64_t beside = other[token * 20 + i % 10 * 2 + 1];
    id = (id + 1) % 8 == beside ? (id + 2) % 8 : (id + 1) % 8;
  }
  const Comparison comparison = compared(make_routes(spec, ids), make_routes(spec, other));
  EXPECT_EQ(comparison.total.rerouted_routers_rate(), 0.1);
  EXPECT_EQ(comparison.total.rerouted_rows_rate(), 0.94);
  EXPECT_EQ(comparison.total.overlap(), 0.95);
  for (const Agreement& layer : comparison.by_layer) EXPECT_EQ(layer.rerouted_routers_rate(), 0.1);
  EXPECT_THAT(comparison.rows_by_rerouted_routers, ElementsAre(6, 88, 6, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(Comparing, TellsAnotherOrderFromOtherExperts) {
  const RouteSpec spec = make_spec({.layers = {3, 7}, .top_k = 3, .num_experts = 8});
  const Routes a = make_routes(spec, {0, 1, 2, 3, 4, 5, /**/ 0, 1, 2, 3, 4, 5});
  const Routes b = make_routes(spec, {2, 0, 1, 3, 4, 5, /**/ 0, 1, 7, 5, 4, 3});
  const Comparison comparison = compared(a, b);
  EXPECT_EQ(comparison.total, (Agreement{.num_rows = 2,
                                         .num_unequal_rows = 2,
                                         .num_rerouted_rows = 1,
                                         .num_routers = 4,
                                         .num_unequal_routers = 3,
                                         .num_rerouted_routers = 1,
                                         .num_ids = 12,
                                         .num_shared_ids = 11}));
  EXPECT_EQ(comparison.by_layer[0].num_unequal_routers, 2);
  EXPECT_EQ(comparison.by_layer[0].num_rerouted_routers, 1);
  EXPECT_EQ(comparison.by_layer[1].num_unequal_routers, 1);
  EXPECT_EQ(comparison.by_layer[1].num_rerouted_routers, 0);
  EXPECT_THAT(comparison.rerouted_rows,
              ElementsAre(ReroutedRow{
                  .sequence = 0, .position = 1, .num_rerouted_routers = 1, .num_unequal_routers = 2}));
}

// case D07
TEST(Comparing, ExpertsOfTheWholeByteAreDifferentExperts) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 256});
  EXPECT_EQ(compared(make_routes(spec, {255}), make_routes(spec, {0})).total.num_rerouted_routers, 1);
  EXPECT_EQ(compared(make_routes(spec, {255}), make_routes(spec, {255})).total.num_rerouted_routers, 0);
}

// case C14: 8 tokens are 7 rows; the rollout's prompt and generation are 4 + 3 rows, or fewer, or more.
TEST(Comparing, MissingAndSurplusRowsAreCountedApart) {
  const RouteSpec spec = reference::make_spec({0, 1}, 2, 8);
  std::mt19937_64 random(2);
  const Ids ids = random_ids(spec, 8, random);
  const auto rows = [&](int64_t first, int64_t end) {
    return make_routes(spec, Ids(ids.begin() + first * 4, ids.begin() + end * 4), {}, first);
  };
  const auto rollout = [&](int64_t generated) { return value_of(rows(0, 4).extend(rows(4, 4 + generated))); };
  const Routes training = rows(0, 7);

  const Comparison exact = compared(training, rollout(3));
  EXPECT_EQ(exact.total.num_rows, 7);
  EXPECT_EQ(exact.num_rows_only_in_a, 0);
  EXPECT_EQ(exact.num_rows_only_in_b, 0);

  const Comparison short_one = compared(training, rollout(2));
  EXPECT_EQ(short_one.total.num_rows, 6);
  EXPECT_EQ(short_one.num_rows_only_in_a, 1);
  EXPECT_EQ(short_one.num_rows_only_in_b, 0);
  EXPECT_EQ(short_one.missing_in_b[static_cast<size_t>(Reason::kGap)], 1);

  const Comparison surplus = compared(training, rollout(4));
  EXPECT_EQ(surplus.total.num_rows, 7);
  EXPECT_EQ(surplus.num_rows_only_in_a, 0);
  EXPECT_EQ(surplus.num_rows_only_in_b, 1);

  const Comparison none = compared(*Routes::empty(spec, 0), *Routes::empty(spec, 0));
  EXPECT_EQ(none.total.num_rows + none.num_rows_only_in_a + none.num_rows_only_in_b, 0);
  EXPECT_FALSE(none.total.rerouted_rows_rate());
}

TEST(Comparing, MissingRowsAreNeverCompared) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 8});
  // Missing rows are zero bytes, as expert 0 is.
  const Routes a = make_routes(spec, {0, 0, 0, 0}, {1, 0, 1, 0});
  const Routes b = make_routes(spec, {0, 0, 0, 0}, {1, 1, 0, 0});
  const Comparison comparison = compared(a, b);
  EXPECT_EQ(comparison.total.num_rows, 1);
  EXPECT_EQ(comparison.num_rows_only_in_a, 1);
  EXPECT_EQ(comparison.num_rows_only_in_b, 1);
  EXPECT_EQ(comparison.num_rows_in_neither, 1);
  EXPECT_EQ(comparison.missing_in_a[static_cast<size_t>(Reason::kNotSent)], 2);
  EXPECT_EQ(comparison.missing_in_b[static_cast<size_t>(Reason::kNotSent)], 2);
}

TEST(Comparing, SpansThatDoNotMeetHaveNothingInCommon) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 8});
  const Routes first = make_routes(spec, {1, 2}, {}, 0);
  const Routes far = make_routes(spec, {1, 2, 3}, {1, 0, 1}, 10);
  for (const auto& [a, b] : {std::pair(first, far), std::pair(far, first)}) {
    const Comparison comparison = compared(a, b);
    EXPECT_EQ(comparison.total, Agreement{});
    EXPECT_EQ(comparison.num_rows_only_in_a + comparison.num_rows_only_in_b, 4);
    EXPECT_EQ(comparison.num_rows_in_neither, 1);  // the positions between are in no span
    EXPECT_TRUE(comparison.by_position.windows.empty());
  }
}

TEST(Comparing, RepeatedExpertsAreComparedAsOftenAsTheyStand) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 3, .num_experts = 8, .distinct = false});
  const Comparison comparison = compared(make_routes(spec, {5, 5, 1}), make_routes(spec, {1, 1, 5}));
  EXPECT_EQ(comparison.total.num_shared_ids, 2);
  EXPECT_EQ(comparison.total.num_rerouted_routers, 1);
}

TEST(Comparing, TokensThatDisagreeAreNamedByPosition) {
  const RouteSpec spec = reference::make_spec({0}, 1, 8);
  const Routes a = value_of(make_routes(spec, {1, 2, 3}, {}, 4).with_tokens(std::vector{70, 71, 72}));
  const Routes b = value_of(make_routes(spec, {2, 3, 4}, {}, 5).with_tokens(std::vector{71, 99, 73}));
  Comparison comparison = new_comparison(spec);
  const Status added = comparison.add(a, b);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kConflict);
  EXPECT_THAT(added.error().message, HasSubstr("position 6"));
  EXPECT_THAT(added.error().message, HasSubstr("72"));
  EXPECT_THAT(added.error().message, HasSubstr("99"));
  EXPECT_TRUE(comparison == new_comparison(spec)) << "a failed call added something";
  EXPECT_TRUE(comparison.add(a, make_routes(spec, {2, 3, 4}, {}, 5)));
}

TEST(Comparing, SpecsMustBeOfOneFingerprint) {
  const RouteSpec spec = reference::make_spec({0, 1}, 2, 8);
  const RouteSpec other = reference::make_spec({0, 1}, 2, 9);
  Comparison comparison = new_comparison(spec);
  const Routes empty = *Routes::empty(spec, 0);
  const Routes foreign = *Routes::empty(other, 0);
  for (const Status& status : {comparison.add(foreign, empty), comparison.add(empty, foreign),
                               comparison.merge(new_comparison(other))}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kSpecMismatch);
  }
  EXPECT_TRUE(comparison == new_comparison(spec));
}

TEST(Comparing, OptionsAreChecked) {
  const RouteSpec spec = reference::make_spec({0}, 1, 8);
  const auto negative = Comparison::create(spec, {.max_rerouted_rows = -1});
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, ErrorCode::kInvalidArgument);
  Comparison comparison = new_comparison(spec);
  const Status merged = comparison.merge(new_comparison(spec, {.max_rerouted_rows = 3}));
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, ErrorCode::kInvalidArgument);
}

TEST(Comparing, TokensMostReroutedComeFirst) {
  const RouteSpec spec = make_spec({.layers = {0, 1}, .top_k = 1, .num_experts = 8});
  const Routes a = make_routes(spec, {0, 0, 0, 0, 0, 0, 0, 0});
  const Routes b = make_routes(spec, {0, 0, 0, 5, 4, 5, 0, 4});
  const Routes named = value_of(a.with_tokens(std::vector{30, 20, 30, 10}));
  for (const Comparison& comparison : {compared(named, b), compared(b, named)}) {
    const auto tokens = comparison.most_rerouted_tokens(9);
    ASSERT_EQ(tokens.size(), 3u);
    EXPECT_EQ(tokens[0].first, 30);
    EXPECT_EQ(tokens[0].second.num_rows, 2);
    EXPECT_EQ(tokens[0].second.num_rerouted_rows, 1);
    EXPECT_EQ(tokens[0].second.num_rerouted_routers, 2);
    EXPECT_EQ(tokens[1].first, 10);
    EXPECT_EQ(tokens[2].first, 20);
    EXPECT_EQ(comparison.most_rerouted_tokens(1).size(), 1u);
    EXPECT_THAT(comparison.most_rerouted_tokens(0), IsEmpty());
    EXPECT_EQ(comparison.rerouted_rows[0].token, 30);
  }
  EXPECT_TRUE(compared(a, b).by_token.empty());
}

TEST(Comparing, PairsAreNumberedOrNamed) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 8});
  const Routes a = make_routes(spec, {0});
  const Routes b = make_routes(spec, {1});
  Comparison comparison = new_comparison(spec, {.max_rerouted_rows = 3});
  EXPECT_TRUE(comparison.add(a, b, 40));
  EXPECT_TRUE(comparison.add(a, a));
  EXPECT_TRUE(comparison.add(a, b));
  ASSERT_EQ(comparison.rerouted_rows.size(), 2u);
  EXPECT_EQ(comparison.rerouted_rows[0].sequence, 2);
  EXPECT_EQ(comparison.rerouted_rows[1].sequence, 40);
  EXPECT_EQ(comparison.num_sequences, 3);
}

TEST(Comparing, MergedWithItselfCountsTwice) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 8});
  std::mt19937_64 random(5);
  const Routes a = make_routes(spec, random_ids(spec, 50, random));
  const Routes b = make_routes(spec, random_ids(spec, 50, random));
  Comparison comparison = new_comparison(spec, {.max_rerouted_rows = 1000});
  EXPECT_TRUE(comparison.add(a, b, 0));
  Comparison twice = comparison;
  EXPECT_TRUE(twice.merge(twice));
  Comparison expected = comparison;
  EXPECT_TRUE(expected.merge(comparison));
  EXPECT_TRUE(twice == expected);
  EXPECT_EQ(twice.rerouted_rows.size(), 2 * comparison.rerouted_rows.size());
}

// random_table lets tokens of one position differ now and then.
Table with_agreed_tokens(Table table) {
  int64_t position = table.start;
  for (reference::Row& row : table.rows) {
    if (row.token) row.token = static_cast<int32_t>(position % 5);
    ++position;
  }
  return table;
}

rc::Gen<Pair> random_pair(const RouteSpec& spec) {
  return rc::gen::exec([spec] {
    return Pair{with_agreed_tokens(*reference::random_table(spec)),
                with_agreed_tokens(*reference::random_table(spec))};
  });
}

RC_GTEST_PROP(ComparingRandom, AgreesWithTheReference, ()) {
  const RouteSpec spec = reference::make_spec({0, 3}, 3, *rc::gen::element(5, 300));
  const CompareOptions options = {.max_rerouted_rows = *rc::gen::inRange(0, 6)};
  const auto pairs = *rc::gen::container<std::vector<Pair>>(random_pair(spec));
  expect_same(compared(spec, pairs, options), reference::compare(spec, options, pairs));
}

// Long records: blocks, windows of many positions, equal stretches.
RC_GTEST_PROP(ComparingRandom, OfLongRecordsAgreesWithTheReference, ()) {
  const int32_t top_k = *rc::gen::element(1, 4, 8, 40);
  const RouteSpec spec = make_spec({.layers = {0, 1, 5},
                                    .top_k = top_k,
                                    .num_experts = top_k + *rc::gen::element(0, 60, 260),
                                    .distinct = *rc::gen::arbitrary<bool>()});
  const uint64_t stay = *rc::gen::element<uint64_t>(1, 10, 3000);
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  std::vector<Pair> pairs;
  for (const int64_t num_rows : {int64_t{400}, static_cast<int64_t>(random() % 400)}) {
    const Table a = long_table(spec, num_rows, random);
    Table b = routed_again(spec, a, stay, random);
    b.rows.resize(b.rows.size() - random() % (b.rows.size() + 1) / 8);
    pairs.push_back({a, b});
  }
  expect_same(compared(spec, pairs), reference::compare(spec, {}, pairs));
}

RC_GTEST_PROP(ComparingRandom, PartsMergeToTheWholeInAnyOrder, ()) {
  const RouteSpec spec = reference::make_spec({0, 3}, 3, 5);
  const CompareOptions options = {.max_rerouted_rows = *rc::gen::inRange(0, 6)};
  const auto pairs = *rc::gen::container<std::vector<Pair>>(6, random_pair(spec));
  std::vector<Comparison> parts(3, new_comparison(spec, options));
  for (size_t i = 0; i < pairs.size(); ++i) {
    Comparison& part = parts[static_cast<size_t>(reference::pick(0, 3))];
    const auto& [a, b] = pairs[i];
    RC_ASSERT(
        part.add(reference::build(spec, a), reference::build(spec, b), static_cast<int64_t>(i)).has_value());
  }
  Comparison forward = parts[0];
  RC_ASSERT(forward.merge(parts[1]).has_value());
  RC_ASSERT(forward.merge(parts[2]).has_value());
  Comparison backward = parts[2];
  RC_ASSERT(backward.merge(parts[1]).has_value());
  RC_ASSERT(backward.merge(parts[0]).has_value());
  const Comparison whole = reference::compare(spec, options, pairs);
  expect_same(forward, whole);
  expect_same(backward, whole);
}

}  // namespace
}  // namespace moetape::inline v0
