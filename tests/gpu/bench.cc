#include "tests/gpu/bench.h"

#include <chrono>
#include <functional>

#include "record/cuda/product.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr int32_t kLayers = 58;
constexpr int32_t kTopK = 8;
constexpr int32_t kNumExperts = 256;
constexpr int64_t kMaxRows = 8192;
constexpr int64_t kRowBytes = int64_t{kLayers} * kTopK;
constexpr int kReplays = 50;

RouteSpec spec_of() {
  RouteSpecFields fields;
  for (int32_t layer = 3; layer < 3 + kLayers; ++layer) fields.layers.push_back(layer);
  fields.top_k = kTopK;
  fields.num_experts = kNumExperts;
  return must(RouteSpec::create(fields));
}

class Bench {
 public:
  explicit Bench(Rig& rig) : rig_(rig), arrays_(*rig.device()), stream_(rig.make_stream()) {
    store_ = must(Store::create(spec_of(), {.num_slots = 2 * kMaxRows, .populate = true}));
    step_ = reinterpret_cast<int32_t*>(arrays_.add(std::vector<std::byte>(4)));
    ids_ = reinterpret_cast<int32_t*>(arrays_.add(std::vector<std::byte>(kMaxRows * kTopK * 4)));
    buffer_ = reinterpret_cast<int32_t*>(arrays_.add(std::vector<std::byte>(kMaxRows * kRowBytes * 4)));
    for (int64_t i = 0; i < kMaxRows; ++i) slots_.push_back(i * 5 % kMaxRows);
    device_slots_ = reinterpret_cast<int64_t*>(arrays_.add(as_type<int64_t>(slots_)));
    pinned_ = must(rig_.device()->allocate_pinned(2 * kMaxRows * kRowBytes * 4));
  }
  ~Bench() { rig_.device()->free_pinned(pinned_.host); }

  BenchResult run(const std::vector<int64_t>& batches) {
    for (const int64_t batch : batches) {
      none(batch);
      copies(batch);
      scatters(batch);
      for (const CommitPath path : kPaths) {
        ours(batch, path, true);
        ours(batch, path, false);
      }
    }
    bandwidths(batches.back());
    return std::move(result_);
  }

 private:
  GateArgs gate(int64_t batch, int32_t layer) const {
    return {.num_rows = batch,
            .layer = layer,
            .top_k = kTopK,
            .num_experts = kNumExperts,
            .step = step_,
            .ids = ids_,
            .lane_ids = nullptr};
  }

  std::unique_ptr<Rig::Graph> graph_of(const std::function<void()>& enqueue) {
    enqueue();  // loads the kernels
    rig_.synchronize(stream_);
    rig_.begin_capture(stream_);
    enqueue();
    return rig_.end_capture(stream_);
  }

  // Microseconds a step, and of the host's part of it.
  void time(const std::string& variant, int64_t batch, Rig::Graph& graph, int64_t pcie_bytes,
            const std::function<void()>& before_replay) {
    const int replays = rig_.measures() ? kReplays : 2;
    double host = 0;
    const auto run = [&] {
      for (int i = 0; i < replays; ++i) {
        const auto start = std::chrono::steady_clock::now();
        before_replay();
        host += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        graph.replay(stream_);
      }
    };
    run();
    rig_.synchronize(stream_);
    host = 0;
    rig_.start_clock(stream_);
    run();
    const double total = rig_.stop_clock(stream_) / replays;
    if (variant == kNoRecording) none_ = total;
    result_.steps.push_back(
        {variant, batch, total, total - none_, graph.num_nodes(), pcie_bytes, host / replays});
  }

  void none(int64_t batch) {
    const auto graph = graph_of([&] {
      for (int32_t layer = 0; layer < kLayers; ++layer) rig_.launch(gate(batch, layer), stream_);
    });
    time(kNoRecording, batch, *graph, 0, [] {});
  }

  void copies(int64_t batch) {
    const int64_t bytes = batch * kRowBytes * 4;
    const auto graph = graph_of([&] {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        rig_.launch(gate(batch, layer), stream_);
        rig_.launch(CopyLayerArgs{batch, layer, kLayers, kTopK, ids_, buffer_}, stream_);
      }
      must(rig_.device()->copy(pinned_.host, buffer_, bytes, stream_));
    });
    time("copy a layer (int32), then one copy", batch, *graph, bytes, [] {});
  }

  void scatters(int64_t batch) {
    auto* host = reinterpret_cast<uint8_t*>(pinned_.device);
    const auto graph = graph_of([&] {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        rig_.launch(gate(batch, layer), stream_);
        rig_.launch(ScatterArgs{batch, layer, kLayers, kTopK, ids_, device_slots_, host}, stream_);
      }
    });
    time("scatter a layer to pinned memory", batch, *graph, batch * kRowBytes, [] {});
  }

  std::unique_ptr<Recorder> recorder_of(CommitPath path) {
    RecorderOptions options = {.max_rows = kMaxRows};
    options.cuda.emplace().path = path;
    return Recorder::Impl::wrap(must(make_recorder(store_, options, rig_.device())));
  }

  Ticket prepare(Recorder& recorder, int64_t batch) {
    const auto count = static_cast<size_t>(batch);
    return must(recorder.prepare(Slots(std::span(slots_).first(count)), layout_,
                                 {.step = ++number_, .stream = stream_}));
  }

  void finish(const Ticket& ticket, int64_t batch, const std::string& variant) {
    for (int i = 0; i < 2; ++i) {
      rig_.synchronize(stream_);
      static_cast<void>(ticket.ready());
    }
    must(ticket.wait());
    if (ticket.report().num_kept == batch) return;
    throw std::runtime_error(fmt::format("{}: kept {} of {} rows", variant, ticket.report().num_kept, batch));
  }

  void ours(int64_t batch, CommitPath path, bool direct) {
    const auto recorder = recorder_of(path);
    const std::string variant = std::string(direct ? "ours, layer_buffer" : "ours, capture") +
                                (path == CommitPath::kMapped ? ", mapped" : ", packed");
    const auto forward = [&] {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        GateArgs args = gate(batch, layer);
        if (direct) {
          args.ids = nullptr;
          args.lane_ids = static_cast<int16_t*>(must(recorder->layer_buffer(3 + layer)).data);
        }
        rig_.launch(args, stream_);
        if (!direct)
          must(recorder->capture(3 + layer, {ids_, IntType::kInt32, batch, kTopK, kTopK, 1}, 0, 0, stream_));
      }
    };
    forward();
    const Ticket warm = prepare(*recorder, batch);
    must(recorder->launch(0, stream_));
    finish(warm, batch, variant);
    rig_.begin_capture(stream_);
    must(recorder->begin(0, stream_));
    forward();
    must(recorder->launch(0, stream_));
    const auto graph = rig_.end_capture(stream_);
    Ticket ticket = warm;
    const int64_t bytes = batch * (store_->spec().row_stride() + 8) + batch * 8 + 128;
    time(variant, batch, *graph, bytes, [&] {
      must(recorder->begin(0, stream_));
      ticket = prepare(*recorder, batch);
    });
    finish(ticket, batch, variant);
  }

  // The commit's kernel alone, against one copy of as many bytes into pinned memory.
  void bandwidths(int64_t batch) {
    const int64_t bytes = batch * kRowBytes;
    const int replays = rig_.measures() ? kReplays : 2;
    const auto gigabytes = [&](double microseconds) {
      return microseconds <= 0 ? 0 : static_cast<double>(bytes) / microseconds / 1000;
    };
    rig_.start_clock(stream_);
    for (int i = 0; i < replays; ++i) must(rig_.device()->copy(pinned_.host, buffer_, bytes, stream_));
    result_.bandwidths.push_back({kPinnedCopy, batch, gigabytes(rig_.stop_clock(stream_) / replays)});
    for (const CommitPath path : kPaths) {
      const auto recorder = recorder_of(path);
      double total = 0;
      for (int i = 0; i < replays; ++i) {
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          GateArgs args = gate(batch, layer);
          args.lane_ids = static_cast<int16_t*>(must(recorder->layer_buffer(3 + layer)).data);
          rig_.launch(args, stream_);
        }
        const Ticket ticket = prepare(*recorder, batch);
        rig_.synchronize(stream_);
        rig_.start_clock(stream_);
        must(recorder->launch(0, stream_));
        total += rig_.stop_clock(stream_);
        finish(ticket, batch, "commit alone");
      }
      result_.bandwidths.push_back({path == CommitPath::kMapped ? kCommitMapped : "commit, packed", batch,
                                    gigabytes(total / replays)});
    }
  }

  Rig& rig_;
  DeviceArrays arrays_;
  StreamHandle stream_;
  std::shared_ptr<Store> store_;
  int32_t* step_;
  int32_t* ids_;
  int32_t* buffer_;
  std::vector<int64_t> slots_;
  int64_t* device_slots_;
  MappedMemory pinned_;
  const Layout layout_ = Layout::whole();
  int64_t number_ = 0;
  double none_ = 0;
  BenchResult result_;
};

}  // namespace

BenchResult run_bench(Rig& rig, const std::vector<int64_t>& batches) { return Bench(rig).run(batches); }

}  // namespace moetape::inline v0::cuda
