#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "moetape/stats.h"

namespace moetape::inline v0 {
namespace {

constexpr double kNear = 1e-12;

Balance balance(const std::vector<int64_t>& load) {
  const std::optional<Balance> found = balance_of(load);
  EXPECT_TRUE(found);
  return found.value_or(Balance{});
}

TEST(BalanceOf, EvenLoadIsEven) {
  const Balance even = balance({5, 5, 5, 5});
  EXPECT_NEAR(even.max_over_mean, 1, kNear);
  EXPECT_NEAR(even.variation, 0, kNear);
  EXPECT_NEAR(even.entropy, 1, kNear);
  EXPECT_NEAR(even.gini, 0, kNear);
  EXPECT_EQ(even.num_unused, 0);
}

TEST(BalanceOf, OneExpertThatHasAllIsTheWorst) {
  const Balance worst = balance({0, 12, 0, 0});
  EXPECT_NEAR(worst.max_over_mean, 4, kNear);
  EXPECT_NEAR(worst.variation, std::sqrt(3.0), kNear);
  EXPECT_NEAR(worst.entropy, 0, kNear);
  EXPECT_NEAR(worst.gini, 0.75, kNear);
  EXPECT_EQ(worst.num_unused, 3);
}

// Half of the experts share the load: shares of 1/2 and 1/2, of four.
TEST(BalanceOf, HalfOfTheExperts) {
  const Balance half = balance({6, 0, 6, 0});
  EXPECT_NEAR(half.max_over_mean, 2, kNear);
  EXPECT_NEAR(half.variation, 1, kNear);
  EXPECT_NEAR(half.entropy, 0.5, kNear);
  EXPECT_NEAR(half.gini, 0.5, kNear);
  EXPECT_EQ(half.num_unused, 2);
}

// The mean difference of all pairs, over twice the mean.
TEST(BalanceOf, GiniIsTheMeanDifferenceOfPairs) {
  const std::vector<int64_t> load = {3, 1, 4, 1, 5, 9, 2, 6};
  double differences = 0;
  double total = 0;
  for (const int64_t x : load) {
    total += static_cast<double>(x);
    for (const int64_t y : load) differences += std::abs(static_cast<double>(x - y));
  }
  EXPECT_NEAR(balance(load).gini, differences / (2.0 * 8 * total), kNear);
}

TEST(BalanceOf, OneExpertIsEven) {
  EXPECT_EQ(balance({7}), (Balance{.max_over_mean = 1, .variation = 0, .entropy = 1, .gini = 0}));
}

TEST(BalanceOf, NothingHasNone) {
  EXPECT_FALSE(balance_of(std::vector<int64_t>{0, 0}));
  EXPECT_FALSE(balance_of({}));
}

}  // namespace
}  // namespace moetape::inline v0
