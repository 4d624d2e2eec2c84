#include "moetape/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/test_util.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int32_t> layers_of(const RouteSpec& spec, const std::vector<int32_t>& chunks, int32_t size,
                               int32_t rank, std::optional<int32_t> virtual_stage = {}) {
  return value_of(pipeline_layers(spec, chunks, size, rank, virtual_stage));
}

std::vector<int32_t> from_to(int32_t first, int32_t end) {
  std::vector<int32_t> layers(static_cast<size_t>(end - first));
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

TEST(Pipeline, CutsEvenly) {
  EXPECT_THAT(value_of(pipeline_chunks(8, {.size = 2})), ElementsAre(4, 4));
  EXPECT_THAT(value_of(pipeline_chunks(8, {.size = 2, .virtual_size = 4})),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(value_of(pipeline_chunks(61, {})), ElementsAre(61));
}

TEST(Pipeline, FirstAndLastRankMayDiffer) {
  EXPECT_THAT(value_of(pipeline_chunks(61, {.size = 4, .first = 14, .last = 15})),
              ElementsAre(14, 16, 16, 15));
  EXPECT_THAT(value_of(pipeline_chunks(10, {.size = 2, .last = 4})), ElementsAre(6, 4));
  EXPECT_THAT(value_of(pipeline_chunks(20, {.size = 3, .virtual_size = 2, .first = 4})),
              ElementsAre(2, 4, 4, 2, 4, 4));
}

TEST(Pipeline, EmbeddingAndLossTakeTheRoomOfALayer) {
  EXPECT_THAT(value_of(pipeline_chunks(14, {.size = 4, .embedding = true, .loss = true})),
              ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(value_of(pipeline_chunks(7, {.size = 2, .virtual_size = 2, .loss = true})),
              ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(value_of(pipeline_chunks(2, {.size = 4, .embedding = true, .loss = true})),
              ElementsAre(0, 1, 1, 0));
}

// case G01, G02
TEST(Pipeline, DenseLayersHaveNoRoutes) {
  const RouteSpec spec = make_spec({.layers = from_to(3, 61), .top_k = 8, .num_experts = 256});
  const std::vector<int32_t> chunks = {2, 20, 20, 19};
  EXPECT_THAT(layers_of(spec, chunks, 4, 0), IsEmpty());
  EXPECT_EQ(layers_of(spec, chunks, 4, 1), from_to(3, 22));
  EXPECT_EQ(layers_of(spec, chunks, 4, 3), from_to(42, 61));
  const RouteSpec small = make_spec({.layers = {1, 2}, .top_k = 1, .num_experts = 2});
  EXPECT_THAT(layers_of(small, {3}, 1, 0), ElementsAre(1, 2));
}

TEST(Pipeline, VirtualStagesOfARankAreNotNeighbours) {
  const RouteSpec spec = make_spec({.layers = from_to(1, 8), .top_k = 1, .num_experts = 2});
  const auto chunks = value_of(pipeline_chunks(8, {.size = 2, .virtual_size = 2}));
  EXPECT_THAT(layers_of(spec, chunks, 2, 0), ElementsAre(1, 4, 5));
  EXPECT_THAT(layers_of(spec, chunks, 2, 0, 0), ElementsAre(1));
  EXPECT_THAT(layers_of(spec, chunks, 2, 0, 1), ElementsAre(4, 5));
  EXPECT_THAT(layers_of(spec, chunks, 2, 1, 1), ElementsAre(6, 7));
}

TEST(Pipeline, RefusesWhatDoesNotComeOutEven) {
  const auto refused = [](int32_t num_layers, const PipelineSplit& split, const std::string& text) {
    expect_error(pipeline_chunks(num_layers, split), ErrorCode::kInvalidArgument, text);
  };
  refused(61, {.size = 4}, "a multiple of 4 layers on the ranks, got 61");
  refused(8, {.size = 2, .virtual_size = 3}, "a multiple of 3 layers in the virtual stages, got 4");
  refused(10, {.size = 4, .first = 5, .last = 4}, "a multiple of 2 layers on the ranks, got 1");
  refused(10, {.size = 2, .first = 5, .last = 4}, "expected 10 layers on the first and last rank, got 9");
  refused(10, {.size = 1, .first = 5, .last = 5}, "2 or more ranks");
  refused(10, {.size = 3, .first = 11, .last = 5}, "got -6");
  refused(10, {.size = 2, .first = 5, .loss = true}, "got both");
  refused(0, {}, "got 0, 1 and 1");
  refused(4, {.size = 0}, "got 4, 0 and 1");
  refused(4, {.virtual_size = 0}, "got 4, 1 and 0");
}

TEST(Pipeline, RefusesRanksAndChunksThatDoNotExist) {
  const RouteSpec spec = make_spec({.layers = {2, 5}, .top_k = 1, .num_experts = 2});
  const std::vector<int32_t> chunks = {3, 3};
  expect_error(pipeline_layers(spec, chunks, 2, 2), ErrorCode::kOutOfRange, "rank: expected 0 to 1, got 2");
  expect_error(pipeline_layers(spec, chunks, 2, 0, 1), ErrorCode::kOutOfRange,
               "virtual_stage: expected 0 to 0");
  expect_error(pipeline_layers(spec, chunks, 3, 0), ErrorCode::kInvalidArgument, "multiple of 3 ranks");
  expect_error(pipeline_layers(spec, std::vector<int32_t>{}, 1, 0), ErrorCode::kInvalidArgument,
               "got 0 chunks");
  expect_error(pipeline_layers(spec, std::vector<int32_t>{7, -1}, 1, 0), ErrorCode::kInvalidArgument,
               "chunks");
  expect_error(pipeline_layers(spec, std::vector<int32_t>{3, 2}, 2, 0), ErrorCode::kInvalidArgument,
               "expected 6 layers or more, as the spec's last is 5, got 5 in all");
}

// case G10
RC_GTEST_PROP(PipelineRandom, RanksShareTheLayersWithoutOverlap, ()) {
  const int32_t size = *rc::gen::inRange(1, 5);
  const int32_t virtual_size = *rc::gen::inRange(1, 4);
  const auto chunks = *rc::gen::container<std::vector<int32_t>>(static_cast<size_t>(size * virtual_size),
                                                                rc::gen::inRange(0, 5));
  const int32_t num_layers = std::accumulate(chunks.begin(), chunks.end(), 0);
  RC_PRE(num_layers > 0);
  std::vector<int32_t> moe_layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (layer == num_layers - 1 || *rc::gen::arbitrary<bool>()) moe_layers.push_back(layer);
  }
  const RouteSpec spec = make_spec({.layers = moe_layers, .top_k = 1, .num_experts = 2});
  std::vector<int32_t> all;
  for (int32_t rank = 0; rank < size; ++rank) {
    std::vector<int32_t> stages;
    for (int32_t stage = 0; stage < virtual_size; ++stage) {
      std::ranges::copy(layers_of(spec, chunks, size, rank, stage), std::back_inserter(stages));
    }
    RC_ASSERT(stages == layers_of(spec, chunks, size, rank));
    all.insert(all.end(), stages.begin(), stages.end());
  }
  std::ranges::sort(all);
  RC_ASSERT(all == moe_layers);
}

}  // namespace
}  // namespace moetape::inline v0
