#include "moetape/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "replay/test_plans.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Tape make_tape(const RouteSpec& spec, const std::vector<Routes>& routes, const TapeOptions& options = {}) {
  return value_of(Tape::from_bytes(value_of(tape_bytes(spec, routes, {}, options))));
}

Applied run(const Plan& plan, const Tape& tape, const Ids& sequences = {}) {
  return run_with(plan, tape.spec(), [&](IntType type, auto out, auto& uses) {
    return plan.apply(tape, sequences, type, out, uses);
  });
}

// case E06, K02
TEST(PlanTape, ARankReadsItsPositionsAndLayersOnly) {
  const RouteSpec spec = make_spec({.layers = {1, 2, 5, 6}, .top_k = 2, .num_experts = 8});
  const std::vector routes = {random_routes(spec, 0, 40, 1), random_routes(spec, 3, 2500, 2)};
  const Plan plan = make_plan({row_id(1, 2400), row_id(1, 2401), 0, row_id(0, 7), row_id(1, 2)}, {{6, 1}});
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    Buffer bytes = value_of(tape_bytes(spec, routes, {}, {.codec = codec, .layer_groups = {{1, 6}, {2, 5}}}));
    const Applied expected = run(plan, routes);
    EXPECT_THAT(expected.uses, ElementsAre(RowUse::kReplayed, RowUse::kReplayed, RowUse::kFill,
                                           RowUse::kReplayed, RowUse::kLive));
    // Other blocks and groups may be damaged: nobody looks at them.
    const Tape tape = value_of(Tape::from_bytes(bytes));
    for (const TapeTensor& tensor : tape.files()[0].tensors) {
      if (tensor.name.starts_with("ids.g1")) {
        std::fill_n(bytes.mutable_data() + tensor.offset, tensor.num_bytes, std::byte{0x5a});
      } else if (tensor.name.starts_with("ids.g0")) {
        const int64_t row_bytes = tensor.num_bytes / 2540;
        std::fill_n(bytes.mutable_data() + tensor.offset + 40 * row_bytes, 500 * row_bytes, std::byte{0x5a});
      }
    }
    const Applied applied = run(plan, tape);
    EXPECT_EQ(applied.ids, expected.ids);
    EXPECT_EQ(applied.uses, expected.uses);
    const Plan damaged = make_plan({row_id(1, 100)}, {{6, 1}});
    std::vector<std::byte> out(1000);
    std::vector<RowUse> uses(1);
    expect_error(damaged.apply(tape, {}, IntType::kInt64, out, uses), ErrorCode::kCorruptData, "sequence 1");
  }
}

TEST(PlanTape, SequencesOfThePlanAreFoundOnTheTape) {
  const RouteSpec spec = small_spec();
  const std::vector routes = {random_routes(spec, 0, 3, 1), random_routes(spec, 0, 4, 2),
                              random_routes(spec, 0, 5, 3)};
  const Tape tape = make_tape(spec, routes);
  const Plan plan = make_plan({row_id(1, 2), row_id(0, 1)});
  EXPECT_EQ(run(plan, tape, {2, 0}).ids, run(plan, std::vector{routes[2], routes[0]}).ids);
  EXPECT_EQ(run(plan, tape).ids, run(plan, routes).ids);
  EXPECT_EQ(value_of(plan.expert_load(tape, Ids{2, 0})),
            value_of(plan.expert_load(std::vector{routes[2], routes[0]})));

  std::vector<std::byte> out(1000);
  std::vector<RowUse> uses(2);
  expect_error(plan.apply(tape, Ids{1}, IntType::kInt64, out, uses), ErrorCode::kOutOfRange,
               "sequences: expected one for sequence 1 of the plan, got 1");
  expect_error(plan.apply(tape, Ids{0, 3}, IntType::kInt64, out, uses), ErrorCode::kOutOfRange, "3");
  expect_error(make_plan({row_id(0, 0)}, {{7}}).apply(tape, {}, IntType::kInt64, out, uses),
               ErrorCode::kOutOfRange, "7");
}

TEST(PlanTape, TokensProveTheAlignment) {
  const std::vector routes = {
      *random_routes(small_spec(), 10, 3, 12).with_tokens(std::vector<int32_t>{5, 6, 7})};
  const Tape tape = make_tape(small_spec(), routes);
  const Plan plan = make_plan({row_id(0, 12), row_id(0, 9), row_id(0, 10), 0});
  EXPECT_EQ(value_of(plan.verify(tape, {}, std::vector<int32_t>{7, 1, 5, 2})), 2);
  expect_error(plan.verify(tape, {}, std::vector<int32_t>{7, 1, 6, 2}), ErrorCode::kConflict,
               "row 2 (sequence 0, position 10)");
}

// case I22
TEST(PlanTape, NoRowsAndNoLayersAreLegal) {
  const Tape tape = make_tape(small_spec(), {value_of(Routes::empty(small_spec(), 0))});
  EXPECT_THAT(run(make_plan({row_id(0, 0), 0}), tape).uses, ElementsAre(RowUse::kLive, RowUse::kFill));
  EXPECT_THAT(run(make_plan({}), tape).ids, IsEmpty());
  const Applied dense = run(make_plan({row_id(0, 0), 0}, std::vector<int32_t>()), tape);
  EXPECT_THAT(dense.ids, IsEmpty());
  EXPECT_THAT(dense.uses, ElementsAre(RowUse::kLive, RowUse::kFill));
}

RC_GTEST_PROP(PlanTapeRandom, AgreesWithRoutes, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  };
  const RouteSpec spec =
      make_spec({.layers = {0, 2, 3, 7}, .top_k = 3, .num_experts = 200 + 100 * (draw(2) != 0)});
  std::vector<Routes> routes;
  Ids row_ids;
  for (int64_t sequence = 0, count = 1 + draw(3); sequence < count; ++sequence) {
    const int64_t num_rows = draw(30);
    std::vector<uint8_t> valid(static_cast<size_t>(num_rows));
    for (uint8_t& flag : valid) flag = draw(6) != 0;
    routes.push_back(make_routes(spec, random_ids(spec, num_rows, random), valid, draw(4)));
    for (int64_t position = 0; position < 35; ++position) row_ids.push_back(row_id(sequence, position));
  }
  row_ids.insert(row_ids.end(), 5, 0);
  if (draw(2) == 0) std::ranges::shuffle(row_ids, random);
  row_ids.resize(static_cast<size_t>(draw(std::ssize(row_ids) + 1)));
  std::vector<int32_t> layers = {7, 0, 3, 2};
  std::ranges::shuffle(layers, random);
  layers.resize(static_cast<size_t>(draw(5)));
  const Plan plan = make_plan(row_ids, draw(4) == 0 ? std::nullopt : std::optional(layers));

  TapeOptions options{.codec = draw(2) == 0 ? Codec::kNone : Codec::kBitpack};
  if (draw(2) == 0) options.layer_groups = {{0, 7}, {2, 3}};
  const Tape tape = make_tape(spec, routes, options);
  const Applied expected = run(plan, routes);
  const Applied applied = run(plan, tape);
  RC_ASSERT(applied.ids == expected.ids);
  RC_ASSERT(applied.uses == expected.uses);
  RC_ASSERT(value_of(plan.expert_load(tape)) == value_of(plan.expert_load(routes)));
}

}  // namespace
}  // namespace moetape::inline v0
