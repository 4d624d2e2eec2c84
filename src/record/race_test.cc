// Two lanes commit beside readers that encode in one pass. Run under ThreadSanitizer in `make test`.
#include <atomic>
#include <thread>

#include "record/record_test_util.h"

namespace moetape::inline v0 {
namespace {

TEST(RecorderRace, LanesCommitBesideReaders) {
  RouteSpecFields fields = two_layers();
  fields.num_experts = 256;
  const auto store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 256}));
  const auto recorder = value_of(Recorder::create(store, {.max_rows = 100, .num_lanes = 2}));
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    const auto slots = slots_from(0, 200);
    std::vector<std::byte> rows(200 * 4);
    std::vector<Reason> reasons(200);
    while (!stop) {
      auto source = value_of(store->rows(Slots(slots)));
      expect_ok(source->pull(0, 200, rows.data(), reasons.data()));
      for (size_t i = 0; i < 200; ++i) {
        if (reasons[i] != Reason::kValid) continue;
        // Both layers of a row are of one step.
        ASSERT_EQ(rows[4 * i], rows[4 * i + 2]);
        ASSERT_EQ(rows[4 * i + 1], rows[4 * i + 3]);
      }
    }
  });
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 2; ++lane) {
    lanes.emplace_back([&, lane] {
      const auto slots = slots_from(lane * 100, 100);
      for (int64_t round = 0; round < 200; ++round) {
        expect_ok(recorder->begin(lane));
        for (const int32_t layer : {1, 3}) {
          expect_ok(capture(*recorder, layer, Ids(100, {round % 255, round % 255 + 1}), lane));
        }
        value_of(recorder->commit(Slots(slots), Layout::whole(), {.lane = lane}));
      }
    });
  }
  for (auto& thread : lanes) thread.join();
  stop = true;
  reader.join();
  EXPECT_EQ(recorder->counters().rows_kept, 2 * 200 * 100);
  EXPECT_THAT(shown(*store, {0, 199}), testing::ElementsAre("199 200 199 200", "199 200 199 200"));
}

}  // namespace
}  // namespace moetape::inline v0
