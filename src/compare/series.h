// How a Series grows: windows double in width until at most so many cover what was added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "moetape/compare.h"
#include "moetape/stats.h"

namespace moetape::inline v0 {

inline void add_sum(Agreement& to, const Agreement& from) { to += from; }

inline void add_sum(Load& to, const Load& from) {
  if (from.empty()) return;
  to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

// Element by element, of arrays of one length.
template <class Counts>
void add_counts(Counts& to, const Counts& from) {
  std::ranges::transform(to, from, to.begin(), std::plus());
}

// The window that holds `value`, which the series must cover.
template <class Sum>
Sum& window_of(Series<Sum>& series, int64_t value) {
  return series.windows[static_cast<size_t>((value - series.start) / series.width)];
}

// Covers first .. last, 0 or more, too, in windows of at least `width`. What stood in a window goes to the
// one that now holds its start.
template <class Sum>
void cover(Series<Sum>& series, int64_t first, int64_t last, int64_t most_windows, int64_t width = 1) {
  const auto num_old = static_cast<int64_t>(series.windows.size());
  if (num_old > 0) {
    first = std::min(first, series.start);
    last = std::max(last, series.start + (num_old - 1) * series.width);
  }
  width = std::max(width, series.width);
  while (last / width - first / width >= most_windows) width *= 2;
  const int64_t num_windows = last / width - first / width + 1;
  if (width == series.width && num_windows == num_old) return;

  Series<Sum> wider = {.start = first / width * width, .width = width};
  wider.windows.resize(static_cast<size_t>(num_windows));
  for (int64_t i = 0; i < num_old; ++i) {
    add_sum(window_of(wider, series.start + i * series.width), series.windows[static_cast<size_t>(i)]);
  }
  series = std::move(wider);
}

template <class Sum>
void add_series(Series<Sum>& series, const Series<Sum>& other, int64_t most_windows) {
  const auto num_windows = static_cast<int64_t>(other.windows.size());
  if (num_windows == 0) return;
  cover(series, other.start, other.start + (num_windows - 1) * other.width, most_windows, other.width);
  for (int64_t i = 0; i < num_windows; ++i) {
    add_sum(window_of(series, other.start + i * other.width), other.windows[static_cast<size_t>(i)]);
  }
}

}  // namespace moetape::inline v0
