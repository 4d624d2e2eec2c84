#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "replay/test_plans.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// case I05
TEST(PlanApply, PadsAsTheBatchIsPadded) {
  Ids packed = sequence_ids(0, 3, 3);
  for (const int64_t id : sequence_ids(1, 5, 5)) packed.push_back(id);
  packed.resize(16, 0);
  const auto routes = std::vector{random_routes(small_spec(), 0, 3, 3), random_routes(small_spec(), 0, 5, 4)};
  const Applied applied = run(make_plan(packed), routes);
  EXPECT_EQ(applied.num_rows, 16);
  EXPECT_EQ(std::ranges::count(applied.uses, RowUse::kReplayed), 8);
  EXPECT_EQ(std::ranges::count(applied.uses, RowUse::kFill), 8);
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(applied.at(1, row), recorded(routes[row < 3 ? 0 : 1], row < 3 ? row : row - 3, 1));
  }
}

// case I20
TEST(PlanApply, SharesOfAnOddLengthArePaddedThenCut) {
  const auto routes = std::vector{random_routes(small_spec(), 0, 5, 5)};
  const Ids padded = sequence_ids(0, 5, 6, -1);
  int64_t replayed = 0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Ids share(padded.begin() + rank * 3, padded.begin() + (rank + 1) * 3);
    const Applied applied = run(make_plan(share), routes);
    EXPECT_EQ(applied.num_rows, 3);
    replayed += std::ranges::count(applied.uses, RowUse::kReplayed);
  }
  EXPECT_EQ(replayed, 5);
}

// case C10
TEST(PlanApply, WhatTheRecordLacksIsLiveAndWhatTheTrainerPadsIsFill) {
  const Ids padded = sequence_ids(0, 7, 8);
  for (const auto& [rows, live] : std::map<int64_t, int64_t>{{7, 0}, {6, 1}, {5, 2}, {8, 0}}) {
    const auto routes = std::vector{random_routes(small_spec(), 0, rows, 6)};
    int64_t num_live = 0;
    int64_t num_fill = 0;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Applied applied = run(make_plan(zigzag({padded}, 2, rank)), routes);
      num_live += std::ranges::count(applied.uses, RowUse::kLive);
      num_fill += std::ranges::count(applied.uses, RowUse::kFill);
    }
    EXPECT_EQ(num_live, live) << rows;
    EXPECT_EQ(num_fill, 1) << rows;
  }
}

// case C11
TEST(PlanApply, RowTIsOfTokenT) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 2, .num_experts = 8});
  const auto with_tokens = make_routes(spec, {1, 2, 3, 4}).with_tokens(std::vector<int32_t>{70, 71});
  ASSERT_TRUE(with_tokens);
  const std::vector routes = {*with_tokens};
  const Plan plan = make_plan(sequence_ids(0, 3, 3));
  const Applied applied = run(plan, routes);
  // The logits at row 1 (fed 71) give the logprob of the last token, which has no row.
  EXPECT_THAT(applied.at(0, 0), ElementsAre(1, 2));
  EXPECT_THAT(applied.at(0, 1), ElementsAre(3, 4));
  EXPECT_THAT(applied.uses, ElementsAre(RowUse::kReplayed, RowUse::kReplayed, RowUse::kLive));

  EXPECT_TRUE(plan.verify(routes, std::vector<int32_t>{70, 71, 72}));
  const auto shifted = plan.verify(routes, std::vector<int32_t>{71, 72, 73});
  ASSERT_FALSE(shifted);
  EXPECT_EQ(shifted.error().code, ErrorCode::kConflict);
  EXPECT_THAT(shifted.error().message, HasSubstr("row 0 (sequence 0, position 0)"));
}

// case D10
TEST(PlanApply, PaddingLoadsAllExpertsAlike) {
  const auto routes = std::vector{*Routes::empty(small_spec(), 0)};
  const Applied applied = run(make_plan(Ids(6, 0)), routes);
  for (int64_t layer = 0; layer < 2; ++layer) {
    std::map<int64_t, int> load;
    for (int64_t row = 0; row < 6; ++row) {
      const Ids ids = applied.at(layer, row);
      EXPECT_NE(ids[0], ids[1]);
      for (const int64_t id : ids) ++load[id];
    }
    EXPECT_EQ(load.size(), 8u);
    for (const auto& [expert, rows] : load) EXPECT_TRUE(rows == 1 || rows == 2) << expert << ": " << rows;
  }
  EXPECT_EQ(applied.ids, run(make_plan(Ids(6, -1)), routes).ids);
}

// case D10: padding stays even where live rows stand in between.
TEST(PlanApply, PaddingBetweenOtherRowsLoadsAllExpertsAlike) {
  const auto routes = std::vector{random_routes(small_spec(), 0, 10, 7)};
  Ids ids;
  for (int64_t i = 0; i < 40; ++i) {
    ids.push_back(row_id(0, i));
    ids.insert(ids.end(), static_cast<size_t>(i % 3), 0);
  }
  const Applied applied = run(make_plan(ids), routes);
  for (const RowUse use : {RowUse::kFill, RowUse::kLive}) {
    std::vector<int> load(8);
    for (int64_t row = 0; row < applied.num_rows; ++row) {
      if (applied.uses[static_cast<size_t>(row)] != use) continue;
      for (const int64_t id : applied.at(1, row)) ++load[static_cast<size_t>(id)];
    }
    EXPECT_LE(std::ranges::max(load) - std::ranges::min(load), 1);
  }
}

// case D10: plans side by side begin at different experts.
TEST(PlanApply, PaddingBeginsAtTheExpertAskedFor) {
  const auto routes = std::vector{*Routes::empty(small_spec(), 0)};
  const Ids from_six = run(make_plan({0, 0, -1}), routes, 6).ids;
  EXPECT_THAT(std::span(from_six).first(6), ElementsAre(6, 7, 0, 1, 2, 3));
  EXPECT_EQ(run(make_plan({0, 0, -1}), routes, 14).ids, from_six);
  std::vector<int> load(8);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Applied applied = run(make_plan({0}), routes, rank * 2);
    for (const int64_t expert : applied.at(0, 0)) ++load[static_cast<size_t>(expert)];
  }
  EXPECT_THAT(load, testing::Each(1));
  std::vector<std::byte> out(1000);
  std::vector<RowUse> uses(1);
  expect_error(make_plan({0}).apply(routes, IntType::kInt64, out, uses, -1), ErrorCode::kOutOfRange,
               "first_expert");
}

// case G01
TEST(PlanApply, AStageOfDenseLayersGetsNoIds) {
  const auto routes = std::vector{random_routes(small_spec(), 0, 2, 13)};
  const Applied applied = run(make_plan({row_id(0, 1), 0}, std::vector<int32_t>()), routes);
  EXPECT_THAT(applied.ids, IsEmpty());
  EXPECT_THAT(applied.uses, ElementsAre(RowUse::kReplayed, RowUse::kFill));
}

// case I21
TEST(PlanApply, NoRowHoldsAnExpertTwice) {
  constexpr int64_t kRows = 100'000;
  const RouteSpec spec = make_spec({.layers = {2}, .top_k = 5, .num_experts = 13});
  const auto routes = std::vector{random_routes(spec, 0, 100, 8)};
  Ids ids(kRows, 0);
  for (int64_t i = 0; i < 200; ++i) ids[static_cast<size_t>(i * 7)] = row_id(0, i);
  const Applied applied = run(make_plan(ids), routes);
  int64_t repeated = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const Ids list = applied.at(0, row);
    if (std::set(list.begin(), list.end()).size() != list.size()) ++repeated;
  }
  EXPECT_EQ(repeated, 0);
}

// case I22
TEST(PlanApply, RowsWithoutARecordHoldExpertsThatExist) {
  const RouteSpec spec = small_spec();
  const auto partial = std::vector{make_routes(spec, {0, 1, 2, 3, -1, -1, -1, -1}, {1, 0})};
  for (const std::vector<Routes>& routes : {partial, std::vector{*Routes::empty(spec, 0)}}) {
    const Applied applied = run(make_plan(sequence_ids(0, 2, 3)), routes);
    EXPECT_EQ(applied.uses[1], RowUse::kLive);
    EXPECT_EQ(applied.uses[2], RowUse::kFill);
    for (const int64_t id : applied.ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, 8);
    }
  }
  const Applied none = run(make_plan({}), partial);
  EXPECT_THAT(none.ids, IsEmpty());
}

// case I07
TEST(PlanApply, RepeatedIdsNeverBecomeASource) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 2, .num_experts = 4});
  const Ids ids = {0, 0, 1, 2};
  const auto routes = Routes::from_ids(spec, 0, {.ids = ids.data(), .type = IntType::kInt64, .num_rows = 2});
  ASSERT_FALSE(routes);
  EXPECT_EQ(routes.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(routes.error().message, HasSubstr("row 0"));
}

// case G01
TEST(PlanApply, LayersAreGlobal) {
  const RouteSpec spec = make_spec({.layers = {3, 4, 5}, .top_k = 1, .num_experts = 8, .num_layers = 6});
  const auto routes = std::vector{make_routes(spec, {5, 6, 7})};
  EXPECT_THAT(run(make_plan({row_id(0, 0)}, {{4}}), routes).ids, ElementsAre(6));
  EXPECT_THAT(run(make_plan({row_id(0, 0)}, {{5, 3}}), routes).ids, ElementsAre(7, 5));

  Ids ids(2);
  std::vector<RowUse> uses(1);
  const auto written = make_plan({row_id(0, 0)}, {{1}})
                           .apply(routes, IntType::kInt64, std::as_writable_bytes(std::span(ids)), uses);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kOutOfRange);
}

// case D06
TEST(PlanApply, WidensOnlyTheLayersOfThisRank) {
  std::vector<int32_t> layers(48);
  std::iota(layers.begin(), layers.end(), 0);
  const RouteSpec spec = make_spec({.layers = layers, .top_k = 8, .num_experts = 128});
  const auto routes = std::vector{random_routes(spec, 0, 1000, 9)};
  EXPECT_EQ(routes[0].ids().size(), 384'000u);

  const Plan plan = make_plan(sequence_ids(0, 1000, 1000), {{layers.begin() + 12, layers.begin() + 24}});
  std::vector<int32_t> out(96'000 + 1, -7);
  std::vector<RowUse> uses(1000);
  const auto bytes = std::as_writable_bytes(std::span(out));
  ASSERT_TRUE(plan.apply(routes, IntType::kInt32, bytes.first(384'000), uses));
  EXPECT_EQ(out.back(), -7);
  EXPECT_EQ(out[0], recorded(routes[0], 0, 12)[0]);
  EXPECT_EQ(out[95'999], recorded(routes[0], 999, 23)[7]);
  const auto narrow = plan.apply(routes, IntType::kInt32, bytes.first(384'000 - 1), uses);
  ASSERT_FALSE(narrow);
  EXPECT_EQ(narrow.error().code, ErrorCode::kCapacity);
}

// case D02
TEST(PlanApply, WidensToWhatTheTypeCanHold) {
  const RouteSpec spec = make_spec({.layers = {3}, .top_k = 2, .num_experts = 65536});
  const Plan plan = make_plan({row_id(0, 0), row_id(0, 1), 0});
  std::vector<RowUse> uses(3);

  const auto small = std::vector{make_routes(spec, {511, 3, 32767, 256})};
  std::vector<int16_t> int16(6);
  ASSERT_TRUE(plan.apply(small, IntType::kInt16, std::as_writable_bytes(std::span(int16)), uses));
  EXPECT_THAT(std::span(int16).first(4), ElementsAre(511, 3, 32767, 256));

  const auto large = std::vector{make_routes(spec, {511, 3, 7, 40000})};
  const auto refused = plan.apply(large, IntType::kInt16, std::as_writable_bytes(std::span(int16)), uses);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfRange);
  EXPECT_THAT(refused.error().message, HasSubstr("row 1, layer 3"));
  EXPECT_THAT(refused.error().message, HasSubstr("40000"));

  std::vector<int32_t> int32(6);
  ASSERT_TRUE(plan.apply(large, IntType::kInt32, std::as_writable_bytes(std::span(int32)), uses));
  EXPECT_THAT(std::span(int32).first(4), ElementsAre(511, 3, 7, 40000));
  std::vector<uint16_t> uint16(6);
  ASSERT_TRUE(plan.apply(large, IntType::kUint16, std::as_writable_bytes(std::span(uint16)), uses));
  EXPECT_EQ(uint16[3], 40000);
  for (const IntType type : {IntType::kInt8, IntType::kUint8}) {
    const auto wrong = plan.apply(large, type, std::as_writable_bytes(std::span(int32)), uses);
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().code, ErrorCode::kWrongType);
  }
}

TEST(PlanApply, PulledRowsOfSeveralBlocksAndSequences) {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2}, .top_k = 2, .num_experts = 300});
  const std::vector routes = {random_routes(spec, 0, 700, 14), random_routes(spec, 3, 900, 15)};
  Ids ids;
  for (int64_t position = 0; position < 1000; ++position) {
    ids.push_back(row_id(position % 7 < 3 ? 0 : 1, position));
    if (position % 11 == 0) ids.push_back(0);
  }
  const Plan plan = make_plan(ids, {{2, 0}});
  EXPECT_EQ(run_pulled(plan, routes).ids, run(plan, routes).ids);
  EXPECT_EQ(run_pulled(plan, routes).uses, run(plan, routes).uses);
  std::vector<std::byte> out(1 << 16);
  std::vector<RowUse> uses(ids.size());
  const std::vector<RowSource*> null = {nullptr};
  expect_error(plan.apply(null, IntType::kInt64, out, uses), ErrorCode::kInvalidArgument, "sources[0]");
  expect_error(plan.apply(std::span<RowSource* const>(), IntType::kInt64, out, uses),
               ErrorCode::kInvalidArgument, "sources");
}

TEST(PlanApply, RefusesWhatDoesNotFit) {
  const RouteSpec spec = small_spec();
  const auto routes = std::vector{random_routes(spec, 0, 4, 10)};
  Ids out(100);
  std::vector<RowUse> uses(4);
  const auto code = [&](const Ids& row_ids, std::span<const Routes> sources, std::span<RowUse> some) {
    const auto written =
        make_plan(row_ids).apply(sources, IntType::kInt64, std::as_writable_bytes(std::span(out)), some);
    EXPECT_FALSE(written);
    return written ? std::nullopt : std::optional(written.error().code);
  };
  EXPECT_EQ(code({row_id(1, 0)}, routes, uses), ErrorCode::kOutOfRange);
  EXPECT_EQ(code({0, 0}, {}, uses), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, 0}, routes, std::span(uses).first(1)), ErrorCode::kCapacity);
  const RouteSpec other = make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 9});
  EXPECT_EQ(code({row_id(0, 0)}, std::vector{routes[0], random_routes(other, 0, 1, 11)}, uses),
            ErrorCode::kSpecMismatch);
}

// The plan against a dictionary of rows.
RC_GTEST_PROP(PlanRandom, AgreesWithADictionary, ()) {
  const int32_t num_layers = *rc::gen::inRange(1, 7);
  const int32_t top_k = *rc::gen::element(1, 2, 3, 4, 6, 8, 16);
  const int32_t num_experts = top_k + *rc::gen::element(0, 1, 40, 250, 500);
  std::vector<int32_t> moe_layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (layer == 0 || *rc::gen::arbitrary<bool>()) moe_layers.push_back(layer * 2);
  }
  const RouteSpec spec = make_spec({.layers = moe_layers, .top_k = top_k, .num_experts = num_experts});
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  };

  std::vector<Routes> sources;
  std::map<int64_t, Ids> rows;  // row id → ids [layer, k]
  for (int64_t sequence = 0, count = 1 + draw(4); sequence < count; ++sequence) {
    const int64_t start = draw(5);
    const int64_t num_rows = draw(120);
    const Ids ids = random_ids(spec, num_rows, random);
    std::vector<uint8_t> valid(static_cast<size_t>(num_rows));
    for (int64_t row = 0; row < num_rows; ++row) {
      valid[static_cast<size_t>(row)] = draw(8) != 0;
      const auto first = ids.begin() + row * spec.num_moe_layers() * top_k;
      if (valid[static_cast<size_t>(row)]) {
        rows[row_id(sequence, start + row)] = Ids(first, first + spec.num_moe_layers() * top_k);
      }
    }
    sources.push_back(make_routes(spec, ids, valid, start));
  }

  Ids row_ids;
  for (int64_t sequence = 0; sequence < std::ssize(sources); ++sequence) {
    for (int64_t position = 0; position < 130; ++position) row_ids.push_back(row_id(sequence, position));
  }
  row_ids.insert(row_ids.end(), static_cast<size_t>(draw(30)), -draw(2));
  if (draw(2) == 0) std::ranges::shuffle(row_ids, random);
  row_ids.resize(static_cast<size_t>(draw(std::ssize(row_ids) + 1)));
  std::vector<int32_t> wanted = moe_layers;
  std::ranges::shuffle(wanted, random);
  wanted.resize(static_cast<size_t>(draw(std::ssize(wanted) + 1)));
  std::optional<std::vector<int32_t>> layers = wanted;
  if (draw(4) == 0) {
    layers.reset();
    wanted = moe_layers;
  }

  const Plan plan = make_plan(row_ids, layers);
  const int64_t first_expert = draw(600);
  const Applied applied = run(plan, sources, first_expert);
  const Applied pulled = run_pulled(plan, sources, first_expert);
  RC_ASSERT(pulled.ids == applied.ids);
  RC_ASSERT(pulled.uses == applied.uses);
  std::vector<int64_t> load(wanted.size() * static_cast<size_t>(num_experts));
  for (int64_t layer = 0; layer < std::ssize(wanted); ++layer) {
    const auto column =
        std::ranges::find(moe_layers, wanted[static_cast<size_t>(layer)]) - moe_layers.begin();
    for (int64_t row = 0; row < applied.num_rows; ++row) {
      const int64_t id = row_ids[static_cast<size_t>(row)];
      const RowUse use = applied.uses[static_cast<size_t>(row)];
      const Ids got = applied.at(layer, row);
      if (const auto found = rows.find(id); found != rows.end()) {
        const auto first = found->second.begin() + column * top_k;
        RC_ASSERT(use == RowUse::kReplayed);
        RC_ASSERT(got == Ids(first, first + top_k));
        for (const int64_t expert : got) ++load[static_cast<size_t>(layer * num_experts + expert)];
      } else {
        RC_ASSERT(use == (id == 0 || id == -1 ? RowUse::kFill : RowUse::kLive));
        RC_ASSERT(std::set(got.begin(), got.end()).size() == got.size());
        RC_ASSERT(std::ranges::max(got) < num_experts);
      }
    }
  }

  RC_ASSERT(value_of(plan.expert_load(sources)) == load);
  Ids needed;
  std::ranges::copy_if(row_ids, std::back_inserter(needed), [](int64_t id) { return id > 0; });
  std::ranges::sort(needed);
  RC_ASSERT(positions_of(plan) == needed);
  RC_ASSERT(make_plan(plan.row_ids(), layers) == plan);
}

}  // namespace
}  // namespace moetape::inline v0
