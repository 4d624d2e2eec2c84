// Delayed kernels, tickets, cutoffs and lanes beside readers: the streams of the simulated device are
// threads. Run under ThreadSanitizer in `make test`.
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "record/cuda/cuda_test_util.h"

namespace moetape::inline v0::cuda {
namespace {

using Mode = SimulatedDevice::Mode;

constexpr int32_t kLayers = 40;  // a row is 80 bytes: several words

class CudaRace : public testing::TestWithParam<CommitPath> {
 protected:
  void make(int num_lanes) {
    RouteSpecFields fields = two_layers();
    fields.layers = {};
    for (int32_t layer = 0; layer < kLayers; ++layer) fields.layers.push_back(layer);
    fields.num_experts = 256;
    store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 256}));
    device = std::make_shared<SimulatedDevice>(Mode::kThreads);
    RecorderOptions options = {.max_rows = 64, .num_lanes = num_lanes};
    options.cuda.emplace().path = GetParam();
    recorder = value_of(make_simulated(store, options, device));
  }
  ~CudaRace() override { recorder.reset(); }

  std::shared_ptr<Store> store;
  std::shared_ptr<SimulatedDevice> device;
  std::unique_ptr<Recorder> recorder;
};

INSTANTIATE_TEST_SUITE_P(Paths, CudaRace, testing::Values(CommitPath::kMapped, CommitPath::kPacked),
                         [](const auto& path) {
                           return path.param == CommitPath::kMapped ? "Mapped" : "Packed";
                         });

// Reads until told to stop; every valid row is of one step: its ids are n, n + 1, n, n + 1, …
void read_rows(const Store& store, const std::atomic<bool>& stop) {
  const auto slots = slots_from(0, 128);
  while (!stop) {
    const Routes routes = value_of(store.read(Slots(slots)));
    for (int64_t i = 0; i < routes.num_rows(); ++i) {
      if (routes.reasons()[static_cast<size_t>(i)] != Reason::kValid) continue;
      const auto row = routes.row(i);
      ASSERT_EQ(static_cast<int>(row[0]) + 1, static_cast<int>(row[1]));
      for (size_t k = 2; k < row.size(); ++k) ASSERT_EQ(row[k], row[k - 2]);
    }
  }
}

TEST_P(CudaRace, LanesCommitOnTwoStreamsBesideReadersAndTickets) {  // cases F01 F02
  constexpr int64_t kRounds = 60;
  make(2);
  std::atomic<bool> stop = false;
  std::thread reader([&] { read_rows(*store, stop); });
  std::mutex mutex;
  std::deque<Ticket> tickets;
  std::thread waiter([&] {
    for (int64_t seen = 0; seen < 2 * kRounds;) {
      std::unique_lock lock(mutex);
      if (tickets.empty()) {
        lock.unlock();
        std::this_thread::yield();
        continue;
      }
      const Ticket ticket = tickets.front();
      tickets.pop_front();
      lock.unlock();
      expect_ok(ticket.wait());
      EXPECT_EQ(ticket.report().num_kept, 64);
      seen += 1;
    }
  });
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 2; ++lane) {
    lanes.emplace_back([&, lane] {
      const StreamHandle forward = device->make_stream();
      const StreamHandle side = device->make_stream();
      const auto slots = slots_from(lane * 64, 64);
      for (int64_t round = 0; round < kRounds; ++round) {
        const IdsView ids = on_device(*device, Ids(64, {round, round + 1}), 2);
        expect_ok(recorder->begin(lane, forward));
        expect_ok(recorder->capture_all(ids, 0, kLayers, lane, forward));
        const CommitOptions options = {.lane = lane, .stream = round % 2 == 0 ? side : forward};
        const Ticket ticket = value_of(recorder->commit(Slots(slots), Layout::whole(), options));
        const std::lock_guard lock(mutex);
        tickets.push_back(ticket);
      }
    });
  }
  for (auto& thread : lanes) thread.join();
  waiter.join();
  stop = true;
  reader.join();
  EXPECT_EQ(recorder->counters().rows_kept, 2 * kRounds * 64);
  EXPECT_THAT(shown(*store, {0, 127}), testing::Each(testing::StartsWith("59 60 59 60")));
}

TEST_P(CudaRace, SlotsGivenAwayUnderDelayedCommitsNeverShowTheirLastOwner) {  // case F08
  make(1);
  const StreamHandle forward = device->make_stream();
  std::atomic<bool> stop = false;
  std::thread reader([&] { read_rows(*store, stop); });
  for (int64_t round = 0; round < 100; ++round) {
    // The owner of slot 7 writes n, is gone before its rows have come, and the next owner reads at once.
    const int64_t id = 2 * (round % 100);
    const IdsView ids = on_device(*device, Ids(1, {id, id + 1}), 2);
    const std::vector<int64_t> slot = {7};
    expect_ok(recorder->begin(0, forward));
    expect_ok(recorder->capture_all(ids, 0, kLayers, 0, forward));
    const Ticket ticket = value_of(recorder->commit(Slots(slot), Layout::whole(), {.stream = forward}));
    expect_ok(store->invalidate(Slots(slot)));
    EXPECT_FALSE(value_of(store->read(Slots(slot))).complete());
    if (round % 3 == 0) expect_ok(ticket.wait());
    EXPECT_FALSE(value_of(store->read(Slots(slot))).complete());
  }
  stop = true;
  reader.join();
}

TEST_P(CudaRace, GraphsAreReplayedBesideTicketsOfOtherThreads) {
  make(1);
  const StreamHandle forward = device->make_stream();
  std::vector<int16_t> ids(128);
  int16_t* choice = device->upload(ids);
  device->begin_capture(forward);
  expect_ok(recorder->capture_all({choice, IntType::kInt16, 64, 2, 2, 1}, 0, kLayers, 0, forward));
  expect_ok(recorder->launch(0, forward));
  const auto graph = device->end_capture(forward);
  std::atomic<bool> stop = false;
  std::thread reader([&] { read_rows(*store, stop); });
  for (int16_t round = 0; round < 60; ++round) {
    std::vector<int16_t> next;
    for (int i = 0; i < 64; ++i) next.insert(next.end(), {round, static_cast<int16_t>(round + 1)});
    expect_ok(device->copy(choice, device->upload(next), 256, forward));
    expect_ok(recorder->begin(0, forward));
    const int64_t valid = 1 + round % 64;
    const auto slots = slots_from(0, valid);
    const CommitOptions options = {.version = static_cast<uint32_t>(round), .stream = forward};
    const Ticket ticket = value_of(recorder->prepare(Slots(slots), Layout::graph_padded(valid, 64), options));
    device->replay(graph, forward);
    std::thread waiter([&] {
      expect_ok(ticket.wait());
      EXPECT_EQ(ticket.report().num_kept, valid);
    });
    if (round % 4 != 0) waiter.join();
    if (waiter.joinable()) {
      static_cast<void>(recorder->counters());
      waiter.join();
    }
    const Routes routes = value_of(store->read(Slots(slots)));
    EXPECT_TRUE(routes.complete());
    EXPECT_EQ(routes.row(0)[0], static_cast<std::byte>(round));
  }
  stop = true;
  reader.join();
}

// Ranks of one machine: each has its device and its recorder, the store's memory is everybody's.
TEST_P(CudaRace, RanksWithADeviceEachWriteOneStoreAtOnce) {
  constexpr int kRanks = 3;
  constexpr int64_t kRounds = 40;
  constexpr int64_t kRows = 32;
  make(1);  // the store
  std::atomic<bool> stop = false;
  std::thread reader([&] { read_rows(*store, stop); });
  std::barrier scheduler(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto own = std::make_shared<SimulatedDevice>(Mode::kThreads, 1 + rank);
      RecorderOptions options = {.max_rows = kRanks * kRows};
      options.cuda.emplace().path = GetParam();
      const auto recorder_of_rank = value_of(make_simulated(store, options, own));
      const StreamHandle forward = own->make_stream();
      const Layout layout = Layout::dp_concat({kRows, kRows, kRows}, rank);
      // All see the whole batch. Every few rounds the ranks change their slots, when what was written there
      // has landed: so engines order it.
      for (int64_t round = 0; round < kRounds; ++round) {
        const auto slots = slots_from((rank + round / 5) % kRanks * kRows, kRows);
        const IdsView ids = on_device(*own, Ids(kRanks * kRows, {round, round + 1}), 2);
        expect_ok(recorder_of_rank->begin(0, forward));
        expect_ok(recorder_of_rank->capture_all(ids, 0, kLayers, 0, forward));
        const CommitOptions how = {.step = round + 1, .stream = forward};
        const Ticket ticket = value_of(recorder_of_rank->commit(Slots(slots), layout, how));
        if (round % 5 != 4) continue;
        expect_ok(ticket.wait());
        EXPECT_EQ(ticket.report().num_kept, kRows);
        scheduler.arrive_and_wait();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  stop = true;
  reader.join();
  EXPECT_THAT(shown(*store, slots_from(0, kRanks * kRows)),
              testing::Each(testing::StartsWith("39 40 39 40")));
}

TEST_P(CudaRace, MovesGoOnBesideLanesWhoseTicketsNobodyAsks) {
  make(1);
  const StreamHandle forward = device->make_stream();
  std::atomic<bool> stop = false;
  std::thread reader([&] { read_rows(*store, stop); });
  const auto slots = slots_from(0, 32);
  const auto targets = slots_from(64, 32);
  for (int64_t round = 0; round < 40; ++round) {
    const IdsView ids = on_device(*device, Ids(32, {round, round + 1}), 2);
    expect_ok(recorder->begin(0, forward));
    expect_ok(recorder->capture_all(ids, 0, kLayers, 0, forward));
    if (round % 4 == 3) {  // a step that is given up
      value_of(recorder->prepare(Slots(slots), Layout::whole(), {.stream = forward}));
      expect_ok(recorder->begin(0, forward));
    } else {
      value_of(recorder->commit(Slots(slots), Layout::whole(), {.stream = forward}));
    }
    expect_ok(store->move(Slots(slots), Slots(targets)));
    EXPECT_EQ(value_of(store->read(Slots(targets))).complete(), round % 4 != 3) << round;
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace moetape::inline v0::cuda
