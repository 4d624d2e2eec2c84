#include "compare/series.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <map>

#include "compare/compare_reference.h"

namespace moetape::inline v0 {
namespace {

void add(Series<Agreement>& series, int64_t value, int64_t most_windows) {
  cover(series, value, value, most_windows);
  ++window_of(series, value).num_rows;
}

Series<Agreement> expected(const std::map<int64_t, Agreement>& counts, int64_t most_windows) {
  return reference::series_of(counts, most_windows, [](Agreement& to, const Agreement& from) { to += from; });
}

TEST(SeriesOfWindows, DoubleTheirWidthWhenTheyWouldBeTooMany) {
  Series<Agreement> series;
  add(series, 5, 4);
  EXPECT_EQ(series.start, 5);
  EXPECT_EQ(series.width, 1);
  add(series, 8, 4);  // 5, 6, 7, 8
  EXPECT_EQ(series.width, 1);
  EXPECT_EQ(series.windows.size(), 4u);
  add(series, 9, 4);  // 4-5, 6-7, 8-9
  EXPECT_EQ(series.start, 4);
  EXPECT_EQ(series.width, 2);
  ASSERT_EQ(series.windows.size(), 3u);
  EXPECT_EQ(series.windows[0].num_rows, 1);
  EXPECT_EQ(series.windows[1].num_rows, 0);
  EXPECT_EQ(series.windows[2].num_rows, 2);
}

TEST(SeriesOfWindows, ReachTheLargestNumber) {
  Series<Agreement> series;
  add(series, 0, 4);
  add(series, std::numeric_limits<int64_t>::max(), 4);
  EXPECT_EQ(series.width, int64_t{1} << 61);
  ASSERT_EQ(series.windows.size(), 4u);
  EXPECT_EQ(series.windows[3].num_rows, 1);
}

RC_GTEST_PROP(SeriesRandom, DependOnWhatWasAddedOnly, ()) {
  const int64_t most_windows = *rc::gen::inRange(1, 9);
  const int64_t start = *rc::gen::inRange(0, 100);
  const auto values = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 60));
  const auto parts = *rc::gen::container<std::vector<int>>(values.size(), rc::gen::inRange(0, 3));
  std::vector<Series<Agreement>> series(3);
  std::map<int64_t, Agreement> counts;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t value = start + int64_t{values[i]};
    ++counts[value].num_rows;
    add(series[static_cast<size_t>(parts[i])], value, most_windows);
  }
  Series<Agreement> merged;
  for (const Series<Agreement>& part : series) add_series(merged, part, most_windows);
  RC_ASSERT(merged == expected(counts, most_windows));
}

}  // namespace
}  // namespace moetape::inline v0
