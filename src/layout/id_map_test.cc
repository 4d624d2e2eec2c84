#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/test_util.h"
#include "moetape/layout.h"

namespace moetape::inline v0 {
namespace {

void expect_refused(const Result<IdMap>& map, const std::string& words) {
  expect_error(map, ErrorCode::kInvalidArgument, words);
}

// case A15: 64 routed experts on two ranks, each followed by one shared slot.
TEST(IdMap, TakesSharedSlotsOutOfDispatchIds) {
  const Result<IdMap> map = IdMap::interleaved_shared(64, 2, 1);
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(map->size(), 66);
  EXPECT_EQ((*map)(0), 0);
  EXPECT_EQ((*map)(31), 31);
  EXPECT_EQ((*map)(32), IdMap::kNoExpert);
  EXPECT_EQ((*map)(41), 40);
  EXPECT_EQ((*map)(64), 63);
  EXPECT_EQ((*map)(65), IdMap::kNoExpert);
  EXPECT_EQ((*map)(66), IdMap::kOutside);
  EXPECT_EQ((*map)(-1), IdMap::kOutside);
}

TEST(IdMap, InterleavedSharedInvertsTheDispatchMap) {
  for (const int32_t shared : {0, 1, 3}) {
    const Result<IdMap> map = IdMap::interleaved_shared(24, 4, shared);
    ASSERT_TRUE(map);
    ASSERT_EQ(map->size(), 24 + 4 * shared);
    int64_t num_shared = 0;
    for (int64_t physical = 0; physical < map->size(); ++physical) {
      const int64_t logical = (*map)(physical);
      if (logical == IdMap::kNoExpert) {
        ++num_shared;
      } else {
        EXPECT_EQ(logical + logical / 6 * shared, physical);
      }
    }
    EXPECT_EQ(num_shared, 4 * shared);
  }
}

// case H02: logical [3, 9] goes out as physical [12, 1] and comes back.
// case H05: both replicas of expert 3 are expert 3.
TEST(IdMap, MapsReplicasToTheirExpert) {
  std::vector<int32_t> to_logical(13, IdMap::kNoExpert);
  to_logical[12] = 3;
  to_logical[7] = 3;
  to_logical[1] = 9;
  const Result<IdMap> map = IdMap::create(to_logical);
  ASSERT_TRUE(map);
  EXPECT_EQ((*map)(12), 3);
  EXPECT_EQ((*map)(7), 3);
  EXPECT_EQ((*map)(1), 9);
  EXPECT_EQ((*map)(0), IdMap::kNoExpert);
  EXPECT_EQ((*map)(std::numeric_limits<int64_t>::max()), IdMap::kOutside);
}

TEST(IdMap, RefusesWhatIsNoMap) {
  expect_refused(IdMap::create({}), "got none");
  expect_refused(IdMap::create({0, 1, -2}), "to_logical[2]: expected an expert or -1, got -2");
  expect_refused(IdMap::interleaved_shared(64, 3, 1), "got 64 experts on 3");
  expect_refused(IdMap::interleaved_shared(0, 1, 1), "got 0 experts");
  expect_refused(IdMap::interleaved_shared(64, 0, 1), "on 0");
  expect_refused(IdMap::interleaved_shared(64, 2, -1), "got -1");
  const int32_t most = std::numeric_limits<int32_t>::max();
  expect_refused(IdMap::interleaved_shared(64, 64, most), "shared_per_rank");
  expect_refused(IdMap::interleaved_shared(most, 1, 0), "shared_per_rank");
}

}  // namespace
}  // namespace moetape::inline v0
