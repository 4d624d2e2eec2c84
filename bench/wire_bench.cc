// Room wire on one thread: one request of 32,768 tokens. Shape of DeepSeek-V3: 61 layers, of
// which 58 route to 8 of 256; Qwen3's has no dense layer. Results are checked before they are timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/checked.h"
#include "moetape/answer.h"
#include "moetape/buffer.h"
#include "moetape/store.h"
#include "moetape/wire.h"
#include "simd/base64.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kNumRows = 32'768;
constexpr int64_t kPage = 64;

RouteSpec make_spec(int32_t first_layer, int32_t num_layers, int32_t num_experts) {
  RouteSpecFields fields;
  fields.layers.resize(static_cast<size_t>(num_layers - first_layer));
  std::iota(fields.layers.begin(), fields.layers.end(), first_layer);
  fields.top_k = 8;
  fields.num_experts = num_experts;
  return *RouteSpec::create(fields);
}

RouteSpec deepseek() { return make_spec(3, 61, 256); }

Routes make_routes(const RouteSpec& spec) {
  std::mt19937_64 random(1);
  std::vector<uint16_t> ids(static_cast<size_t>(kNumRows * spec.num_moe_layers() * spec.top_k()));
  const auto num_experts = static_cast<uint64_t>(spec.num_experts());
  for (size_t list = 0; list < ids.size(); list += 8) {
    const uint64_t first = random();
    for (size_t i = 0; i < 8; ++i) ids[list + i] = static_cast<uint16_t>((first + i * 5) % num_experts);
  }
  return *Routes::from_ids(spec, 0, {.ids = ids.data(), .type = IntType::kUint16, .num_rows = kNumRows});
}

// Bytes per second are those of the ids as they are kept.
void count_bytes(benchmark::State& state, const Routes& routes) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(routes.ids().size()));
}

void encode_routes(benchmark::State& state, Dialect dialect, const RouteSpec& spec) {
  const Routes routes = make_routes(spec);
  std::string text(*encoded_size(spec, kNumRows, dialect), '\0');
  RoutesSource source(routes);
  const auto written = encode_into(source, dialect, text);
  require(written.has_value(), "encode");
  require(*decode(std::string_view(text).substr(0, *written), dialect, spec) == routes, "decode");
  for (auto _ : state) {
    benchmark::DoNotOptimize(encode_into(source, dialect, text));
    benchmark::ClobberMemory();
  }
  count_bytes(state, routes);
}

// The road of a finished request: its rows out of a store in pages, gathered and encoded in one pass.
void encode_store(benchmark::State& state, Dialect dialect, const RouteSpec& spec) {
  const Routes routes = make_routes(spec);
  const auto store = *Store::create(spec, {.num_slots = 4 * kNumRows, .populate = true});
  std::vector<int32_t> pages(kNumRows / kPage);
  std::iota(pages.begin(), pages.end(), 0);
  std::ranges::shuffle(pages, std::mt19937_64(2));
  const Slots slots = Slots::blocks(pages, kPage, kNumRows);
  require(store->write(slots, routes, {.version = 1}).has_value(), "write");
  std::string text(*encoded_size(spec, kNumRows, dialect), '\0');
  for (auto _ : state) {
    const auto rows = *store->rows(slots);
    benchmark::DoNotOptimize(encode_into(*rows, dialect, text));
    benchmark::ClobberMemory();
  }
  require(std::ranges::equal(decode(text, dialect, spec)->ids(), routes.ids()), "decode");
  count_bytes(state, routes);
}

void decode_text(benchmark::State& state, Dialect dialect, const RouteSpec& spec) {
  const Routes routes = make_routes(spec);
  const std::string text = *encode(routes, dialect);
  require(*decode(text, dialect, spec) == routes, "decode");
  for (auto _ : state) benchmark::DoNotOptimize(decode(text, dialect, spec));
  count_bytes(state, routes);
}

// A choice's routes in a whole answer.
void answer(benchmark::State& state, const RouteSpec& spec) {
  const Routes routes = make_routes(spec);
  const std::string json = R"({"id":"1","choices":[{"index":0,"text":"a","routed_experts":")" +
                           *encode(routes, Dialect::kVllm) + "\"}]}";
  require(*(*read_answer(json, spec))[0].routes == routes, "read_answer");
  for (auto _ : state) benchmark::DoNotOptimize(read_answer(json, spec));
  count_bytes(state, routes);
}

// What no encoder can beat: base64 of the bytes of a form that lie ready.
void base64_only(benchmark::State& state, int64_t row_bytes) {
  const std::vector<std::byte> bytes(static_cast<size_t>(kNumRows * row_bytes), std::byte{7});
  std::string text(simd::base64_size(bytes.size()), '\0');
  for (auto _ : state) {
    benchmark::DoNotOptimize(simd::base64_encode(text.data(), bytes.data(), bytes.size()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kNumRows * deepseek().row_bytes());
}

BENCHMARK_CAPTURE(base64_only, bytes_of_vllm, 61 * 8);
BENCHMARK_CAPTURE(base64_only, bytes_of_sglang, 61 * 8 * 4);
BENCHMARK_CAPTURE(encode_routes, sglang, Dialect::kSglang, deepseek());
BENCHMARK_CAPTURE(encode_routes, vllm, Dialect::kVllm, deepseek());
BENCHMARK_CAPTURE(encode_routes, vllm_no_dense_layer, Dialect::kVllm, make_spec(0, 58, 256));
BENCHMARK_CAPTURE(encode_routes, vllm_512_experts, Dialect::kVllm, make_spec(3, 61, 512));
BENCHMARK_CAPTURE(encode_routes, vllm_qwen3, Dialect::kVllm, make_spec(0, 48, 128));
BENCHMARK_CAPTURE(encode_routes, lightllm, Dialect::kLightllm, deepseek());
BENCHMARK_CAPTURE(encode_routes, prime_rl, Dialect::kPrimeRl, deepseek());
BENCHMARK_CAPTURE(encode_routes, nemo_rl, Dialect::kNemoRl, deepseek());
BENCHMARK_CAPTURE(encode_routes, megatron, Dialect::kMegatron, deepseek());
BENCHMARK_CAPTURE(encode_routes, verl, Dialect::kVerl, deepseek());
BENCHMARK_CAPTURE(encode_store, sglang, Dialect::kSglang, deepseek());
BENCHMARK_CAPTURE(encode_store, vllm, Dialect::kVllm, deepseek());
BENCHMARK_CAPTURE(encode_store, vllm_no_dense_layer, Dialect::kVllm, make_spec(0, 58, 256));
BENCHMARK_CAPTURE(encode_store, lightllm, Dialect::kLightllm, deepseek());
BENCHMARK_CAPTURE(decode_text, sglang, Dialect::kSglang, deepseek());
BENCHMARK_CAPTURE(decode_text, vllm, Dialect::kVllm, deepseek());
BENCHMARK_CAPTURE(decode_text, lightllm, Dialect::kLightllm, deepseek());
BENCHMARK_CAPTURE(decode_text, prime_rl, Dialect::kPrimeRl, deepseek());
BENCHMARK_CAPTURE(decode_text, nemo_rl, Dialect::kNemoRl, deepseek());
BENCHMARK_CAPTURE(decode_text, megatron, Dialect::kMegatron, deepseek());
BENCHMARK_CAPTURE(decode_text, verl, Dialect::kVerl, deepseek());
BENCHMARK_CAPTURE(answer, vllm, deepseek());

}  // namespace
}  // namespace moetape::inline v0
