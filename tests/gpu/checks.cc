#include "tests/gpu/checks.h"

#include <deque>
#include <map>

#include "record/cuda/product.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr int32_t kTopK = 8;
constexpr int32_t kNumExperts = 256;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

RouteSpec spec_of(int32_t num_layers) {
  RouteSpecFields fields;
  for (int32_t layer = 0; layer < num_layers; ++layer) fields.layers.push_back(layer);
  fields.top_k = kTopK;
  fields.num_experts = kNumExperts;
  return must(RouteSpec::create(fields));
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// A store, a recorder and the gates of a model that writes straight into its lanes.
class Model {
 public:
  Model(Rig& rig, int32_t num_layers, int64_t max_rows, int num_lanes, CommitPath path)
      : rig_(rig), arrays_(*rig.device()), num_layers_(num_layers) {
    store = must(Store::create(spec_of(num_layers), {.num_slots = 8 * max_rows}));
    RecorderOptions options = {.max_rows = max_rows, .num_lanes = num_lanes};
    options.cuda.emplace().path = path;
    recorder = Recorder::Impl::wrap(must(make_recorder(store, options, rig.device())));
    step_ = reinterpret_cast<int32_t*>(arrays_.add(std::vector<std::byte>(4)));
    ids_ = reinterpret_cast<int32_t*>(
        arrays_.add(std::vector<std::byte>(static_cast<size_t>(max_rows) * kTopK * 4)));
  }

  // The choice of the forwards that are enqueued on this stream from now on.
  void set_step(int32_t step, StreamHandle stream) {
    steps_.push_back(step);  // lives until the copy is done
    must(rig_.device()->copy(step_, &steps_.back(), 4, stream));
  }
  void forward(int64_t num_rows, StreamHandle stream, int lane = 0, int32_t num_layers = INT32_MAX) {
    for (int32_t layer = 0; layer < std::min(num_layers, num_layers_); ++layer) {
      GateArgs gate = {.num_rows = num_rows,
                       .layer = layer,
                       .top_k = kTopK,
                       .num_experts = kNumExperts,
                       .step = step_,
                       .ids = ids_,
                       .lane_ids = nullptr};
      const bool writes_itself = layer % 2 == 0;
      if (writes_itself)
        gate.lane_ids = static_cast<int16_t*>(must(recorder->layer_buffer(layer, lane)).data);
      rig_.launch(gate, stream);
      if (!writes_itself)
        must(recorder->capture(layer, {ids_, IntType::kInt32, num_rows, kTopK, kTopK, 1}, lane, 0, stream));
    }
  }
  // Rows [0, count) of the step, in these slots.
  void require_rows(const std::vector<int64_t>& slots, int32_t step, const std::string& what) const {
    const Routes routes = must(store->read(Slots(slots)));
    require(routes.complete(), what + ": rows are missing");
    for (int64_t row = 0; row < routes.num_rows(); ++row) {
      for (int32_t layer = 0; layer < num_layers_; ++layer) {
        for (int32_t k = 0; k < kTopK; ++k) {
          const auto id = static_cast<int32_t>(routes.row(row)[static_cast<size_t>(layer * kTopK + k)]);
          const int32_t right = chosen(row, layer, k, step, kNumExperts);
          require(id == right, fmt::format("{}: row {} layer {} k {}: expected {}, got {}", what, row, layer,
                                           k, right, id));
        }
      }
    }
  }
  CommitReport landed(const Ticket& ticket, StreamHandle stream) const {
    rig_.synchronize(stream);
    static_cast<void>(ticket.ready());  // asks for packed rows
    rig_.synchronize(stream);
    must(ticket.wait());
    return ticket.report();
  }

  std::shared_ptr<Store> store;
  std::unique_ptr<Recorder> recorder;

 private:
  Rig& rig_;
  DeviceArrays arrays_;
  int32_t num_layers_;
  int32_t* step_;
  int32_t* ids_;
  std::deque<int32_t> steps_;
};

void replay_a_graph(Rig& rig, CommitPath path) {
  constexpr int64_t kRows = 64;
  Model model(rig, 5, kRows, 1, path);
  const StreamHandle stream = rig.make_stream();
  model.set_step(0, stream);
  model.forward(1, stream);  // before the capture, as engines warm up
  rig.synchronize(stream);
  rig.begin_capture(stream);
  must(model.recorder->begin(0, stream));
  model.forward(kRows, stream);
  must(model.recorder->launch(0, stream));
  const auto graph = rig.end_capture(stream);
  for (int32_t round = 0; round < 100; ++round) {
    const int64_t valid = 1 + round * 7 % kRows;
    const auto slots = range(round, valid);
    model.set_step(round, stream);
    must(model.recorder->begin(0, stream));
    const CommitOptions options = {
        .step = 10 + round, .version = static_cast<uint32_t>(round), .stream = stream};
    const Ticket ticket =
        must(model.recorder->prepare(Slots(slots), Layout::graph_padded(valid, kRows), options));
    graph->replay(stream);
    const CommitReport report = model.landed(ticket, stream);
    require(report.num_kept == valid, fmt::format("replay {}: kept {} of {}", round, report.num_kept, valid));
    model.require_rows(slots, round, fmt::format("replay {}", round));
    const Routes routes = must(model.store->read(Slots(slots)));
    require(routes.versions()[0] == VersionRun{0, valid, static_cast<uint32_t>(round)}, "versions");
  }
  // A replay that nobody prepared leaves nothing behind.
  graph->replay(stream);
  must(model.recorder->begin(0, stream));
  const auto slots = range(0, 4);
  const Ticket ticket = must(
      model.recorder->commit(Slots(slots), Layout::graph_padded(4, kRows), {.step = 500, .stream = stream}));
  require(model.landed(ticket, stream).num_kept == 0, "ids of a replay that nobody prepared were kept");
}

// Graphs of several sizes in one recorder, and the pieces of a forward as graphs with begin and commit
// outside.
void take_turns(Rig& rig, CommitPath path) {
  constexpr int64_t kMaxRows = 64;
  Model model(rig, 5, kMaxRows, 1, path);
  const StreamHandle stream = rig.make_stream();
  std::map<int64_t, std::unique_ptr<Rig::Graph>> whole, pieces;
  for (const int64_t size : {64, 16, 4}) {
    rig.begin_capture(stream);
    must(model.recorder->begin(0, stream));
    model.forward(size, stream);
    must(model.recorder->launch(0, stream));
    whole[size] = rig.end_capture(stream);
    rig.begin_capture(stream);
    model.forward(size, stream);
    pieces[size] = rig.end_capture(stream);
  }
  for (int32_t round = 0; round < 30; ++round) {
    const int64_t valid = 1 + round * 11 % kMaxRows;
    const auto size = whole.lower_bound(valid)->first;
    const Layout layout = Layout::graph_padded(valid, size);
    const auto slots = range(round, valid);
    model.set_step(round, stream);
    must(model.recorder->begin(0, stream));
    const CommitOptions options = {.step = round + 1, .stream = stream};
    if (round % 3 == 2) pieces[size]->replay(stream);
    const Ticket ticket = must(round % 3 == 2 ? model.recorder->commit(Slots(slots), layout, options)
                                              : model.recorder->prepare(Slots(slots), layout, options));
    if (round % 3 != 2) whole[size]->replay(stream);
    const CommitReport report = model.landed(ticket, stream);
    require(report.num_kept == valid, fmt::format("size {}: kept {} of {}", size, report.num_kept, valid));
    model.require_rows(slots, round, fmt::format("size {}", size));
  }
}

void give_a_step_up(Rig& rig, CommitPath path) {
  constexpr int64_t kRows = 16;
  Model model(rig, 3, kRows, 1, path);
  const StreamHandle stream = rig.make_stream();
  model.set_step(7, stream);
  rig.begin_capture(stream);
  must(model.recorder->begin(0, stream));
  model.forward(kRows, stream);
  must(model.recorder->launch(0, stream));
  const auto graph = rig.end_capture(stream);
  const auto slots = range(0, kRows);
  must(model.recorder->begin(0, stream));
  const Ticket first = must(model.recorder->prepare(Slots(slots), Layout::whole(), {.stream = stream}));
  graph->replay(stream);
  must(model.recorder->begin(0, stream));  // it is not over: only the device knows that it was launched
  require(model.landed(first, stream).num_kept == kRows, "a step that a graph launched was given up");
  const Ticket given_up = must(model.recorder->prepare(Slots(slots), Layout::whole(), {.stream = stream}));
  must(model.recorder->begin(0, stream));
  graph->replay(stream);  // a dummy
  rig.synchronize(stream);
  static_cast<void>(given_up.ready());
  rig.synchronize(stream);
  const Status over = given_up.wait();
  require(!over && over.error().code == ErrorCode::kNotCaptured, "a step was not given up");
  const Routes routes = must(model.store->read(Slots(slots)));
  for (const Reason reason : routes.reasons())
    require(reason == Reason::kRefused, "a dummy replay committed a step that was given up");
}

void move_beside_a_lane(Rig& rig, CommitPath path) {
  Model model(rig, 3, 8, 1, path);
  const StreamHandle stream = rig.make_stream();
  model.set_step(3, stream);
  must(model.recorder->begin(0, stream));
  model.forward(8, stream);
  must(model.recorder->commit(Slots(range(0, 8)), Layout::whole(), {.stream = stream}));
  rig.synchronize(stream);
  must(model.store->move(Slots(range(0, 8)), Slots(range(8, 8))));  // nobody asked the ticket
  model.require_rows(range(8, 8), 3, "moved rows");
}

// Commits on a stream of their own, behind a delay, while the next forwards go on.
void overlap_two_streams(Rig& rig, CommitPath path) {  // cases F01 F02
  constexpr int64_t kRows = 32;
  Model model(rig, 3, kRows, 2, path);
  const StreamHandle forward = rig.make_stream();
  const StreamHandle side = rig.make_stream();
  std::vector<Ticket> tickets;
  for (int32_t step = 0; step < 6; ++step) {
    const int lane = step % 2;
    model.set_step(step, forward);
    must(model.recorder->begin(lane, forward));
    model.forward(kRows, forward, lane);
    rig.delay(side);
    const CommitOptions options = {.step = step + 1, .lane = lane, .stream = side};
    tickets.push_back(must(model.recorder->commit(Slots(range(step * 20, kRows)), Layout::whole(), options)));
  }
  rig.synchronize(forward);
  for (const Ticket& ticket : tickets) require(model.landed(ticket, side).num_kept > 0, "nothing kept");
  // Rows 0 to 19 of each step were not overwritten by the next.
  for (int32_t step = 0; step < 6; ++step) model.require_rows(range(step * 20, 20), step, "overlap");
}

void give_slots_away(Rig& rig, CommitPath path) {  // case F08
  Model model(rig, 3, 8, 1, path);
  const StreamHandle stream = rig.make_stream();
  model.set_step(1, stream);
  must(model.recorder->begin(0, stream));
  rig.delay(stream);
  model.forward(8, stream);
  const auto slots = range(0, 8);
  const Ticket ticket = must(model.recorder->commit(Slots(slots), Layout::whole(), {.stream = stream}));
  must(model.store->invalidate(Slots(slots)));
  model.landed(ticket, stream);
  const Routes routes = must(model.store->read(Slots(slots)));
  for (const Reason reason : routes.reasons())
    require(reason == Reason::kInvalidated, "a late commit revived a slot that was given away");
}

void leave_layers_out(Rig& rig, CommitPath path) {  // cases H01 H09
  Model model(rig, 3, 8, 1, path);
  const StreamHandle stream = rig.make_stream();
  model.set_step(1, stream);
  for (int32_t layer : {0, 2}) static_cast<void>(must(model.recorder->layer_buffer(layer)));
  must(model.recorder->begin(0, stream));
  model.forward(8, stream, 0, 2);  // layer 2 is left out
  const auto slots = range(0, 8);
  const Ticket ticket = must(model.recorder->commit(Slots(slots), Layout::whole(), {.stream = stream}));
  const CommitReport report = model.landed(ticket, stream);
  require(report.num_refused == 8 && report.unwritten == std::vector<UnwrittenLayer>{{2, 8}},
          "a layer that was left out was not named");
}

void send_slots_from_the_device(Rig& rig, CommitPath path) {
  Model model(rig, 3, 8, 1, path);
  DeviceArrays arrays(*rig.device());
  const StreamHandle stream = rig.make_stream();
  model.set_step(2, stream);
  must(model.recorder->begin(0, stream));
  model.forward(8, stream);
  const std::vector<int64_t> slots = {5, 4, -1, 3, 1000, 2, 1, 0};
  const DeviceSlots there = {arrays.add(as_type<int64_t>(slots)), IntType::kInt64, 8};
  const Ticket ticket = must(model.recorder->commit(there, Layout::whole(), {.stream = stream}));
  const CommitReport report = model.landed(ticket, stream);
  require(report.num_kept == 6 && report.num_no_slot == 1 && report.num_out_of_range == 1,
          "slots on the device were counted wrongly");
  model.require_rows({5, 4}, 2, "slots on the device");
}

}  // namespace

int64_t check_products(Rig& rig, bool reduced) {
  std::mt19937 random(20'260'801);
  int64_t num_done = 0;
  for (const Combination& combination : pairwise(random)) {
    const Step step = make_step(combination, random);
    const bool small = step.batch_rows <= 600 && step.spec.num_moe_layers() <= 3;
    if (reduced && !small) continue;
    Runner runner(combination, step);
    const Outcome cpu = runner.on_cpu();
    const Outcome device = runner.on_device(rig.device(), [&] { rig.synchronize(nullptr); });
    const std::string found = difference(device, cpu);
    require(found.empty(), text_of(combination) + ": " + found);
    num_done += 1;
  }
  return num_done;
}

int64_t check_graphs(Rig& rig) {
  for (const CommitPath path : kPaths) replay_a_graph(rig, path);
  return 200;
}

int64_t check_given_up(Rig& rig) {
  for (const CommitPath path : kPaths) {
    take_turns(rig, path);
    give_a_step_up(rig, path);
    move_beside_a_lane(rig, path);
  }
  return 6;
}

int64_t check_overlap(Rig& rig) {
  for (const CommitPath path : kPaths) {
    overlap_two_streams(rig, path);
    give_slots_away(rig, path);
    leave_layers_out(rig, path);
    send_slots_from_the_device(rig, path);
  }
  return 8;
}

}  // namespace moetape::inline v0::cuda
