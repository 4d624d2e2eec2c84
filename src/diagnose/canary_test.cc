#include "moetape/canary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/test_util.h"
#include "diagnose/list_code.h"
#include "moetape/row_ids.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

using testing::HasSubstr;

std::vector<int32_t> layers_from(int32_t first, int32_t count) {
  std::vector<int32_t> layers(static_cast<size_t>(count));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

RouteSpec deepseek() { return make_spec({.layers = layers_from(3, 58), .top_k = 8, .num_experts = 256}); }

// As trainers hold them: int64 [rows, layers, k], and whose rows they are.
struct Batch {
  explicit Batch(RouteSpec of) : spec(std::move(of)) {}

  void add(const Routes& routes, int64_t sequence) {
    for (int64_t row = 0; row < routes.num_rows(); ++row) {
      const std::byte* bytes = routes.row(row).data();
      for (int64_t i = 0; i < spec.num_moe_layers() * spec.top_k(); ++i) {
        uint16_t id = 0;
        std::memcpy(&id, bytes + i * spec.id_bytes(), static_cast<size_t>(spec.id_bytes()));
        ids.push_back(id);
      }
      row_ids.push_back(row_id(sequence, routes.start() + row));
    }
  }
  int64_t* list(int64_t row, int64_t column) {
    return ids.data() + (row * spec.num_moe_layers() + column) * spec.top_k();
  }
  ListsView view() const {
    return {ids.data(),          IntType::kInt64,
            std::ssize(row_ids), spec.num_moe_layers(),
            spec.top_k(),        {spec.num_moe_layers() * spec.top_k(), spec.top_k(), 1}};
  }

  RouteSpec spec;
  std::vector<int64_t> ids = {};
  std::vector<int64_t> row_ids = {};
};

CanaryReport checked(const Canary& canary, const Batch& batch) {
  return value_of(canary.check(batch.view(), batch.row_ids));
}

TEST(ListCodes, EveryNumberHasItsOwnSet) {
  for (const auto& [num_experts, top_k] : {std::pair(8, 2), {1, 1}, {7, 7}, {12, 5}, {64, 1}, {9, 8}}) {
    const ListCode code = value_of(ListCode::create(num_experts, top_k));
    std::set<std::vector<int32_t>> sets;
    std::vector<int32_t> ids(static_cast<size_t>(top_k));
    std::vector<int32_t> scratch(ids);
    for (uint64_t number = 0; number < code.capacity(); ++number) {
      code.encode(number, ids);
      ASSERT_EQ(code.decode(ids, scratch), number);
      std::ranges::sort(ids);
      ASSERT_EQ(code.decode(ids, scratch), number) << "another order";
      sets.insert(ids);
    }
    EXPECT_EQ(sets.size(), code.capacity());
  }
  EXPECT_EQ(value_of(ListCode::create(8, 2)).capacity(), 28u);
  EXPECT_EQ(value_of(ListCode::create(256, 8)).capacity(), 409'663'695'276'000u);
}

TEST(ListCodes, MoreSetsThanNumbersAreUsedFromEndToEnd) {
  for (const auto& [num_experts, top_k] : {std::pair(512, 10), {512, 22}, {1024, 64}, {65'536, 8}}) {
    const ListCode code = value_of(ListCode::create(num_experts, top_k));
    EXPECT_EQ(code.capacity(), uint64_t{1} << 62);
    std::mt19937_64 random(1);
    std::vector<int32_t> ids(static_cast<size_t>(top_k));
    std::vector<int32_t> scratch(ids);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t number = random() >> 2;
      code.encode(number, ids);
      ASSERT_EQ(code.decode(ids, scratch), number);
    }
  }
}

TEST(ListCodes, WhatNoNumberHasIsNotRead) {
  const ListCode code = value_of(ListCode::create(512, 10));
  std::mt19937_64 random(2);
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 10, .num_experts = 512});
  std::vector<int32_t> scratch(10);
  int64_t num_read = 0;
  for (int i = 0; i < 1000; ++i) {
    const Ids ids = random_ids(spec, 1, random);
    num_read += code.decode(std::vector<int32_t>(ids.begin(), ids.end()), scratch) ? 1 : 0;
  }
  EXPECT_LT(num_read, 50);  // one set in 67 has a number
  EXPECT_FALSE(code.decode(std::vector<int32_t>(10, 3), scratch));
  EXPECT_FALSE(code.decode(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 512}, scratch));
  EXPECT_FALSE(code.decode(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, -1}, scratch));
}

TEST(Canaries, EveryListNamesItsPlace) {
  const Canary canary = value_of(Canary::create(deepseek()));
  EXPECT_EQ(canary.max_length(), int64_t{1} << 20);
  EXPECT_GT(canary.num_sequences(), 1'000'000);
  const Routes routes = value_of(canary.routes(77, 20, 300'000));
  EXPECT_TRUE(routes.complete());
  Batch batch(canary.spec());
  batch.add(routes, 77);
  for (int64_t row = 0; row < 20; ++row) {
    for (int32_t column = 0; column < 58; ++column) {
      const int64_t* list = batch.list(row, column);
      const std::vector<int32_t> ids(list, list + 8);
      EXPECT_EQ(canary.decode(ids), (CanaryPlace{77, 300'000 + row, column + 3}));
    }
  }
  // Valid for those who check: different ids, all in range.
  EXPECT_TRUE(Routes::from_ids(canary.spec(), 300'000, {batch.ids.data(), IntType::kInt64, 20}));
  EXPECT_TRUE(checked(canary, batch).all_right());
  EXPECT_EQ(checked(canary, batch).num_right, 20 * 58);
}

TEST(Canaries, LoadTheExpertsEvenly) {
  for (const auto& [num_experts, top_k] : {std::pair(256, 8), {512, 10}, {64, 6}}) {
    const RouteSpec spec =
        make_spec({.layers = layers_from(0, 4), .top_k = top_k, .num_experts = num_experts});
    Batch batch(spec);
    batch.add(value_of(canary(spec, 0, 2000)), 0);
    std::vector<int64_t> load(static_cast<size_t>(num_experts));
    for (const int64_t id : batch.ids) ++load[static_cast<size_t>(id)];
    const double mean = 8000.0 * top_k / num_experts;
    EXPECT_LT(static_cast<double>(*std::ranges::max_element(load)), 1.6 * mean);
    EXPECT_GT(static_cast<double>(*std::ranges::min_element(load)), 0.4 * mean);
  }
}

TEST(Canaries, AMisplacedRowNamesWhereItCameFrom) {
  const Canary canary = value_of(Canary::create(deepseek()));
  Batch batch(canary.spec());
  batch.add(value_of(canary.routes(0, 40)), 0);
  batch.add(value_of(canary.routes(1, 20)), 1);
  const int64_t column = 14;  // layer 17
  for (int64_t row = 10; row < 39; ++row)
    std::copy_n(batch.list(row + 1, column), 8, batch.list(row, column));
  const CanaryReport report = checked(canary, batch);
  EXPECT_EQ(report.num_misplaced, 29);
  ASSERT_EQ(report.runs.size(), 1u);
  EXPECT_EQ(report.runs[0], (CanaryRun{.layer = 17,
                                       .first_row = 10,
                                       .num_rows = 29,
                                       .wanted = {0, 10, 17},
                                       .found = CanaryPlace{0, 11, 17}}));
  EXPECT_THAT(report.text(), HasSubstr("layer 17 rows 10-38: want sequence 0 position 10, got position 11"));
}

TEST(Canaries, OtherLayersSequencesOrdersAndForeignListsAreToldApart) {
  const Canary canary = value_of(Canary::create(deepseek()));
  Batch batch(canary.spec());
  batch.add(value_of(canary.routes(4, 8)), 4);
  batch.add(value_of(canary.routes(5, 8)), 5);
  std::copy_n(batch.list(2, 7), 8, batch.list(2, 6));   // layer 9 holds layer 10
  std::copy_n(batch.list(11, 0), 8, batch.list(3, 0));  // sequence 4 holds sequence 5
  std::sort(batch.list(5, 1), batch.list(5, 1) + 8);    // layer 4
  std::fill_n(batch.list(6, 2), 8, 0);                  // layer 5: expert 0, eight times
  std::fill_n(batch.list(7, 2), 8, -1);
  batch.row_ids[9] = 0;
  batch.row_ids[10] = -1;
  const CanaryReport report = checked(canary, batch);
  EXPECT_EQ(report.num_padding, 2);
  EXPECT_EQ(report.num_reordered, 1);
  EXPECT_EQ(report.num_misplaced, 2);
  EXPECT_EQ(report.num_unreadable, 2);
  EXPECT_EQ(report.num_runs, 3);
  EXPECT_EQ(report.num_right, 14 * 58 - 5);
  EXPECT_THAT(report.text(),
              HasSubstr("layer 3 row 3: wants sequence 4 position 3, got sequence 5 position 3"));
  EXPECT_THAT(report.text(), HasSubstr("layer 9 row 2: wants sequence 4 position 2, got layer 10"));
  EXPECT_THAT(report.text(), HasSubstr("layer 5 rows 6-7: want sequence 4 position 6, got no list"));
}

TEST(Canaries, RunsAreCountedBeyondThoseThatAreKept) {
  const Canary canary = value_of(Canary::create(deepseek()));
  Batch batch(canary.spec());
  batch.add(value_of(canary.routes(0, 30)), 0);
  for (int64_t row = 0; row < 30; row += 2) std::fill_n(batch.list(row, 0), 8, 0);
  const CanaryReport report = value_of(canary.check(batch.view(), batch.row_ids, {}, 4));
  EXPECT_EQ(report.num_runs, 15);
  EXPECT_EQ(report.runs.size(), 4u);
  EXPECT_THAT(report.text(), HasSubstr("and 11 more"));
}

TEST(Canaries, APipelineStageIsCheckedByItsLayersAndInAnyLayout) {
  const Canary canary = value_of(Canary::create(deepseek()));
  const std::vector<int32_t> stage = {20, 21, 22};
  const Routes routes = value_of(canary.routes(3, 5));
  Batch batch(canary.spec());
  batch.add(routes, 3);
  std::vector<int32_t> by_layer(3 * 5 * 8);  // [layers, rows, k]
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t row = 0; row < 5; ++row) {
      std::copy_n(batch.list(row, layer + 17), 8, by_layer.begin() + (layer * 5 + row) * 8);
    }
  }
  const ListsView view{by_layer.data(), IntType::kInt32, 5, 3, 8, {8, 40, 1}};
  EXPECT_TRUE(value_of(canary.check(view, batch.row_ids, stage)).all_right());
  const std::vector<int32_t> wrong = {21, 22, 23};
  const CanaryReport report = value_of(canary.check(view, batch.row_ids, wrong));
  EXPECT_EQ(report.num_misplaced, 15);
  EXPECT_EQ(report.num_runs, 3);
  EXPECT_EQ(report.runs[0].found, (CanaryPlace{3, 0, 20}));
}

TEST(Canaries, SmallSpecsSayWhatTheyCannotCarry) {
  const RouteSpec tiny = make_spec({.layers = {0, 1, 2, 3}, .top_k = 2, .num_experts = 8});
  expect_error(canary(tiny, 0, 12), ErrorCode::kCapacity, "carry 7 sequences of 1 positions");
  expect_error(Canary::create(tiny, 8), ErrorCode::kCapacity, "carry 7 tokens of 4 layers");
  const Canary seven = value_of(Canary::create(tiny, 7));
  EXPECT_EQ(seven.num_sequences(), 1);
  Batch batch(tiny);
  batch.add(value_of(seven.routes(0, 7)), 0);
  EXPECT_TRUE(checked(seven, batch).all_right());
  const RouteSpec mixtral = make_spec({.layers = layers_from(0, 32), .top_k = 2, .num_experts = 8});
  expect_error(Canary::create(mixtral), ErrorCode::kCapacity, "lists of 2 of 8 experts carry 0 tokens");
  const RouteSpec moonlight = make_spec({.layers = layers_from(1, 26), .top_k = 6, .num_experts = 64});
  EXPECT_EQ(value_of(Canary::create(moonlight)).max_length(), 32'768);
  EXPECT_EQ(value_of(Canary::create(moonlight)).num_sequences(), 88);
}

TEST(Canaries, WrongUseIsRefusedByName) {
  const Canary canary = value_of(Canary::create(deepseek(), 1000));
  expect_error(canary.routes(0, 1001), ErrorCode::kCapacity, "1000 positions");
  expect_error(canary.routes(0, 1, 1000), ErrorCode::kCapacity, "1000 positions");
  expect_error(canary.routes(-1, 1), ErrorCode::kOutOfRange, "-1");
  expect_error(Canary::create(deepseek(), 0), ErrorCode::kInvalidArgument, "max_length");
  const RouteSpec repeats = make_spec({.layers = {0}, .top_k = 3, .num_experts = 2, .distinct = false});
  expect_error(Canary::create(repeats), ErrorCode::kUnsupported, "3 of 2");
  Batch batch(canary.spec());
  batch.add(value_of(canary.routes(0, 3)), 0);
  expect_error(canary.check(batch.view(), std::vector<int64_t>{0}), ErrorCode::kWrongShape, "row_ids");
  batch.row_ids[1] = 5;
  expect_error(canary.check(batch.view(), batch.row_ids), ErrorCode::kOutOfRange, "row 1");
  batch.row_ids[1] = row_id(0, 1000);
  expect_error(canary.check(batch.view(), batch.row_ids), ErrorCode::kOutOfRange, "row 1");
  batch.row_ids[1] = row_id(0, 1);
  const std::vector<int32_t> layers = {1, 2};
  expect_error(canary.check(batch.view(), batch.row_ids, layers), ErrorCode::kWrongShape, "[rows, 2, 8]");
  const std::vector<int32_t> foreign = layers_from(4, 58);
  expect_error(canary.check(batch.view(), batch.row_ids, foreign), ErrorCode::kOutOfRange, "61");
}

}  // namespace
}  // namespace moetape::inline v0
