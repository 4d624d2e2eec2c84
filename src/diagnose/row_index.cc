#include "diagnose/row_index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moetape::inline v0 {
namespace {

constexpr size_t kMostGroups = 4;
constexpr int64_t kLongestLook = 64;  // rows ahead, to choose among places

// Of one list, if all sets were as likely.
double bits_of(const RecordSide& side) {
  double bits = 0;
  for (int32_t k = 0; k < side.top_k && k < side.num_experts; ++k) {
    bits += std::log2(static_cast<double>(side.num_experts - k) / (k + 1));
  }
  return std::max(bits, 0.1);
}

}  // namespace

RowIndex::RowIndex(const Records& records, const ColumnPairs& columns)
    : records_(records), columns_(columns) {
  const double wanted_bits = std::log2(static_cast<double>(records.num_rows) + 1) + 8;
  const auto wanted = static_cast<size_t>(std::ceil(wanted_bits / bits_of(records.a)));
  const size_t width = std::clamp<size_t>(wanted, 1, columns.size());
  const size_t num_groups = std::min(kMostGroups, columns.size() / width);
  for (size_t i = 0; i < num_groups; ++i) {
    const size_t first = i * columns.size() / num_groups;
    Group group{.first = first, .end = first + width};
    for (int64_t row = 0; row < records.num_rows; ++row) {
      if (records.a.has(row)) group.entries.emplace_back(key(records.a, row, group, false), row);
    }
    std::ranges::sort(group.entries);
    groups_.push_back(std::move(group));
  }
}

uint64_t RowIndex::key(const RecordSide& side, int64_t row, const Group& group, bool of_b) const {
  uint64_t key = 0;
  for (size_t i = group.first; i < group.end; ++i) {
    const auto& [in_b, in_a] = columns_[i];
    key = (key ^ side.list(row, of_b ? in_b : in_a)) * 0x9E3779B97F4A7C15;
    key ^= key >> 29;
  }
  return key;
}

void RowIndex::find(int64_t i, int64_t most, std::vector<int64_t>& rows) const {
  rows.clear();
  for (const Group& group : groups_) {
    const uint64_t wanted = key(records_.b, i, group, true);
    const auto found = std::ranges::equal_range(group.entries, wanted, {}, &Entry::first);
    const int64_t step = std::max<int64_t>(std::ssize(found) / most, 1);
    for (int64_t at = 0; at < std::min<int64_t>(std::ssize(found), step * most); at += step) {
      rows.push_back(found[static_cast<size_t>(at)].second);
    }
  }
}

std::vector<int64_t> RowIndex::likely_shifts(std::span<const int64_t> rows, size_t most) const {
  constexpr int64_t kMostVoters = 2048;
  constexpr int64_t kMostCandidates = 32;
  std::vector<int64_t> votes;
  std::vector<int64_t> found;
  const size_t step = std::max<size_t>(rows.size() / kMostVoters, 1);
  for (size_t at = 0; at < rows.size(); at += step) {
    find(rows[at], kMostCandidates, found);
    for (const int64_t row : found) votes.push_back(row - rows[at]);
  }
  std::ranges::sort(votes);
  std::vector<std::pair<int64_t, int64_t>> counts;  // -votes, shift
  for (size_t first = 0, end = 0; first < votes.size(); first = end) {
    while (end < votes.size() && votes[end] == votes[first]) ++end;
    counts.emplace_back(-static_cast<int64_t>(end - first), votes[first]);
  }
  const auto by_votes = [](const auto& count) { return std::pair(count.first, std::abs(count.second)); };
  std::ranges::sort(counts, {}, by_votes);
  if (counts.size() > most) counts.resize(most);
  std::vector<int64_t> shifts;
  for (const auto& count : counts) shifts.push_back(count.second);
  return shifts;
}

int64_t RowIndex::run_length(int64_t i, int64_t j, int64_t most) const {
  int64_t length = 0;
  while (length < most && i + length < records_.num_rows &&
         holds(records_, i + length, j + length, columns_)) {
    ++length;
  }
  return length;
}

std::vector<int64_t> RowIndex::runs(std::span<const int64_t> rows, int64_t shortest) const {
  constexpr int64_t kMostCandidates = 8;
  std::vector<int64_t> from(rows.size(), -1);
  std::vector<int64_t> found;
  for (size_t at = 0; at < rows.size();) {
    find(rows[at], kMostCandidates, found);
    int64_t longest = 0;
    int64_t source = -1;
    for (const int64_t row : found) {
      if (row == rows[at]) continue;
      const int64_t length = run_length(rows[at], row, kLongestLook);
      if (length > longest) {
        longest = length;
        source = row;
      }
    }
    if (longest == kLongestLook) longest = run_length(rows[at], source, std::numeric_limits<int64_t>::max());
    if (longest < shortest) {
      ++at;
      continue;
    }
    const int64_t shift = source - rows[at];
    for (const int64_t end = rows[at] + longest; at < rows.size() && rows[at] < end; ++at) {
      from[at] = rows[at] + shift;
    }
  }
  return from;
}

}  // namespace moetape::inline v0
