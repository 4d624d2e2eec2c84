#include <gtest/gtest.h>

#include "compare/compare_reference.h"

namespace moetape::inline v0 {
namespace {

TEST(AgreementRates, AreSharesOfWhatWasCompared) {
  const Agreement sums = {.num_rows = 4,
                          .num_unequal_rows = 3,
                          .num_rerouted_rows = 2,
                          .num_routers = 8,
                          .num_unequal_routers = 4,
                          .num_rerouted_routers = 2,
                          .num_ids = 16,
                          .num_shared_ids = 12};
  EXPECT_EQ(sums.unequal_rows_rate(), 0.75);
  EXPECT_EQ(sums.rerouted_rows_rate(), 0.5);
  EXPECT_EQ(sums.unequal_routers_rate(), 0.5);
  EXPECT_EQ(sums.rerouted_routers_rate(), 0.25);
  EXPECT_EQ(sums.overlap(), 0.75);
}

TEST(AgreementRates, OfNothingAreEmpty) {
  const Agreement nothing;
  EXPECT_FALSE(nothing.unequal_rows_rate());
  EXPECT_FALSE(nothing.rerouted_rows_rate());
  EXPECT_FALSE(nothing.unequal_routers_rate());
  EXPECT_FALSE(nothing.rerouted_routers_rate());
  EXPECT_FALSE(nothing.overlap());
}

}  // namespace
}  // namespace moetape::inline v0
