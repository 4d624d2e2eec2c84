// Room replay on one thread: one sample of 32,768 tokens, shape of DeepSeek-V3 (58 MoE layers of 61, 8 of
// 256), into a rank's slice [layer][row][k]. `of_write` is the median ratio to writing the slice once, by
// memset, in turns with it. Results are checked before they are timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "moetape/buffer.h"
#include "moetape/pipeline.h"
#include "moetape/replay.h"
#include "moetape/wire.h"

namespace moetape::inline v0 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNumRows = 32'768;

RouteSpec deepseek() {
  RouteSpecFields fields;
  fields.layers.resize(58);
  std::iota(fields.layers.begin(), fields.layers.end(), 3);
  fields.top_k = 8;
  fields.num_experts = 256;
  return value_of(RouteSpec::create(fields));
}

const Routes& sample() {
  static const Routes routes = [] {
    const RouteSpec spec = deepseek();
    std::mt19937_64 random(1);
    std::vector<uint8_t> ids(static_cast<size_t>(kNumRows * spec.row_bytes()));
    for (size_t list = 0; list < ids.size(); list += 8) {
      const uint64_t first = random();
      for (size_t i = 0; i < 8; ++i) ids[list + i] = static_cast<uint8_t>(first + i * 5);
    }
    return value_of(
        Routes::from_ids(spec, 0, {.ids = ids.data(), .type = IntType::kUint8, .num_rows = kNumRows}));
  }();
  return routes;
}

// All rows and layers; or those of rank 0 of 2 in context and rank 1 of 4 in pipeline parallelism.
Plan plan_of(bool whole) {
  const int64_t length = kNumRows;
  const RowIds rows = value_of(RowIds::from_lengths(std::span(&length, 1)));
  if (whole) return value_of(Plan::from_row_ids(rows.ids()));
  const auto chunks = value_of(pipeline_chunks(61, {.size = 4, .first = 16, .last = 13}));
  return value_of(Plan::from_row_ids(value_of(rows.zigzag_each(2, 0)).ids(),
                                     value_of(pipeline_layers(deepseek(), chunks, 4, 1))));
}

// Times `make`, which fills the slice of a plan, in turns with memset.
class Slice {
 public:
  Slice(const Plan& plan, IntType type)
      : buffer_(value_of(Buffer::allocate(
            plan.num_rows() * (plan.layers() ? std::ssize(*plan.layers()) : 58) * 8 * int_type_bytes(type)))),
        uses_(static_cast<size_t>(plan.num_rows())) {}

  void run(benchmark::State& state, const std::function<void()>& make) {
    std::vector<double> ratios;
    for (auto _ : state) {
      const auto begin = Clock::now();
      make();
      const auto middle = Clock::now();
      std::memset(out().data(), 1, out().size());
      benchmark::ClobberMemory();
      const std::chrono::duration<double> made = middle - begin;
      const std::chrono::duration<double> written = Clock::now() - middle;
      state.SetIterationTime(made.count());
      ratios.push_back(made / written);
    }
    std::ranges::nth_element(ratios, ratios.begin() + std::ssize(ratios) / 2);
    state.counters["of_write"] = ratios[ratios.size() / 2];
    state.SetBytesProcessed(state.iterations() * buffer_.size());
  }

  std::span<std::byte> out() { return {buffer_.mutable_data(), static_cast<size_t>(buffer_.size())}; }
  std::span<RowUse> uses() { return uses_; }

 private:
  Buffer buffer_;
  std::vector<RowUse> uses_;
};

// The last row's ids of the last layer, as they were recorded.
void check(const Plan& plan, IntType type, std::span<const std::byte> out) {
  const int64_t position = plan.row_ids().back() & 0xFFFFFFFF;
  const int32_t layer = plan.layers() ? plan.layers()->back() : 60;
  const std::span row = sample().row(position).subspan(static_cast<size_t>(layer - 3) * 8, 8);
  const auto size = static_cast<size_t>(int_type_bytes(type));
  const std::span last = out.last(8 * size);
  for (size_t i = 0; i < 8; ++i) require(last[i * size] == row[i], "the last ids");
}

void from_text(benchmark::State& state, Dialect dialect, bool whole) {
  const Plan plan = plan_of(whole);
  const std::string text = value_of(encode(sample(), dialect));
  Slice slice(plan, IntType::kInt32);
  const auto make = [&] {
    const auto rows = value_of(decode_rows(text, dialect, sample().spec()));
    RowSource* const source = rows.get();
    require(plan.apply(std::span(&source, 1), IntType::kInt32, slice.out(), slice.uses()).has_value(),
            "apply");
  };
  make();
  check(plan, IntType::kInt32, slice.out());
  slice.run(state, make);
}

// `interleaved`: row orders such as s·B+b, in which no two rows follow each other in a sequence.
void from_routes(benchmark::State& state, IntType type, bool interleaved) {
  std::vector<int64_t> row_ids;
  for (int64_t row = 0; row < kNumRows; ++row) {
    row_ids.push_back(interleaved ? row_id(row % 4, row / 4) : row_id(0, row));
  }
  const Plan plan = value_of(Plan::from_row_ids(row_ids));
  const std::vector<Routes> sources(4, sample());
  Slice slice(plan, type);
  const auto make = [&] {
    require(plan.apply(sources, type, slice.out(), slice.uses()).has_value(), "apply");
  };
  make();
  check(plan, type, slice.out());
  slice.run(state, make);
}

void from_tape(benchmark::State& state, Codec codec) {
  const Plan plan = plan_of(false);
  std::vector<std::vector<int32_t>> groups(4);
  for (const int32_t layer : sample().spec().layers())
    groups[static_cast<size_t>(layer / 16)].push_back(layer);
  const Buffer bytes =
      value_of(tape_bytes(sample().spec(), {&sample(), 1}, {}, {.codec = codec, .layer_groups = groups}));
  const Tape tape = value_of(Tape::from_bytes(bytes));
  Slice slice(plan, IntType::kInt32);
  const auto make = [&] {
    require(plan.apply(tape, {}, IntType::kInt32, slice.out(), slice.uses()).has_value(), "apply");
  };
  make();
  check(plan, IntType::kInt32, slice.out());
  slice.run(state, make);
}

void expert_load(benchmark::State& state) {
  const Plan plan = plan_of(true);
  const auto load = value_of(plan.expert_load({&sample(), 1}));
  require(std::reduce(load.begin(), load.end()) == kNumRows * 58 * 8, "load");
  for (auto _ : state) benchmark::DoNotOptimize(plan.expert_load({&sample(), 1}));
}

void make_plan(benchmark::State& state) {
  std::vector<int64_t> row_ids;
  for (int64_t row = 0; row < kNumRows; ++row) row_ids.push_back(row_id(row % 4, row / 4));
  for (auto _ : state) benchmark::DoNotOptimize(Plan::from_row_ids(row_ids));
}

BENCHMARK_CAPTURE(from_text, vllm_whole, Dialect::kVllm, true)->UseManualTime();
BENCHMARK_CAPTURE(from_text, vllm_cp2_pp4, Dialect::kVllm, false)->UseManualTime();
BENCHMARK_CAPTURE(from_text, sglang_whole, Dialect::kSglang, true)->UseManualTime();
BENCHMARK_CAPTURE(from_text, sglang_cp2_pp4, Dialect::kSglang, false)->UseManualTime();
BENCHMARK_CAPTURE(from_routes, int64, IntType::kInt64, false)->UseManualTime();
BENCHMARK_CAPTURE(from_routes, int32, IntType::kInt32, false)->UseManualTime();
BENCHMARK_CAPTURE(from_routes, int16, IntType::kInt16, false)->UseManualTime();
BENCHMARK_CAPTURE(from_routes, int64_interleaved, IntType::kInt64, true)->UseManualTime();
BENCHMARK_CAPTURE(from_tape, cp2_pp4, Codec::kNone)->UseManualTime();
BENCHMARK_CAPTURE(from_tape, cp2_pp4_bitpack, Codec::kBitpack)->UseManualTime();
BENCHMARK(expert_load);
BENCHMARK(make_plan);

}  // namespace
}  // namespace moetape::inline v0
