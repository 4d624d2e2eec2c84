// Room diagnose on one thread: records of 32,768 tokens in the shape of DeepSeek-V3, 58 layers of 8 of 256.
// Bytes are those of one record as it is kept. Results are checked before they are timed.
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "bench/checked.h"
#include "moetape/canary.h"
#include "moetape/diagnose.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kNumRows = 32'768;

RouteSpec deepseek() {
  RouteSpecFields fields{.top_k = 8, .num_experts = 256};
  fields.layers.resize(58);
  std::iota(fields.layers.begin(), fields.layers.end(), 3);
  return *RouteSpec::create(fields);
}

// b holds `sequence` of the canary, from position `shift` on.
void diagnose_canary(benchmark::State& state, int64_t sequence, int64_t shift, size_t num_causes) {
  const Canary canary = *Canary::create(deepseek());
  const std::vector<Routes> a = {*canary.routes(0, kNumRows)};
  const Routes rows = *canary.routes(sequence, kNumRows, shift);
  const std::vector<Routes> b = {*Routes::from_ids(
      deepseek(), 0, {.ids = rows.ids().data(), .type = IntType::kUint8, .num_rows = kNumRows})};
  const Diagnosis diagnosis = *diagnose(a, b);
  require(diagnosis.causes.size() == num_causes, "causes");
  require(diagnosis.num_rows == kNumRows, "rows");
  for (auto _ : state) benchmark::DoNotOptimize(diagnose(a, b));
  state.SetBytesProcessed(state.iterations() * std::ssize(a[0].ids()));
}

void make_canary(benchmark::State& state) {
  const Canary canary = *Canary::create(deepseek());
  for (auto _ : state) benchmark::DoNotOptimize(canary.routes(0, kNumRows));
  state.SetBytesProcessed(state.iterations() * kNumRows * deepseek().row_bytes());
}

BENCHMARK_CAPTURE(diagnose_canary, equal, 0, 0, 0)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(diagnose_canary, shifted, 0, 1, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(diagnose_canary, unrelated, 1, 0, 0)->Unit(benchmark::kMillisecond);
BENCHMARK(make_canary)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moetape::inline v0
