// Room tape on one thread: 8 requests of 32,768 tokens, shape of DeepSeek-V3 (58 MoE layers, 8 of 256), and
// the same with 128 experts. Each work and its bar (the same bytes by write or mmap, and XXH3) take turns;
// `of_bar` is the median ratio of a round. Files are in memory (/dev/shm) where there is such a folder, so
// that the disk has no say; the file of 10 GB is sparse, in the temporary folder.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "moetape/tape.h"
#include "tape/checksum.h"
#include "tape/file_writer.h"

namespace moetape::inline v0 {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kNumSequences = 8;
constexpr int64_t kNumRows = 32'768;
constexpr size_t kBlockBytes = size_t{1024} * 464;

RouteSpec spec_of(int32_t num_experts, bool distinct = true) {
  RouteSpecFields fields;
  fields.layers.resize(58);
  std::iota(fields.layers.begin(), fields.layers.end(), 3);
  fields.top_k = 8;
  fields.num_experts = num_experts;
  fields.distinct = distinct;
  return *RouteSpec::create(fields);
}

Routes make_routes(const RouteSpec& spec, uint64_t seed) {
  std::mt19937_64 random(seed);
  RoutesBuilder builder = *RoutesBuilder::create(spec, 0, kNumRows);
  for (int64_t i = 0; i < kNumRows * 58; ++i) {
    const uint64_t first = random();
    for (uint64_t k = 0; k < 8; ++k) {
      builder.ids()[i * 8 + static_cast<int64_t>(k)] =
          static_cast<std::byte>((first + k * 5) % static_cast<uint64_t>(spec.num_experts()));
    }
  }
  std::fill_n(builder.reasons(), kNumRows, Reason::kValid);
  builder.add_version(0, kNumRows, 1);
  return std::move(builder).finish();
}

const std::vector<Routes>& routes_of(int32_t num_experts) {
  static std::map<int32_t, std::vector<Routes>>& all = *new std::map<int32_t, std::vector<Routes>>;
  std::vector<Routes>& routes = all[num_experts];
  for (int64_t i = std::ssize(routes); i < kNumSequences; ++i) {
    routes.push_back(make_routes(spec_of(num_experts), static_cast<uint64_t>(i)));
  }
  return routes;
}

// A folder of its own, gone at the end.
class Folder {
 public:
  explicit Folder(bool in_memory) {
    const fs::path memory = "/dev/shm";
    path_ = (in_memory && fs::exists(memory) ? memory : fs::temp_directory_path()) /
            ("moetape_bench_" + std::to_string(getpid()));
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

template <class Bar, class Work>
void take_turns(benchmark::State& state, int64_t bytes, Bar bar, Work work) {
  std::vector<double> ratios;
  for (auto _ : state) {
    const auto begin = Clock::now();
    bar();
    const auto middle = Clock::now();
    work();
    const std::chrono::duration<double> bar_time = middle - begin;
    const std::chrono::duration<double> work_time = Clock::now() - middle;
    state.SetIterationTime(work_time.count());
    ratios.push_back(bar_time / work_time);
  }
  std::ranges::sort(ratios);
  state.counters["of_bar"] = ratios[ratios.size() / 2];
  state.counters["of_bar_q1"] = ratios[ratios.size() / 4];
  state.counters["of_bar_q3"] = ratios[ratios.size() * 3 / 4];
  state.SetBytesProcessed(state.iterations() * bytes);
}

int64_t num_bytes(const std::vector<Routes>& routes) {
  return std::accumulate(routes.begin(), routes.end(), int64_t{0},
                         [](int64_t sum, const Routes& r) { return sum + std::ssize(r.ids()); });
}

// The bar of writing: each piece is summed and written, the file synced and named.
void write_plainly(const std::vector<Routes>& routes, const std::string& path) {
  const std::string hidden = path + ".part";
  const int file = open(hidden.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0666);
  for (const Routes& one : routes) {
    for (size_t at = 0; at < one.ids().size(); at += kBlockBytes) {
      const auto block = one.ids().subspan(at, std::min(kBlockBytes, one.ids().size() - at));
      benchmark::DoNotOptimize(tape::Checksum::of(block));
      require(write(file, block.data(), block.size()) == std::ssize(block), "write");
    }
  }
  fsync(file);
  close(file);
  std::rename(hidden.c_str(), path.c_str());
}

// The bar of reading: the file mapped, and summed piece by piece.
void read_plainly(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  const auto bytes = static_cast<size_t>(fs::file_size(path));
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  require(data != MAP_FAILED, "mmap");
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const std::span block(static_cast<const std::byte*>(data) + at, std::min(kBlockBytes, bytes - at));
    benchmark::DoNotOptimize(tape::Checksum::of(block));
  }
  munmap(data, bytes);
  close(file);
}

void write_tape(const std::vector<Routes>& routes, const std::string& path, TapeOptions options) {
  options.overwrite = true;
  TapeWriter writer = value_of(TapeWriter::create(path, routes[0].spec(), options));
  for (const Routes& one : routes) require(writer.append(one).has_value(), "append");
  require(writer.finish().has_value(), "finish");
}

void write_all(benchmark::State& state, int32_t num_experts, const TapeOptions& options) {
  const Folder folder(true);
  const std::vector<Routes>& routes = routes_of(num_experts);
  write_tape(routes, folder / "run.tape", options);
  require(*value_of(Tape::open(folder / "run.tape")).read(kNumSequences - 1) == routes.back(), "tape");
  take_turns(
      state, num_bytes(routes), [&] { write_plainly(routes, folder / "plain"); },
      [&] { write_tape(routes, folder / "run.tape", options); });
}

void read_all(benchmark::State& state, int32_t num_experts, const TapeOptions& options) {
  const Folder folder(true);
  const std::vector<Routes>& routes = routes_of(num_experts);
  write_plainly(routes, folder / "plain");
  write_tape(routes, folder / "run.tape", options);
  require(*value_of(Tape::open(folder / "run.tape")).read(kNumSequences - 1) == routes.back(), "tape");
  take_turns(
      state, num_bytes(routes), [&] { read_plainly(folder / "plain"); },
      [&] {
        const Tape tape = value_of(Tape::open(folder / "run.tape"));
        for (int64_t i = 0; i < kNumSequences; ++i) benchmark::DoNotOptimize(value_of(tape.read(i)));
      });
}

void to_bytes(benchmark::State& state, int32_t num_experts, const TapeOptions& options) {
  const std::vector<Routes> routes = {routes_of(num_experts)[0]};
  for (auto _ : state) benchmark::DoNotOptimize(value_of(tape_bytes(routes[0].spec(), routes, {}, options)));
  state.SetBytesProcessed(state.iterations() * num_bytes(routes));
}

void from_bytes(benchmark::State& state, int32_t num_experts, const TapeOptions& options) {
  const std::vector<Routes> routes = {routes_of(num_experts)[0]};
  const Buffer bytes = value_of(tape_bytes(routes[0].spec(), routes, {}, options));
  for (auto _ : state) benchmark::DoNotOptimize(value_of(value_of(Tape::from_bytes(bytes)).read(0)));
  state.SetBytesProcessed(state.iterations() * num_bytes(routes));
}

// Leaves out what is zero.
class SparseFile final : public tape::Output {
 public:
  explicit SparseFile(const std::string& path)
      : file_(open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0666)) {}
  ~SparseFile() override { close(file_); }
  Status write(int64_t at, std::span<const std::byte> bytes) override {
    if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) return {};
    require(pwrite(file_, bytes.data(), bytes.size(), at) == std::ssize(bytes), "write");
    return {};
  }
  Status cut(int64_t bytes) override {
    require(ftruncate(file_, bytes) == 0, "cut");
    return {};
  }

 private:
  int file_;
};

// 10 GB of which one request of 32,768 tokens is wanted.
void open_10_gb(benchmark::State& state) {
  const Folder folder(false);
  const RouteSpec spec = spec_of(256, false);
  constexpr int64_t kMany = 10'000'000'000 / (kNumRows * 464) + 1;
  const std::vector<std::byte> zeros(kBlockBytes);
  const std::vector<Reason> valid(1024, Reason::kValid);
  auto writer = value_of(tape::FileWriter::create(
      value_of(tape::describe(spec, {})), std::make_unique<SparseFile>(folder / "10.tape"), std::nullopt));
  for (int64_t i = 0; i < kMany; ++i) {
    const std::string id = std::to_string(i);
    tape::SequenceInput input{.id = id, .num_rows = kNumRows};
    input.rows = [&](int64_t, int64_t) -> Result<tape::SequenceInput::Rows> {
      return tape::SequenceInput::Rows{zeros.data(), valid.data()};
    };
    require(writer->append(input).has_value(), "append");
  }
  require(value_of(writer->finish()).num_bytes > 10'000'000'000, "10 GB");
  int64_t sequence = 0;
  for (auto _ : state) {
    const Tape tape = value_of(Tape::open(folder / "10.tape"));
    benchmark::DoNotOptimize(value_of(tape.read(sequence)));
    sequence = (sequence + 1) % 8;
  }
}

void open_only(benchmark::State& state) {
  const Folder folder(true);
  write_tape(routes_of(256), folder / "run.tape", {});
  for (auto _ : state) benchmark::DoNotOptimize(value_of(Tape::open(folder / "run.tape")));
}

const TapeOptions kNone = {};
const TapeOptions kBitpack = {.codec = Codec::kBitpack};
TapeOptions stages() {
  TapeOptions options;
  options.layer_groups.resize(4);
  for (int32_t layer = 3; layer < 61; ++layer)
    options.layer_groups[static_cast<size_t>(layer / 16)].push_back(layer);
  return options;
}

BENCHMARK_CAPTURE(write_all, none, 256, kNone)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_all, four_groups, 256, stages())->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_all, bitpack_128, 128, kBitpack)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_all, none, 256, kNone)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_all, none_128, 128, kNone)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_all, four_groups, 256, stages())->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_all, bitpack_128, 128, kBitpack)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(to_bytes, none, 256, kNone)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(to_bytes, bitpack_128, 128, kBitpack)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(from_bytes, none, 256, kNone)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(from_bytes, bitpack_128, 128, kBitpack)->Unit(benchmark::kMillisecond);
BENCHMARK(open_only)->Unit(benchmark::kMicrosecond);
BENCHMARK(open_10_gb)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moetape::inline v0
