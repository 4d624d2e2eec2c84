#include "compare/pair_adder.h"

#include <algorithm>
#include <tuple>

#include "compare/series.h"
#include "routes/assembly.h"

namespace moetape::inline v0 {
namespace {

constexpr auto kMostReroutedFirst = [](const ReroutedRow& row) {
  return std::tuple(-row.num_rerouted_routers, -row.num_unequal_routers, row.sequence, row.position);
};

Reason reason_at(const Routes& routes, int64_t position) {
  if (position < routes.start() || position >= routes.end()) return Reason::kGap;
  return routes.reasons()[static_cast<size_t>(position - routes.start())];
}

std::optional<uint32_t> version_or_none(uint32_t version) {
  if (version == kNoVersion) return std::nullopt;
  return version;
}

}  // namespace

void keep_rerouted(Comparison& in, const ReroutedRow& row) {
  std::vector<ReroutedRow>& rows = in.rerouted_rows;
  if (std::ssize(rows) == in.options.max_rerouted_rows) {
    if (rows.empty() || kMostReroutedFirst(rows.back()) <= kMostReroutedFirst(row)) return;
    rows.pop_back();
  }
  rows.insert(std::ranges::upper_bound(rows, kMostReroutedFirst(row), {}, kMostReroutedFirst), row);
}

PairAdder::PairAdder(Comparison& to, const Routes& a, const Routes& b, int64_t sequence)
    : to_(to),
      a_(a),
      b_(b),
      tokens_(a.has_tokens()   ? &a
              : b.has_tokens() ? &b
                               : nullptr),
      sequence_(sequence),
      a_versions_(row_versions(a)),
      b_versions_(row_versions(b)),
      comparer_(to.spec) {}

void PairAdder::add() {
  for (int64_t position = a_.start(); position < a_.end();) {
    const int64_t end = end_of_run(position);
    if (end > position) {
      add_run(position, end);
      position = end;
    } else {
      count_missing(reason_at(a_, position), reason_at(b_, position));
      ++position;
    }
  }
  count_only_in_b(b_.start(), std::min(b_.end(), a_.start()));
  count_only_in_b(std::max(b_.start(), a_.end()), b_.end());
  comparer_.add_to(to_.by_layer);
  ++to_.num_sequences;
}

// The longest run of rows from `position` on that are valid in both, each under one version; or `position`.
int64_t PairAdder::end_of_run(int64_t position) const {
  const int64_t both_end = std::min(a_.end(), b_.end());
  if (position < b_.start() || position >= both_end) return position;
  const auto a_first = static_cast<size_t>(position - a_.start());
  const auto b_first = static_cast<size_t>(position - b_.start());
  const std::span<const Reason> a_reasons = a_.reasons();
  const std::span<const Reason> b_reasons = b_.reasons();
  const auto length = static_cast<size_t>(both_end - position);
  size_t i = 0;
  while (i < length && a_reasons[a_first + i] == Reason::kValid && b_reasons[b_first + i] == Reason::kValid &&
         a_versions_[a_first + i] == a_versions_[a_first] &&
         b_versions_[b_first + i] == b_versions_[b_first]) {
    ++i;
  }
  return position + static_cast<int64_t>(i);
}

void PairAdder::add_run(int64_t first, int64_t end) {
  cover(to_.by_position, first, end - 1, kMostWindows);
  const int64_t width = to_.by_position.width;
  Agreement* window = &window_of(to_.by_position, first);
  int64_t left_in_window = width - first % width;
  Agreement run;
  for (int64_t position = first; position < end;) {
    const int64_t count = std::min(comparer_.block_rows(), end - position);
    comparer_.compare(a_.row(position - a_.start()).data(), b_.row(position - b_.start()).data(), count);
    for (int64_t row = 0; row < count; ++row, ++position, --left_in_window) {
      if (left_in_window == 0) {
        ++window;
        left_in_window = width;
      }
      const RowDifference& difference = comparer_.difference(row);
      const Agreement agreement = comparer_.of_row(difference);
      run += agreement;
      *window += agreement;
      note_row(position, difference, agreement);
    }
  }
  to_.total += run;
  to_.by_version[{version_or_none(a_versions_[static_cast<size_t>(first - a_.start())]),
                  version_or_none(b_versions_[static_cast<size_t>(first - b_.start())])}] += run;
}

void PairAdder::note_row(int64_t position, const RowDifference& difference, const Agreement& agreement) {
  std::optional<int32_t> token;
  if (tokens_ != nullptr) {
    token = tokens_->tokens()[static_cast<size_t>(position - tokens_->start())];
    to_.by_token[*token] += agreement;
  }
  ++to_.rows_by_rerouted_routers[static_cast<size_t>(difference.num_rerouted_routers)];
  if (difference.num_rerouted_routers == 0) return;
  keep_rerouted(to_, {.sequence = sequence_,
                      .position = position,
                      .token = token,
                      .num_rerouted_routers = difference.num_rerouted_routers,
                      .num_unequal_routers = difference.num_unequal_routers});
}

void PairAdder::count_only_in_b(int64_t first, int64_t end) {
  for (int64_t position = first; position < end; ++position) {
    count_missing(Reason::kGap, reason_at(b_, position));
  }
}

void PairAdder::count_missing(Reason in_a, Reason in_b) {
  if (in_a != Reason::kValid) ++to_.missing_in_a[static_cast<size_t>(in_a)];
  if (in_b != Reason::kValid) ++to_.missing_in_b[static_cast<size_t>(in_b)];
  if (in_a == Reason::kValid) {
    ++to_.num_rows_only_in_a;
  } else {
    ++(in_b == Reason::kValid ? to_.num_rows_only_in_b : to_.num_rows_in_neither);
  }
}

}  // namespace moetape::inline v0
