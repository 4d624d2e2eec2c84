// Room compare on one thread: records of 32,768 tokens in the shape of DeepSeek-V3, 58 layers of 8 of 256.
// Bytes are those of one record as it is kept. Results are checked before they are timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "bench/checked.h"
#include "moetape/compare.h"
#include "moetape/stats.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kNumRows = 32'768;

RouteSpec make_spec(int32_t top_k, int32_t num_experts) {
  RouteSpecFields fields;
  fields.layers.resize(58);
  std::iota(fields.layers.begin(), fields.layers.end(), 3);
  fields.top_k = top_k;
  fields.num_experts = num_experts;
  return *RouteSpec::create(fields);
}

using Ids = std::vector<uint16_t>;

void choose(const RouteSpec& spec, std::mt19937_64& random, Ids::iterator list) {
  const uint64_t first = random();
  const auto step = static_cast<uint64_t>(spec.num_experts() / spec.top_k());  // no id twice
  for (uint64_t k = 0; k < static_cast<uint64_t>(spec.top_k()); ++k) {
    list[static_cast<std::ptrdiff_t>(k)] =
        static_cast<uint16_t>((first + k * step) % static_cast<uint64_t>(spec.num_experts()));
  }
}

Ids random_ids(const RouteSpec& spec) {
  std::mt19937_64 random(1);
  Ids ids(static_cast<size_t>(kNumRows * spec.num_moe_layers() * spec.top_k()));
  for (auto list = ids.begin(); list != ids.end(); list += spec.top_k()) choose(spec, random, list);
  return ids;
}

// Every n-th list is drawn again.
Ids changed(const RouteSpec& spec, Ids ids, int64_t every) {
  std::mt19937_64 random(2);
  for (int64_t list = 0; list < std::ssize(ids) / spec.top_k(); list += every) {
    choose(spec, random, ids.begin() + list * spec.top_k());
  }
  return ids;
}

Routes make_routes(const RouteSpec& spec, const Ids& ids, bool with_tokens) {
  std::vector<int32_t> tokens;
  for (int64_t row = 0; with_tokens && row < kNumRows; ++row) {
    tokens.push_back(static_cast<int32_t>(row * 7919 % 20'011));
  }
  return *Routes::from_ids(
      spec, 0,
      {.ids = ids.data(), .type = IntType::kUint16, .num_rows = kNumRows, .version = 1, .tokens = tokens});
}

// changed_every: 0 = two equal records.
void compare(benchmark::State& state, const RouteSpec& spec, int64_t changed_every, bool with_tokens) {
  const Ids ids = random_ids(spec);
  const Routes a = make_routes(spec, ids, with_tokens);
  const Routes b =
      make_routes(spec, changed_every > 0 ? changed(spec, ids, changed_every) : ids, with_tokens);
  Comparison comparison = *Comparison::create(spec);
  require(comparison.add(a, b).has_value(), "add");
  const Agreement& total = comparison.total;
  require(total.num_routers == kNumRows * spec.num_moe_layers(), "routers");
  const int64_t expected = changed_every > 0 ? total.num_routers / changed_every : 0;
  require(std::abs(total.num_unequal_routers - expected) <= expected / 100 + 1, "unequal routers");
  for (auto _ : state) {
    comparison = *Comparison::create(spec);
    benchmark::DoNotOptimize(comparison.add(a, b));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(a.ids().size()));
}

void stats(benchmark::State& state, const RouteSpec& spec) {
  const Routes routes = make_routes(spec, random_ids(spec), false);
  Stats result = *Stats::create(spec);
  require(result.add(routes).has_value(), "add");
  require(
      std::reduce(result.load.begin(), result.load.end()) == kNumRows * spec.num_moe_layers() * spec.top_k(),
      "load");
  for (auto _ : state) {
    result = *Stats::create(spec);
    benchmark::DoNotOptimize(result.add(routes));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(routes.ids().size()));
}

RouteSpec deepseek() { return make_spec(8, 256); }

BENCHMARK_CAPTURE(compare, equal, deepseek(), 0, false);
BENCHMARK_CAPTURE(compare, equal_with_tokens, deepseek(), 0, true);
BENCHMARK_CAPTURE(compare, one_list_in_10, deepseek(), 10, false);
BENCHMARK_CAPTURE(compare, one_list_in_10_with_tokens, deepseek(), 10, true);
BENCHMARK_CAPTURE(compare, all_lists, deepseek(), 1, false);
BENCHMARK_CAPTURE(compare, all_lists_of_10_of_512, make_spec(10, 512), 1, false);
BENCHMARK_CAPTURE(compare, all_lists_of_4_of_128, make_spec(4, 128), 1, false);
BENCHMARK_CAPTURE(compare, all_lists_of_40_of_256, make_spec(40, 256), 1, false);
BENCHMARK_CAPTURE(stats, 8_of_256, deepseek());
BENCHMARK_CAPTURE(stats, 10_of_512, make_spec(10, 512));

}  // namespace
}  // namespace moetape::inline v0
