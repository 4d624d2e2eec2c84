// Readers, writers and movers on the same slots at once. Run under ThreadSanitizer in `make test`.
//
// Every writer fills a row with one value; a row with two values in it is torn and was not noticed.
#include <atomic>
#include <thread>

#include "store/store_test_util.h"

namespace moetape::inline v0 {
namespace {

RouteSpec wide_spec() {
  RouteSpecFields fields;
  for (int32_t layer = 0; layer < 58; ++layer) fields.layers.push_back(layer);
  fields.top_k = 8;
  fields.num_experts = 256;
  fields.distinct = false;
  return value_of(RouteSpec::create(fields));
}

// The one value of the row, or -1 if it holds two.
int value_of_row(std::span<const std::byte> row) {
  for (const std::byte b : row) {
    if (b != row[0]) return -1;
  }
  return static_cast<int>(row[0]);
}

constexpr int64_t kSlots = 256;
constexpr int kRounds = 400;

void write_round(StoreWriter& writer, std::vector<int64_t> slots, uint8_t value) {
  const int64_t stride = writer.store().spec.row_stride();
  const std::vector<std::byte> rows(slots.size() * static_cast<size_t>(stride), std::byte{value});
  const uint64_t step = value_of(writer.submit(std::nullopt));
  const std::vector<Stamp> stamps(slots.size(), make_stamp(value, step));
  writer.place(slots.data(), static_cast<int64_t>(slots.size()), rows.data(), stride, stamps.data());
  writer.land(step);
}

// Every valid row is whole and of the version that its bytes say.
void read_round(const Store& store, const std::vector<int64_t>& slots) {
  const Routes routes = read(store, slots);
  for (const VersionRun& run : routes.versions()) {
    for (int64_t t = run.start; t < run.end; ++t) {
      ASSERT_EQ(value_of_row(routes.row(t)), static_cast<int>(run.version)) << "row " << t;
    }
  }
}

TEST(StoreRace, ReadersNeverSeeAMixtureOfTwoRows) {
  const auto store = value_of(Store::create(wide_spec(), {.num_slots = kSlots}));
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const auto slots = slots_from(0, kSlots);
      while (!stop) read_round(*store, slots);
    });
  }
  std::vector<std::thread> writers;
  for (int64_t half = 0; half < 2; ++half) {
    writers.emplace_back([&, half] {
      auto writer = value_of(StoreWriter::open(store));
      const auto slots = slots_from(half * 128, 128);
      for (int round = 0; round < kRounds; ++round) write_round(writer, slots, static_cast<uint8_t>(round));
    });
  }
  for (auto& thread : writers) thread.join();
  stop = true;
  for (auto& thread : readers) thread.join();
  read_round(*store, slots_from(0, kSlots));
}

TEST(StoreRace, MoversAndInvalidatorsMeetReaders) {
  const auto store = value_of(Store::create(wide_spec(), {.num_slots = kSlots}));
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    const auto slots = slots_from(0, kSlots);
    while (!stop) read_round(*store, slots);
  });
  std::thread mover([&] {
    const auto from = slots_from(0, 64);
    const auto to = slots_from(128, 64);
    while (!stop) {
      expect_ok(store->move(Slots(from), Slots(to)));
      expect_ok(store->invalidate(Slots(to)));
    }
  });
  auto writer = value_of(StoreWriter::open(store));
  for (int round = 0; round < kRounds; ++round)
    write_round(writer, slots_from(0, 64), static_cast<uint8_t>(round));
  stop = true;
  reader.join();
  mover.join();
  EXPECT_EQ(store->last_step() >= kRounds, true);
}

TEST(StoreRace, MovesOfOneStepOntoOneSlotAreNeverMixed) {
  const auto store = value_of(Store::create(wide_spec(), {.num_slots = 8}));
  auto writer = value_of(StoreWriter::open(store));
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    const std::vector<int64_t> slots = {1};
    while (!stop) {
      const Routes routes = read(*store, slots);
      if (routes.reasons()[0] != Reason::kValid) continue;
      ASSERT_NE(value_of_row(routes.row(0)), -1);
    }
  });
  write_round(writer, {0}, 10);
  write_round(writer, {2}, 20);
  const std::vector<int64_t> target = {1};
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int64_t> source = {round % 2 == 0 ? 0 : 2};
    (void)store->move(Slots(source), Slots(target),
                      {.step = 3 + round / 4});  // kConflict three times of four
  }
  stop = true;
  reader.join();
  EXPECT_EQ(store->last_step(), 3 + (kRounds - 1) / 4);
}

TEST(StoreRace, RowsOfAStepThatLandedAreThere) {
  const auto store = value_of(Store::create(wide_spec(), {.num_slots = kSlots}));
  std::atomic<int64_t> landed = 0;
  std::thread reader([&] {
    const auto slots = slots_from(0, 32);
    int64_t as_of = 0;
    while (as_of < kRounds) {
      as_of = landed.load();
      if (as_of == 0) continue;
      const Routes routes = read(*store, slots);
      for (const Reason reason : routes.reasons()) {
        const bool there = reason == Reason::kValid || reason == Reason::kPending ||
                           reason == Reason::kLater || reason == Reason::kTorn;
        ASSERT_TRUE(there) << reason_name(reason);
      }
    }
  });
  auto writer = value_of(StoreWriter::open(store));
  for (int round = 1; round <= kRounds; ++round) {
    write_round(writer, slots_from(0, 32), static_cast<uint8_t>(round));
    landed = round;
  }
  reader.join();
  EXPECT_TRUE(read(*store, slots_from(0, 32)).complete());
}

TEST(StoreRace, ClosingFreesNothingUnderACall) {
  for (int round = 0; round < 50; ++round) {
    const auto store = value_of(Store::create(wide_spec(), {.num_slots = kSlots}));
    std::thread reader([&] {
      const auto slots = slots_from(0, kSlots);
      while (store->read(Slots(slots)).has_value()) {
      }
    });
    std::this_thread::yield();
    store->close();
    reader.join();
    EXPECT_EQ(store->memory_bytes(), 0);
  }
}

}  // namespace
}  // namespace moetape::inline v0
