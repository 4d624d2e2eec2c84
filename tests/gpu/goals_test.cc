#include "tests/gpu/goals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moetape::inline v0::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BenchResult result(double added, int64_t nodes, double share_of_copy, double packed) {
  const auto step = [](const char* variant, double microseconds, double more, int64_t num_nodes) {
    return StepTime{variant, 256, microseconds, more, num_nodes, 0, 0};
  };
  return {.steps = {step(kNoRecording, 200, 0, 58), step(kOursByLayerBuffer, 200 + added, added, nodes),
                    step(kOursPacked, packed, packed - 200, nodes)},
          .bandwidths = {{kPinnedCopy, 8192, 50}, {kCommitMapped, 8192, 50 * share_of_copy}}};
}

std::vector<bool> met(const BenchResult& bench) {
  std::vector<bool> result;
  for (const Goal& goal : judge(bench)) result.push_back(goal.met);
  return result;
}

TEST(Goals, FiguresDecide) {
  EXPECT_THAT(met(result(9.9, 59, 0.8, 230)), ElementsAre(true, true, true));
  EXPECT_THAT(met(result(10.1, 59, 0.8, 230)), ElementsAre(false, true, true));
  EXPECT_THAT(met(result(9.9, 60, 0.8, 230)), ElementsAre(false, true, true));
  EXPECT_THAT(met(result(9.9, 59, 0.79, 230)), ElementsAre(true, false, true));
  EXPECT_THAT(met(result(9.9, 59, 0.8, 204)), ElementsAre(true, true, false));
  EXPECT_THAT(judge(result(9.9, 59, 0.8, 204))[2].figures, HasSubstr("slower at: 256"));
}

TEST(Goals, WhatWasNotMeasuredIsNotMet) {
  EXPECT_THAT(met({}), ElementsAre(false, false, false));
  for (const Goal& goal : judge({})) EXPECT_EQ(goal.figures, "not measured");
}

}  // namespace
}  // namespace moetape::inline v0::cuda
