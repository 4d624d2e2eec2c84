// The store against a plain dictionary, by random operations. MOETAPE_TEST_OPS sets their number.
#include <cstdlib>
#include <random>

#include "store/store_test_util.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kNumSlots = 300;

struct ModelSlot {
  uint64_t step = 0;
  uint32_t version = 0;
  bool refused = false;
  uint64_t cutoff = 0;
  Row row = Row(6, 0);
};

struct ModelRow {
  Reason reason;
  Row row;
  uint32_t version;
};

class Model {
 public:
  ModelRow read(int64_t slot, uint64_t as_of) const {
    if (slot < 0) return {Reason::kNoSlot, Row(6, 0), 0};
    const ModelSlot& s = slots[static_cast<size_t>(slot)];
    const uint64_t cutoff = std::max(s.cutoff, store_cutoff);
    const auto missing = [](Reason reason) { return ModelRow{reason, Row(6, 0), 0}; };
    if (s.step > cutoff) {
      if (s.step > as_of) return missing(Reason::kLater);
      if (!s.refused) return {Reason::kValid, s.row, s.version};
    }
    for (const uint64_t step : open) {
      if (step <= as_of && step > cutoff) return missing(Reason::kPending);
    }
    const bool refused = s.step > cutoff && s.refused;
    if (lost <= as_of && lost > cutoff && (!refused || lost >= s.step)) return missing(Reason::kLost);
    if (refused) return missing(Reason::kRefused);
    return missing(s.step != 0 || s.cutoff != 0 ? Reason::kInvalidated : Reason::kUnwritten);
  }

  std::vector<ModelSlot> slots = std::vector<ModelSlot>(kNumSlots);
  std::vector<uint64_t> open;
  uint64_t lost = 0;
  uint64_t store_cutoff = 0;
  uint64_t last = 0;
};

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed) {}

  void step() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        return commit();
      case 3:
        return refuse();
      case 4:
        return invalidate();
      case 5:
        return move();
      case 6:
        return write();
      case 7:
        return below(40) == 0 ? reset() : leave_open();
      default:
        return read();
    }
  }

 private:
  int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_); }

  // Distinct slots, mostly in runs, some of them no place.
  std::vector<int64_t> some_slots() {
    std::vector<int64_t> slots;
    std::vector<bool> used(kNumSlots);
    const int64_t wanted = 1 + below(below(10) == 0 ? 280 : 20);
    while (static_cast<int64_t>(slots.size()) < wanted) {
      int64_t slot = below(kNumSlots);
      for (int64_t run = 1 + below(8); run > 0 && slot < kNumSlots; --run, ++slot) {
        if (used[static_cast<size_t>(slot)]) break;
        used[static_cast<size_t>(slot)] = true;
        slots.push_back(slot);
      }
      if (below(15) == 0) slots.push_back(-1);
    }
    return slots;
  }
  std::vector<Row> rows_for(size_t count) {
    std::vector<Row> rows(count);
    for (Row& row : rows) row = row_of(static_cast<uint8_t>(below(256)));
    return rows;
  }
  void close_open_steps() {
    for (const uint64_t step : model_.open) {
      if (below(2) == 0) {
        slow_.land(step);
      } else {
        slow_.drop(step);
        model_.lost = std::max(model_.lost, step);
      }
    }
    model_.open.clear();
  }

  void commit() {
    const auto slots = some_slots();
    auto places = slots;
    const auto rows = rows_for(slots.size());
    const auto version = static_cast<uint32_t>(below(4));
    // Blocks, as the recorder does it.
    const uint64_t step = value_of(writer_.submit(std::nullopt));
    std::vector<std::byte> bytes(slots.size() * 16);
    for (size_t i = 0; i < slots.size(); ++i) std::memcpy(bytes.data() + i * 16, rows[i].data(), 6);
    const std::vector<Stamp> stamps(slots.size(), make_stamp(version, step));
    for (size_t first = 0; first < slots.size(); first += kBlockSlots) {
      const size_t count = std::min<size_t>(kBlockSlots, slots.size() - first);
      writer_.place(places.data() + first, static_cast<int64_t>(count), bytes.data() + first * 16, 16,
                    stamps.data() + first);
    }
    writer_.land(step);
    model_.last = step;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] < 0) continue;
      ModelSlot& slot = model_.slots[static_cast<size_t>(slots[i])];
      slot = {step, version, false, slot.cutoff, rows[i]};
    }
  }

  void refuse() {
    const auto slots = some_slots();
    const uint64_t step = value_of(writer_.submit(std::nullopt));
    writer_.refuse(slots.data(), static_cast<int64_t>(slots.size()), step);
    writer_.land(step);
    model_.last = step;
    for (const int64_t slot : slots) {
      if (slot < 0) continue;
      model_.slots[static_cast<size_t>(slot)].step = step;
      model_.slots[static_cast<size_t>(slot)].refused = true;
    }
  }

  void invalidate() {
    const auto slots = some_slots();
    const uint64_t as_of = below(3) == 0 ? model_.last + static_cast<uint64_t>(below(3)) : model_.last;
    const bool by_default = as_of == model_.last && below(2) == 0;
    expect_ok(store_->invalidate(Slots(slots), by_default ? std::nullopt : std::optional<int64_t>(as_of)));
    for (const int64_t slot : slots) {
      if (slot < 0) continue;
      uint64_t& cutoff = model_.slots[static_cast<size_t>(slot)].cutoff;
      cutoff = std::max(cutoff, as_of);
    }
  }

  void reset() {
    expect_ok(store_->reset());
    model_.store_cutoff = model_.last;
  }

  void leave_open() {
    if (!model_.open.empty()) return close_open_steps();
    model_.open.push_back(value_of(slow_.submit(std::nullopt)));
    model_.last = model_.open.back();
  }

  void put(int64_t to, const ModelRow& row, uint64_t step) {
    if (to < 0) return;
    ModelSlot& slot = model_.slots[static_cast<size_t>(to)];
    const uint64_t cutoff = slot.cutoff;
    slot = row.reason == Reason::kValid ? ModelSlot{step, row.version, false, cutoff, row.row}
                                        : ModelSlot{step, 0, true, cutoff, {}};
  }

  void move() {
    close_open_steps();  // they would be waited for
    auto from = some_slots();
    auto to = some_slots();
    from.resize(std::min(from.size(), to.size()));
    to.resize(from.size());
    expect_ok(store_->move(Slots(from), Slots(to)));
    model_.last += 1;
    std::vector<ModelRow> rows;
    for (const int64_t slot : from) rows.push_back(model_.read(slot, model_.last));
    for (size_t i = 0; i < to.size(); ++i) put(to[i], rows[i], model_.last);
  }

  void write() {
    close_open_steps();
    const auto from = some_slots();
    const Routes routes = moetape::read(*store_, from);
    auto to = some_slots();
    while (to.size() < from.size()) to.push_back(-1);
    to.resize(from.size());
    std::vector<ModelRow> rows;
    for (const int64_t slot : from) rows.push_back(model_.read(slot, model_.last));
    expect_ok(store_->write(Slots(to), routes));
    model_.last += 1;
    for (size_t i = 0; i < to.size(); ++i) put(to[i], rows[i], model_.last);
  }

  void read() {
    const auto slots = some_slots();
    const uint64_t as_of =
        below(4) == 0 ? static_cast<uint64_t>(below(static_cast<int64_t>(model_.last) + 2)) : model_.last;
    const Routes routes = moetape::read(*store_, slots, {.start = 5, .as_of = static_cast<int64_t>(as_of)});
    std::vector<std::optional<uint32_t>> versions(slots.size());
    for (const VersionRun& run : routes.versions()) {
      for (int64_t t = run.start; t < run.end; ++t) versions[static_cast<size_t>(t - 5)] = run.version;
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      const ModelRow expected = model_.read(slots[i], as_of);
      ASSERT_EQ(reason_name(routes.reasons()[i]), reason_name(expected.reason)) << "slot " << slots[i];
      ASSERT_EQ(row_at(routes, static_cast<int64_t>(i)), expected.row) << "slot " << slots[i];
      ASSERT_EQ(versions[i],
                expected.reason == Reason::kValid ? std::optional(expected.version) : std::nullopt);
    }
  }

  std::mt19937_64 random_;
  Model model_;
  std::shared_ptr<Store> store_ = tiny_store(kNumSlots);
  StoreWriter writer_ = value_of(StoreWriter::open(store_));
  StoreWriter slow_ = value_of(StoreWriter::open(store_));
};

TEST(StoreModel, RandomOperationsGiveWhatADictionaryGives) {
  const char* ops = std::getenv("MOETAPE_TEST_OPS");
  const int64_t num_ops = ops ? std::atoll(ops) : 100'000;
  const uint64_t seed = 20261130;
  RecordProperty("seed", std::to_string(seed));
  RandomRun run(seed);
  for (int64_t i = 0; i < num_ops; ++i) {
    run.step();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ", operation " << i;
  }
}

}  // namespace
}  // namespace moetape::inline v0
