#include "moetape/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Ids = std::vector<int64_t>;

RouteSpec make_spec(RouteSpecFields fields) {
  auto spec = RouteSpec::create(std::move(fields));
  EXPECT_TRUE(spec) << spec.error().message;
  return *spec;
}

RouteSpec small_spec() { return make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}); }

// Different ids in every list.
Ids random_ids(const RouteSpec& spec, int64_t num_rows, std::mt19937_64& random) {
  Ids ids;
  for (int64_t list = 0; list < num_rows * spec.num_moe_layers(); ++list) {
    Ids chosen;
    while (std::ssize(chosen) < spec.top_k()) {
      const auto id = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.num_experts()));
      if (std::ranges::find(chosen, id) == chosen.end()) chosen.push_back(id);
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

Routes make_routes(const RouteSpec& spec, int64_t start, const Ids& ids, std::vector<uint8_t> valid = {}) {
  const auto num_rows = std::ssize(ids) / (spec.num_moe_layers() * spec.top_k());
  auto routes = Routes::from_ids(
      spec, start, {.ids = ids.data(), .type = IntType::kInt64, .num_rows = num_rows, .valid = valid});
  EXPECT_TRUE(routes) << routes.error().message;
  return *routes;
}

Routes random_routes(const RouteSpec& spec, int64_t start, int64_t num_rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  return make_routes(spec, start, random_ids(spec, num_rows, random));
}

// Ids of row `index` of `routes` at one of its columns.
Ids recorded(const Routes& routes, int64_t index, int64_t column) {
  Ids ids;
  const RouteSpec& spec = routes.spec();
  for (int64_t i = 0; i < spec.top_k(); ++i) {
    uint16_t id = 0;
    std::memcpy(&id, routes.row(index).data() + (column * spec.top_k() + i) * spec.id_bytes(),
                static_cast<size_t>(spec.id_bytes()));
    ids.push_back(id);
  }
  return ids;
}

Plan make_plan(const Ids& row_ids, std::vector<int32_t> layers = {}) {
  auto plan = Plan::from_row_ids(row_ids, std::move(layers));
  EXPECT_TRUE(plan) << plan.error().message;
  return *plan;
}

struct Applied {
  int64_t num_rows;
  int64_t top_k;
  Ids ids;  // [layers, rows, k]
  std::vector<RowUse> uses;

  Ids at(int64_t layer, int64_t row) const {
    const auto first = ids.begin() + (layer * num_rows + row) * top_k;
    return {first, first + top_k};
  }
};

Applied run(const Plan& plan, const std::vector<Routes>& sources) {
  const RouteSpec& spec = sources.at(0).spec();
  const auto num_layers =
      plan.layers().empty() ? spec.num_moe_layers() : static_cast<int32_t>(plan.layers().size());
  Applied applied{plan.num_rows(), spec.top_k(), {}, {}};
  applied.ids.assign(static_cast<size_t>(num_layers * plan.num_rows() * spec.top_k()), -7);
  applied.uses.resize(static_cast<size_t>(plan.num_rows()));
  const auto written =
      plan.apply(sources, IntType::kInt64, std::as_writable_bytes(std::span(applied.ids)), applied.uses);
  EXPECT_TRUE(written) << written.error().message;
  EXPECT_EQ(*written, num_layers);
  return applied;
}

// Row ids of one sequence, padded behind to `padded` rows as a trainer pads its tokens.
Ids sequence_ids(int64_t sequence, int64_t length, int64_t padded, int64_t padding = 0) {
  Ids ids(static_cast<size_t>(padded), padding);
  for (int64_t i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = row_id(sequence, i);
  return ids;
}

// Zig-zag context parallelism: rank r takes chunks r and 2·size-1-r of each sequence.
Ids zigzag(const std::vector<Ids>& sequences, int64_t size, int64_t rank) {
  Ids cut;
  for (const Ids& ids : sequences) {
    const int64_t chunk = std::ssize(ids) / (2 * size);
    for (const int64_t part : {rank, 2 * size - 1 - rank}) {
      cut.insert(cut.end(), ids.begin() + part * chunk, ids.begin() + (part + 1) * chunk);
    }
  }
  return cut;
}

Ids positions_of(const Plan& plan) {
  Ids positions;
  for (const Need& need : plan.needs()) {
    for (int64_t i = need.start; i < need.end; ++i) positions.push_back(row_id(need.sequence, i));
  }
  return positions;
}

TEST(PlanRowIds, AreSequenceAndPosition) {
  EXPECT_EQ(row_id(0, 0), int64_t{1} << 32);
  EXPECT_EQ(row_id(2, 5), (int64_t{3} << 32) + 5);
}

TEST(PlanRowIds, RefusesWhatIsNeitherPaddingNorARowId) {
  for (const int64_t bad : {int64_t{1}, int64_t{7}, (int64_t{1} << 32) - 1, int64_t{-2}, -row_id(0, 1)}) {
    const auto plan = Plan::from_row_ids(Ids{row_id(0, 0), bad});
    ASSERT_FALSE(plan) << bad;
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(plan.error().message, HasSubstr("row 1"));
    EXPECT_THAT(plan.error().message, HasSubstr(std::to_string(bad)));
  }
}

TEST(PlanRowIds, RefusesAnIdThatStandsTwice) {
  const Ids ids = {row_id(0, 4), row_id(0, 5), 0, row_id(1, 5), row_id(0, 3), row_id(0, 4)};
  const auto plan = Plan::from_row_ids(ids);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(plan.error().message, HasSubstr("position 4 of sequence 0 at rows 5 and 0"));
}

TEST(PlanRowIds, RefusesBadLayers) {
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{3, 1, 3}, std::vector<int32_t>{-1, 2}}) {
    const auto plan = Plan::from_row_ids(Ids{row_id(0, 0)}, layers);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(plan.error().message, HasSubstr("layers"));
  }
}

TEST(PlanRowIds, TheLastPositionAndTheNextSequenceAreNoRun) {
  const int64_t last = (int64_t{1} << 32) - 1;
  const Plan plan = make_plan({row_id(0, last), row_id(1, 0)});
  EXPECT_THAT(plan.needs(), ElementsAre(Need{0, last, last + 1}, Need{1, 0, 1}));
}

TEST(PlanNeeds, AreTheSmallestSpansInOrder) {
  const Plan plan = make_plan({row_id(3, 9), 0, row_id(0, 5), row_id(0, 6), -1, row_id(0, 2), row_id(0, 4)});
  EXPECT_THAT(plan.needs(), ElementsAre(Need{0, 2, 3}, Need{0, 4, 7}, Need{3, 9, 10}));
  EXPECT_THAT(make_plan({}).needs(), IsEmpty());
  EXPECT_THAT(make_plan({0, -1, 0}).needs(), IsEmpty());
}

// case I10
TEST(PlanNeeds, ZigZagCutsEachSequence) {
  const std::vector<Ids> one = {sequence_ids(0, 8, 8)};
  EXPECT_THAT(make_plan(zigzag(one, 2, 0)).needs(), ElementsAre(Need{0, 0, 2}, Need{0, 6, 8}));
  EXPECT_THAT(make_plan(zigzag(one, 2, 1)).needs(), ElementsAre(Need{0, 2, 6}));

  const std::vector<Ids> two = {sequence_ids(0, 4, 4), sequence_ids(1, 4, 4)};
  const auto routes = std::vector{random_routes(small_spec(), 0, 4, 1), random_routes(small_spec(), 0, 4, 2)};
  // Rows of the batch: sequence 0 is 0..3, sequence 1 is 4..7.
  const auto batch_rows = [&](int64_t rank) {
    const Applied applied = run(make_plan(zigzag(two, 2, rank)), routes);
    Ids rows;
    for (int64_t row = 0; row < applied.num_rows; ++row) {
      const int64_t first = row < 2 ? 0 : 4;
      for (int64_t position = 0; position < 4; ++position) {
        const Routes& source = routes[static_cast<size_t>(first / 4)];
        if (applied.at(0, row) == recorded(source, position, 0) &&
            applied.at(1, row) == recorded(source, position, 1))
          rows.push_back(first + position);
      }
    }
    return rows;
  };
  EXPECT_THAT(batch_rows(0), ElementsAre(0, 3, 4, 7));
  EXPECT_THAT(batch_rows(1), ElementsAre(1, 2, 5, 6));
}

// case K02
TEST(PlanNeeds, RanksShareTheRowsWithoutOverlap) {
  Ids all;
  for (int64_t sequence = 0; sequence < 10; ++sequence) {
    const Ids ids = sequence_ids(sequence, 16, 16);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  Ids shares;
  for (int64_t dp = 0; dp < 2; ++dp) {
    std::vector<Ids> local;
    for (int64_t sequence = dp; sequence < 10; sequence += 2) local.push_back(sequence_ids(sequence, 16, 16));
    for (int64_t cp = 0; cp < 2; ++cp) {
      const Ids share = positions_of(make_plan(zigzag(local, 2, cp)));
      EXPECT_EQ(std::ssize(share) * 4, std::ssize(all));
      shares.insert(shares.end(), share.begin(), share.end());
    }
  }
  std::ranges::sort(shares);
  EXPECT_EQ(shares, all);
}

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
  const auto with_tokens = make_routes(spec, 0, {1, 2, 3, 4}).with_tokens(std::vector<int32_t>{70, 71});
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
  const auto partial = std::vector{make_routes(spec, 0, {0, 1, 2, 3, -1, -1, -1, -1}, {1, 0})};
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
  const auto routes = std::vector{make_routes(spec, 0, {5, 6, 7})};
  EXPECT_THAT(run(make_plan({row_id(0, 0)}, {4}), routes).ids, ElementsAre(6));
  EXPECT_THAT(run(make_plan({row_id(0, 0)}, {5, 3}), routes).ids, ElementsAre(7, 5));

  Ids ids(2);
  std::vector<RowUse> uses(1);
  const auto written = make_plan({row_id(0, 0)}, {1})
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

  const Plan plan = make_plan(sequence_ids(0, 1000, 1000), {layers.begin() + 12, layers.begin() + 24});
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

  const auto small = std::vector{make_routes(spec, 0, {511, 3, 32767, 256})};
  std::vector<int16_t> int16(6);
  ASSERT_TRUE(plan.apply(small, IntType::kInt16, std::as_writable_bytes(std::span(int16)), uses));
  EXPECT_THAT(std::span(int16).first(4), ElementsAre(511, 3, 32767, 256));

  const auto large = std::vector{make_routes(spec, 0, {511, 3, 7, 40000})};
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

TEST(PlanVerify, PassesOverWhatProvesNothing) {
  const auto source = random_routes(small_spec(), 10, 3, 12);
  const auto with_tokens = *source.with_tokens(std::vector<int32_t>{5, 6, 7});
  const Plan plan = make_plan({0, row_id(0, 9), row_id(0, 10), row_id(0, 12), row_id(0, 13), -1});
  EXPECT_TRUE(plan.verify(std::vector{source}, std::vector<int32_t>{9, 9, 9, 9, 9, 9}));
  EXPECT_TRUE(plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9, 9, 5, 7, 9, 9}));

  const auto wrong = plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9, 9, 5, 6, 9, 9});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kConflict);
  EXPECT_EQ(wrong.error().message,
            "tokens: row 3 (sequence 0, position 12): expected the recorded token 7, got 6");
  const auto few = plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9});
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::kWrongShape);
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
    sources.push_back(make_routes(spec, start, ids, valid));
  }

  Ids row_ids;
  for (int64_t sequence = 0; sequence < std::ssize(sources); ++sequence) {
    for (int64_t position = 0; position < 130; ++position) row_ids.push_back(row_id(sequence, position));
  }
  row_ids.insert(row_ids.end(), static_cast<size_t>(draw(30)), -draw(2));
  if (draw(2) == 0) std::ranges::shuffle(row_ids, random);
  row_ids.resize(static_cast<size_t>(draw(std::ssize(row_ids) + 1)));
  std::vector<int32_t> layers = moe_layers;
  std::ranges::shuffle(layers, random);
  layers.resize(static_cast<size_t>(draw(std::ssize(layers) + 1)));

  const Applied applied = run(make_plan(row_ids, layers), sources);
  const auto wanted = layers.empty() ? moe_layers : layers;
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
      } else {
        RC_ASSERT(use == (id == 0 || id == -1 ? RowUse::kFill : RowUse::kLive));
        RC_ASSERT(std::set(got.begin(), got.end()).size() == got.size());
        RC_ASSERT(std::ranges::max(got) < num_experts);
      }
    }
  }

  Ids needed;
  std::ranges::copy_if(row_ids, std::back_inserter(needed), [](int64_t id) { return id > 0; });
  std::ranges::sort(needed);
  RC_ASSERT(positions_of(make_plan(row_ids)) == needed);
}

}  // namespace
}  // namespace moetape::inline v0
