#include "tape/facts.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "tape/checksum.h"
#include "tape/schema.h"

namespace moetape::inline v0::tape {
namespace {

void clear_unused(std::vector<std::byte>& bits, int64_t count) {
  if (count % 8 != 0) bits.back() &= static_cast<std::byte>((1 << count % 8) - 1);
}

}  // namespace

int64_t Facts::count_missing() const {
  int64_t num_valid = 0;
  for (const std::byte bits : valid) num_valid += std::popcount(std::to_integer<unsigned>(bits));
  return num_rows() - num_valid;
}

std::vector<VersionRun> Facts::versions(int64_t from, int64_t to) const {
  std::vector<VersionRun> versions;
  const int64_t position_of_row_0 = start - first_row;  // of the tape
  const auto first = std::ranges::upper_bound(runs, from - position_of_row_0, {}, &VersionRun::end);
  for (auto run = first; run != runs.end() && run->start + position_of_row_0 < to; ++run) {
    const VersionRun cut{std::max(from, run->start + position_of_row_0),
                         std::min(to, run->end + position_of_row_0), run->version};
    if (cut.start < cut.end) versions.push_back(cut);
  }
  return versions;
}

uint64_t checksum(const Facts& facts) {
  Checksum sum;
  for (const int64_t number : {facts.first_row, facts.end_row, facts.start, facts.first_block,
                               facts.token_offset, static_cast<int64_t>(facts.runs.size())}) {
    sum.add_number(number);
  }
  for (const VersionRun& run : facts.runs) {
    for (const int64_t number : {run.start, run.end, int64_t{run.version}}) sum.add_number(number);
  }
  for (const std::string_view text : {facts.id, facts.meta}) {
    sum.add_number(std::ssize(text));
    sum.add(text);
  }
  sum.add(std::span(facts.valid));
  sum.add(facts.block_checksums);
  return sum.value();
}

std::vector<std::byte> take_bits(std::span<const std::byte> bitmap, int64_t first, int64_t count) {
  std::vector<std::byte> bits(static_cast<size_t>(ceil_div(count, 8)));
  const auto shift = static_cast<int>(first % 8);
  for (size_t i = 0, at = static_cast<size_t>(first / 8); i < bits.size(); ++i, ++at) {
    bits[i] = bitmap[at] >> shift;
    if (shift != 0 && at + 1 < bitmap.size()) bits[i] |= bitmap[at + 1] << (8 - shift);
  }
  clear_unused(bits, count);
  return bits;
}

std::vector<std::byte> all_ones(int64_t count) {
  std::vector<std::byte> bits(static_cast<size_t>(ceil_div(count, 8)), std::byte{0xFF});
  clear_unused(bits, count);
  return bits;
}

}  // namespace moetape::inline v0::tape
