#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "replay/test_plans.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_THAT(plan.needs(), ElementsAre(RowSpan{0, last, last + 1}, RowSpan{1, 0, 1}));
}

TEST(PlanNeeds, AreTheSmallestSpansInOrder) {
  const Plan plan = make_plan({row_id(3, 9), 0, row_id(0, 5), row_id(0, 6), -1, row_id(0, 2), row_id(0, 4)});
  EXPECT_THAT(plan.needs(), ElementsAre(RowSpan{0, 2, 3}, RowSpan{0, 4, 7}, RowSpan{3, 9, 10}));
  EXPECT_THAT(make_plan({}).needs(), IsEmpty());
  EXPECT_THAT(make_plan({0, -1, 0}).needs(), IsEmpty());
}

// case I10
TEST(PlanNeeds, ZigZagCutsEachSequence) {
  const std::vector<Ids> one = {sequence_ids(0, 8, 8)};
  EXPECT_THAT(make_plan(zigzag(one, 2, 0)).needs(), ElementsAre(RowSpan{0, 0, 2}, RowSpan{0, 6, 8}));
  EXPECT_THAT(make_plan(zigzag(one, 2, 1)).needs(), ElementsAre(RowSpan{0, 2, 6}));

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

TEST(PlanLoad, CountsTheRecordedRowsOfItsLayers) {
  const RouteSpec spec = make_spec({.layers = {1, 4}, .top_k = 2, .num_experts = 300});
  const std::vector sources = {make_routes(spec, {0, 1, 2, 3, 0, 2, 3, 299, 5, 6, 7, 8}, {1, 1, 0}, 10)};
  const Plan plan = make_plan({row_id(0, 9), row_id(0, 10), 0, row_id(0, 11), row_id(0, 12)}, {{4, 1}});
  std::vector<int64_t> expected(600);
  expected[2] = expected[299] = expected[300 + 1] = expected[300 + 2] = 1;
  expected[3] = expected[300 + 0] = 2;
  EXPECT_EQ(value_of(plan.expert_load(sources)), expected);
  expect_error(plan.expert_load({}), ErrorCode::kInvalidArgument, "sources");
  expect_error(make_plan({row_id(1, 0)}).expert_load(sources), ErrorCode::kOutOfRange, "sequence 1");
}

TEST(PlanRowIds, AreGivenBackWithPaddingAsZero) {
  const Ids ids = {row_id(1, 3), -1, 0, row_id(0, 7), row_id(0, 8)};
  const Plan plan = make_plan(ids, {{4, 2}});
  EXPECT_THAT(plan.row_ids(), ElementsAre(row_id(1, 3), 0, 0, row_id(0, 7), row_id(0, 8)));
  EXPECT_EQ(make_plan(plan.row_ids(), plan.layers()), plan);
  EXPECT_NE(make_plan(plan.row_ids()), plan);
}

TEST(PlanVerify, PassesOverWhatProvesNothing) {
  const auto source = random_routes(small_spec(), 10, 3, 12);
  const auto with_tokens = *source.with_tokens(std::vector<int32_t>{5, 6, 7});
  const Plan plan = make_plan({0, row_id(0, 9), row_id(0, 10), row_id(0, 12), row_id(0, 13), -1});
  EXPECT_EQ(value_of(plan.verify(std::vector{source}, std::vector<int32_t>{9, 9, 9, 9, 9, 9})), 0);
  EXPECT_EQ(value_of(plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9, 9, 5, 7, 9, 9})), 2);

  const auto wrong = plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9, 9, 5, 6, 9, 9});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kConflict);
  EXPECT_EQ(wrong.error().message,
            "tokens: row 3 (sequence 0, position 12): expected the recorded token 7, got 6");
  const auto few = plan.verify(std::vector{with_tokens}, std::vector<int32_t>{9});
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::kWrongShape);
}

}  // namespace
}  // namespace moetape::inline v0
