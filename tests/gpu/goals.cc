#include "tests/gpu/goals.h"

#include <algorithm>

#include "base/fail.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr int64_t kDecodeBatch = 256;
constexpr double kMostAdded = 10;  // microseconds
constexpr int64_t kMostNodes = 1;
constexpr double kLeastOfACopy = 0.8;

const StepTime* find_step(const BenchResult& bench, const std::string& variant, int64_t batch) {
  const auto found = std::ranges::find_if(
      bench.steps, [&](const StepTime& s) { return s.variant == variant && s.batch == batch; });
  return found == bench.steps.end() ? nullptr : &*found;
}

const Bandwidth* find_bandwidth(const BenchResult& bench, const std::string& variant) {
  const auto found =
      std::ranges::find_if(bench.bandwidths, [&](const Bandwidth& b) { return b.variant == variant; });
  return found == bench.bandwidths.end() ? nullptr : &*found;
}

Goal decode_step(const BenchResult& bench) {
  Goal goal = {.name = fmt::format("a decode step of {} tokens: at most {} µs and {} node more", kDecodeBatch,
                                   kMostAdded, kMostNodes),
               .figures = "not measured"};
  const StepTime* none = find_step(bench, kNoRecording, kDecodeBatch);
  const StepTime* ours = find_step(bench, kOursByLayerBuffer, kDecodeBatch);
  if (none == nullptr || ours == nullptr) return goal;
  const int64_t nodes = ours->num_nodes - none->num_nodes;
  goal.figures = fmt::format("{:.1f} µs of {:.1f}, {} nodes of {}", ours->added, ours->microseconds, nodes,
                             ours->num_nodes);
  goal.met = ours->added <= kMostAdded && nodes <= kMostNodes;
  return goal;
}

Goal bandwidth(const BenchResult& bench) {
  Goal goal = {.name = fmt::format("rows written into mapped memory: at least {:.0f} % of a pinned copy",
                                   100 * kLeastOfACopy),
               .figures = "not measured"};
  const Bandwidth* copy = find_bandwidth(bench, kPinnedCopy);
  const Bandwidth* ours = find_bandwidth(bench, kCommitMapped);
  if (copy == nullptr || ours == nullptr || copy->gigabytes_per_second <= 0) return goal;
  const double share = ours->gigabytes_per_second / copy->gigabytes_per_second;
  goal.figures = fmt::format("{:.0f} %: {:.1f} of {:.1f} GB/s, {} rows", 100 * share,
                             ours->gigabytes_per_second, copy->gigabytes_per_second, ours->batch);
  goal.met = share >= kLeastOfACopy;
  return goal;
}

// Which path is the default is for the figures to say.
Goal default_path(const BenchResult& bench) {
  Goal goal = {.name = "the default path is the faster one, by the whole step at every batch's size",
               .figures = "not measured"};
  double mapped = 0;
  double packed = 0;
  std::string slower;
  for (const StepTime& step : bench.steps) {
    if (step.variant != kOursByLayerBuffer) continue;
    const StepTime* other = find_step(bench, kOursPacked, step.batch);
    if (other == nullptr) return goal;
    mapped += step.microseconds;
    packed += other->microseconds;
    constexpr double kNoise = 1.02;
    if (step.microseconds > kNoise * other->microseconds) slower += fmt::format(" {}", step.batch);
  }
  if (mapped <= 0) return goal;
  goal.figures = fmt::format("sum of all sizes: mapped {:.0f} µs, packed {:.0f} µs; slower at:{}", mapped,
                             packed, slower.empty() ? " none" : slower);
  goal.met = slower.empty();
  return goal;
}

}  // namespace

std::vector<Goal> judge(const BenchResult& bench) {
  return {decode_step(bench), bandwidth(bench), default_path(bench)};
}

}  // namespace moetape::inline v0::cuda
