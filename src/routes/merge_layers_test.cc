#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/test_util.h"
#include "moetape/routes.h"
#include "routes/routes_random.h"
#include "routes/routes_reference.h"

namespace moetape::inline v0 {
namespace {

using reference::build;
using reference::make_spec;
using reference::read_back;
using reference::Row;
using reference::Table;
using testing::ElementsAre;

Row valid_row(std::vector<int> ids, std::optional<uint32_t> version = {}, std::optional<int32_t> token = {}) {
  return {Reason::kValid, std::move(ids), version, token};
}

void expect_refused(const std::vector<Routes>& parts, ErrorCode code, const std::string& words) {
  expect_error(merge_layers(parts), code, words);
}

// case G10: stage 0 has layers 0 and 1, stage 1 has 2 and 3; merged in either order all four are there.
TEST(MergeLayers, JoinsStagesInAnyOrder) {
  const Routes low = build(make_spec({0, 1}, 2, 8), {.start = 6, .rows = {valid_row({0, 1, 2, 3})}});
  const Routes high = build(make_spec({2, 3}, 2, 8), {.start = 6, .rows = {valid_row({4, 5, 6, 7})}});
  const Table expected = {.start = 6, .rows = {valid_row({0, 1, 2, 3, 4, 5, 6, 7})}};
  for (const std::vector<Routes>& parts : {std::vector{low, high}, std::vector{high, low}}) {
    const Routes merged = value_of(merge_layers(parts));
    EXPECT_EQ(read_back(merged), expected);
    EXPECT_EQ(merged.spec(), make_spec({0, 1, 2, 3}, 2, 8));
  }
  EXPECT_EQ(value_of(merge_layers(std::vector{low})), low);
}

TEST(MergeLayers, ARowIsValidWhereAllPartsHaveItUnderOneVersion) {
  const Routes low = build(make_spec({0}, 1, 8), {.rows = {valid_row({1}, 5),
                                                           valid_row({1}, 5),
                                                           valid_row({1}, 5),
                                                           {Reason::kLost},
                                                           valid_row({1}),
                                                           {Reason::kGap}}});
  const Routes high = build(make_spec({1}, 1, 8), {.rows = {valid_row({2}, 5),
                                                            valid_row({2}, 6),
                                                            {Reason::kTorn},
                                                            {Reason::kTorn},
                                                            valid_row({2}, 7),
                                                            valid_row({2})}});
  EXPECT_EQ(read_back(value_of(merge_layers(std::vector{low, high}))), (Table{.rows = {valid_row({1, 2}, 5),
                                                                                       {Reason::kTorn},
                                                                                       {Reason::kTorn},
                                                                                       {Reason::kLost},
                                                                                       valid_row({1, 2}, 7),
                                                                                       {Reason::kGap}}}));
}

TEST(MergeLayers, TokensAreThoseOfAnyPart) {
  const Routes low = build(make_spec({0}, 1, 8), {.rows = {valid_row({1}), valid_row({1})}});
  const Routes middle =
      build(make_spec({1}, 1, 8), {.rows = {valid_row({1}, {}, 9), valid_row({1}, {}, 10)}});
  const Routes high = build(make_spec({2}, 1, 8), {.rows = {valid_row({1}, {}, 9), valid_row({1}, {}, 11)}});
  EXPECT_THAT(value_of(merge_layers(std::vector{low, middle})).tokens(), ElementsAre(9, 10));
  EXPECT_FALSE(value_of(merge_layers(std::vector{low})).has_tokens());
  expect_refused({low, middle, high}, ErrorCode::kConflict,
                 "parts[2]: position 1: expected token 10 as before, got 11");
}

TEST(MergeLayers, TheSpecIsTheUnion) {
  const auto empty_of = [](RouteSpecFields fields) {
    return value_of(Routes::empty(value_of(RouteSpec::create(fields)), 0));
  };
  const Routes first =
      empty_of({.layers = {3}, .top_k = 2, .num_experts = 8, .excluded = {{0, "hash"}, {1, "hash"}}});
  const Routes second = empty_of({.layers = {1, 9},
                                  .top_k = 2,
                                  .num_experts = 8,
                                  .distinct = false,
                                  .num_layers = 12,
                                  .excluded = {{11, "last"}}});
  const RouteSpec whole = value_of(merge_layers(std::vector{first, second})).spec();
  EXPECT_THAT(whole.layers(), ElementsAre(1, 3, 9));
  EXPECT_EQ(whole.num_layers(), 12);
  EXPECT_FALSE(whole.distinct());
  EXPECT_EQ(whole.fields().excluded, (std::map<int32_t, std::string>{{0, "hash"}, {11, "last"}}));
}

TEST(MergeLayers, RefusesPartsThatAreNotOneRun) {
  const auto rows_of = [](RouteSpecFields fields, int64_t start) {
    const RouteSpec spec = value_of(RouteSpec::create(std::move(fields)));
    return build(spec, {.start = start, .rows = {valid_row(reference::ids_at(spec, 0, 0))}});
  };
  const Routes first = rows_of({.layers = {0}, .top_k = 2, .num_experts = 8}, 0);
  expect_refused({}, ErrorCode::kInvalidArgument, "parts: expected at least one");
  expect_refused({first, rows_of({.layers = {1}, .top_k = 2, .num_experts = 8}, 1)}, ErrorCode::kWrongShape,
                 "parts[1]: expected positions [0, 1) as in parts[0], got [1, 2)");
  expect_refused({first, rows_of({.layers = {0}, .top_k = 2, .num_experts = 8}, 0)},
                 ErrorCode::kInvalidArgument, "got layer 0 in two");
  expect_refused({first, rows_of({.stack = "draft", .layers = {1}, .top_k = 2, .num_experts = 8}, 0)},
                 ErrorCode::kSpecMismatch, "parts[1]: expected stack target as in parts[0], got draft");
  expect_refused({first, rows_of({.layers = {1}, .top_k = 1, .num_experts = 8}, 0)}, ErrorCode::kSpecMismatch,
                 "expected top_k 2");
  expect_refused({first, rows_of({.layers = {1}, .top_k = 2, .num_experts = 9}, 0)}, ErrorCode::kSpecMismatch,
                 "expected num_experts 8");
  expect_refused({first, rows_of({.layers = {1}, .top_k = 2, .num_experts = 8, .shared_columns = 1}, 0)},
                 ErrorCode::kSpecMismatch, "expected shared_columns 0");
}

// A record cut by layers in any way and merged in any order is the record.
RC_GTEST_PROP(MergeLayersRandom, StagesMergeToTheWhole, ()) {
  const RouteSpec spec = make_spec({1, 2, 5, 6, 7, 9}, 2, *rc::gen::element(20, 300));
  const Table table = *reference::random_table(spec);
  std::map<int, std::vector<int32_t>> layers_of;
  for (const int32_t layer : spec.layers()) layers_of[*rc::gen::inRange(0, 3)].push_back(layer);
  std::vector<Routes> parts;
  for (const auto& [stage, layers] : layers_of) {
    const RouteSpec part_spec = value_of(spec.with_layers(layers));
    Table part = table;
    for (size_t r = 0; r < part.rows.size(); ++r) {
      if (part.rows[r].reason != Reason::kValid) continue;
      part.rows[r].ids.clear();
      for (const int32_t layer : layers) {
        const auto first = table.rows[r].ids.begin() + value_of(spec.column_of(layer)) * spec.top_k();
        part.rows[r].ids.insert(part.rows[r].ids.end(), first, first + spec.top_k());
      }
    }
    parts.push_back(build(part_spec, part));
  }
  if (*rc::gen::arbitrary<bool>()) std::ranges::reverse(parts);
  const Routes merged = value_of(merge_layers(parts));
  RC_ASSERT(read_back(merged) == table);
  RC_ASSERT(merged.spec() == spec);
}

}  // namespace
}  // namespace moetape::inline v0
