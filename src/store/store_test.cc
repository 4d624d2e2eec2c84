#include <gmock/gmock.h>

#include "store/store_test_util.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;

class StoreStory : public testing::Test {
 protected:
  std::shared_ptr<Store> store = tiny_store(32);
  StoreWriter writer = value_of(StoreWriter::open(store));
};

TEST_F(StoreStory, GivesBackWhatAStepWrote) {
  commit_rows(writer, {5, 6, 9}, {row_of(10), row_of(20), row_of(30)}, 7);
  const Routes routes = read(*store, {9, 5, 6}, {.start = 100});
  EXPECT_TRUE(routes.complete());
  EXPECT_EQ(routes.start(), 100);
  EXPECT_EQ(row_at(routes, 0), row_of(30));
  EXPECT_EQ(row_at(routes, 1), row_of(10));
  EXPECT_EQ(row_at(routes, 2), row_of(20));
  EXPECT_THAT(routes.versions(), ElementsAre(VersionRun{100, 103, 7}));
}

TEST_F(StoreStory, ResultsDoNotChangeWhenLaterStepsWrite) {
  commit_rows(writer, {1}, {row_of(1)});
  const Routes before = read(*store, {1});
  commit_rows(writer, {1}, {row_of(50)});
  EXPECT_EQ(row_at(before, 0), row_of(1));
}

TEST_F(StoreStory, SlotsNobodyWroteAreMissingNotExpertZero) {  // case B07
  commit_rows(writer, {3 * 4, 3 * 4 + 1}, {row_of(1), row_of(2)});
  const std::vector<int32_t> other_blocks = {7};
  const Routes routes = value_of(store->read(Slots::blocks(other_blocks, 4, 2)));
  EXPECT_EQ(routes.count_by_reason()[static_cast<size_t>(Reason::kUnwritten)], 2);
  EXPECT_EQ(row_at(routes, 0), Row(6, 0));
}

TEST_F(StoreStory, BlockAddressesCountFromTheBlockNotTheGroup) {  // case B06
  const auto big = value_of(Store::create(tiny_spec(), {.num_slots = 160}));
  auto big_writer = value_of(StoreWriter::open(big));
  std::vector<int64_t> slots(16);
  const std::vector<int32_t> block = {9};
  Slots::blocks(block, 16, 16).copy(0, 16, slots.data());
  EXPECT_EQ(slots.front(), 144);
  EXPECT_EQ(slots.back(), 159);
  commit_rows(big_writer, {159}, {row_of(3)});
  EXPECT_EQ(row_at(value_of(big->read(Slots::blocks(block, 16, 16))), 15), row_of(3));
  const std::vector<int32_t> wrong_group = {262144};
  expect_error(big->read(Slots::blocks(wrong_group, 8, 1)), ErrorCode::kOutOfRange, "got 2097152");
  const std::vector<int64_t> absurd = {INT64_MAX / 2};
  expect_error(big->read(Slots::blocks(absurd, 8, 1)), ErrorCode::kOutOfRange, "slots[0]");
  expect_error(big->read(Slots::blocks(block, 16, 17)), ErrorCode::kOutOfRange, "slots[16]");
}

TEST_F(StoreStory, ANewOwnerNeverSeesTheOldOwnersRows) {  // case B02; trap 17
  commit_rows(writer, {7}, {row_of(1)});
  const std::vector<int64_t> slots = {7};
  expect_ok(store->invalidate(Slots(slots)));
  EXPECT_EQ(reason_at(*store, 7), Reason::kInvalidated);
  commit_rows(writer, {7}, {row_of(2)});
  EXPECT_EQ(row_at(read(*store, {7}), 0), row_of(2));
}

TEST_F(StoreStory, ALateCommitDoesNotReviveASlotThatWasGivenAway) {
  const uint64_t step = value_of(writer.submit(std::nullopt));
  const std::vector<int64_t> slots = {7};
  expect_ok(store->invalidate(Slots(slots)));
  const std::vector<std::byte> row(16);
  const Stamp stamp = make_stamp(0, step);
  int64_t slot = 7;
  EXPECT_EQ(writer.place(&slot, 1, row.data(), 16, &stamp), 0);
  writer.land(step);
  EXPECT_EQ(reason_at(*store, 7), Reason::kInvalidated);
}

TEST_F(StoreStory, AnEngineThatSchedulesAheadInvalidatesUpToTheLastStepScheduled) {
  commit_rows(writer, {7}, {row_of(1)}, 0, 1);
  const std::vector<int64_t> slots = {7};
  expect_ok(store->invalidate(Slots(slots), 2));  // step 2 of the old owner is scheduled, not yet submitted
  commit_rows(writer, {7}, {row_of(2)}, 0, 2);
  EXPECT_EQ(reason_at(*store, 7), Reason::kInvalidated);
  commit_rows(writer, {7}, {row_of(3)}, 0, 3);
  EXPECT_EQ(row_at(read(*store, {7}), 0), row_of(3));
}

TEST_F(StoreStory, ResetForgetsEverythingAndStepsGoOn) {  // case B18
  EXPECT_EQ(commit_rows(writer, {1}, {row_of(1)}, 1), 1u);
  const Routes kept = read(*store, {1});
  expect_ok(store->reset());
  EXPECT_EQ(reason_at(*store, 1), Reason::kInvalidated);
  EXPECT_EQ(reason_at(*store, 2), Reason::kUnwritten);
  EXPECT_EQ(commit_rows(writer, {1}, {row_of(2)}, 2), 2u);
  EXPECT_EQ(row_at(read(*store, {1}), 0), row_of(2));
  EXPECT_EQ(row_at(kept, 0), row_of(1));  // a request that began before keeps its own rows
}

TEST_F(StoreStory, RowsKeepTheVersionUnderWhichTheyWereComputed) {  // case B05
  commit_rows(writer, {0, 1, 2, 3, 4}, {row_of(0), row_of(1), row_of(2), row_of(3), row_of(4)}, 1);
  const Routes before_retract = read(*store, {0, 1, 2, 3, 4});
  std::vector<Row> again;
  for (uint8_t i = 0; i < 7; ++i) again.push_back(row_of(static_cast<uint8_t>(100 + i)));
  commit_rows(writer, {10, 11, 12, 13, 14, 15, 16}, again, 2);
  const Routes after = read(*store, {10, 11, 12, 13, 14, 15, 16});
  const Routes joined = value_of(before_retract.extend(after, OnOverlap::kKeepFirst));
  EXPECT_EQ(joined.num_rows(), 7);
  EXPECT_THAT(joined.versions(), ElementsAre(VersionRun{0, 5, 1}, VersionRun{5, 7, 2}));
  EXPECT_EQ(row_at(joined, 4), row_of(4));
  EXPECT_EQ(row_at(joined, 5), row_of(105));
}

TEST_F(StoreStory, AStepUnderWayIsPendingAndADroppedOneIsLost) {  // case B10
  const uint64_t step = value_of(writer.submit(std::nullopt));
  EXPECT_EQ(reason_at(*store, 3), Reason::kPending);
  EXPECT_EQ(reason_at(*store, 3, 0), Reason::kUnwritten);  // as of an earlier step nothing is awaited
  writer.drop(step);
  EXPECT_EQ(reason_at(*store, 3), Reason::kLost);
  commit_rows(writer, {3}, {row_of(3)});
  EXPECT_EQ(reason_at(*store, 3), Reason::kValid);
}

TEST_F(StoreStory, AWriterThatDiesLosesItsOpenSteps) {  // case B10
  {
    auto doomed = value_of(StoreWriter::open(store));
    value_of(doomed.submit(std::nullopt));
    EXPECT_EQ(reason_at(*store, 3), Reason::kPending);
  }
  EXPECT_EQ(reason_at(*store, 3), Reason::kLost);
}

TEST_F(StoreStory, RowsOverwrittenAfterAsOfAreLater) {  // case B08
  commit_rows(writer, {0, 1}, {row_of(1), row_of(2)}, 0, 10);
  commit_rows(writer, {1}, {row_of(3)}, 0, 11);
  const Routes routes = read(*store, {0, 1}, {.as_of = 10});
  EXPECT_THAT(std::vector<Reason>(routes.reasons().begin(), routes.reasons().end()),
              ElementsAre(Reason::kValid, Reason::kLater));
}

TEST_F(StoreStory, RefusedRowsAreMissingAndWhatStoodThereIsGone) {
  commit_rows(writer, {4}, {row_of(9)});
  const uint64_t step = value_of(writer.submit(std::nullopt));
  const int64_t slot = 4;
  writer.refuse(&slot, 1, step);
  writer.land(step);
  EXPECT_EQ(reason_at(*store, 4), Reason::kRefused);
  EXPECT_EQ(row_at(read(*store, {4}), 0), Row(6, 0));
}

TEST_F(StoreStory, TokensWithoutAPlaceAreMissing) {
  const auto padded = value_of(Store::create(tiny_spec(), {.num_slots = 8, .pad_slot = 7}));
  const Routes routes = read(*padded, {-1, 7, 0});
  EXPECT_THAT(std::vector<Reason>(routes.reasons().begin(), routes.reasons().end()),
              ElementsAre(Reason::kNoSlot, Reason::kNoSlot, Reason::kUnwritten));
}

TEST_F(StoreStory, MovesFollowTheKv) {  // case B01
  commit_rows(writer, {0, 1, 2, 3}, {row_of(0), row_of(1), row_of(2), row_of(3)}, 5);
  const std::vector<int64_t> from = {0, 1, 2, 3};
  const std::vector<int64_t> host = {20, 21, 22, 23};
  const std::vector<int64_t> back = {8, 9, 10, 11};
  expect_ok(store->move(Slots(from), Slots(host)));
  expect_ok(store->invalidate(Slots(from)));
  commit_rows(writer, from, {row_of(100), row_of(101), row_of(102), row_of(103)}, 6);
  expect_ok(store->move(Slots(host), Slots(back)));
  const Routes restored = read(*store, back);
  for (uint8_t i = 0; i < 4; ++i) EXPECT_EQ(row_at(restored, i), row_of(i));
  EXPECT_THAT(restored.versions(), ElementsAre(VersionRun{0, 4, 5}));
  EXPECT_EQ(row_at(read(*store, from), 0), row_of(100));
}

TEST_F(StoreStory, MovingWhatNobodySavedLeavesMissingRows) {  // case B01
  commit_rows(writer, {8}, {row_of(77)});
  const std::vector<int64_t> never_written = {30};
  const std::vector<int64_t> target = {8};
  expect_ok(store->move(Slots(never_written), Slots(target)));
  EXPECT_EQ(reason_at(*store, 8), Reason::kRefused);
  EXPECT_EQ(reason_at(*store, 8, 1), Reason::kLater);  // a row was there
}

TEST_F(StoreStory, MovesReadAllSourcesFirst) {
  commit_rows(writer, {0, 1, 2}, {row_of(0), row_of(1), row_of(2)});
  const std::vector<int64_t> from = {0, 1, 2};
  const std::vector<int64_t> rotated = {1, 2, 0};
  expect_ok(store->move(Slots(from), Slots(rotated)));
  const Routes routes = read(*store, {0, 1, 2});
  EXPECT_EQ(row_at(routes, 0), row_of(2));
  EXPECT_EQ(row_at(routes, 1), row_of(0));
  EXPECT_EQ(row_at(routes, 2), row_of(1));
}

TEST_F(StoreStory, MovesWaitForEarlierStepsAndSayWhenTheyDoNotCome) {
  value_of(writer.submit(std::nullopt));
  const std::vector<int64_t> from = {0};
  const std::vector<int64_t> to = {1};
  expect_error(store->move(Slots(from), Slots(to), {.timeout = std::chrono::milliseconds(1)}),
               ErrorCode::kTimeout, "earlier steps");
}

TEST_F(StoreStory, WriteBringsRoutesBackWithTheirVersionsAndGaps) {
  commit_rows(writer, {0, 1}, {row_of(1), row_of(2)}, 3);
  const Routes saved = read(*store, {0, 31, 1});
  const auto other = tiny_store(4);
  const std::vector<int64_t> slots = {3, 2, 1};
  expect_ok(other->write(Slots(slots), saved));
  const Routes again = read(*other, slots);
  EXPECT_EQ(again, saved);
  EXPECT_EQ(again.reasons()[1], Reason::kRefused);
}

TEST_F(StoreStory, WriteAsksForTheVersionOfRowsThatCarryNone) {
  const std::vector<uint8_t> ids = {1, 2, 3, 4, 5, 6};
  const Routes routes = value_of(Routes::from_ids(tiny_spec(), 0, {.ids = ids.data(), .num_rows = 1}));
  const std::vector<int64_t> slots = {0};
  expect_error(store->write(Slots(slots), routes), ErrorCode::kInvalidArgument, "version");
  expect_ok(store->write(Slots(slots), routes, {.version = 9}));
  EXPECT_EQ(read(*store, {0}).versions()[0].version, 9u);
}

TEST_F(StoreStory, WriteRefusesRoutesOfAnotherSpec) {
  RouteSpecFields fields = tiny_spec().fields();
  fields.layers = {1, 2, 3};
  const Routes routes = value_of(Routes::empty(value_of(RouteSpec::create(fields)), 0));
  const std::vector<int64_t> none;
  expect_error(store->write(Slots(none), routes), ErrorCode::kSpecMismatch, "layers [1, 2, 4] and [1, 2, 3]");
}

TEST_F(StoreStory, WhereTheEngineCountsStepsEveryStepMustBeGiven) {
  commit_rows(writer, {0}, {row_of(0)}, 0, 40);
  const std::vector<int64_t> from = {0};
  const std::vector<int64_t> to = {1};
  expect_error(store->move(Slots(from), Slots(to)), ErrorCode::kStepOrder, "last: 40");
  expect_error(store->move(Slots(from), Slots(to), {.step = 39}), ErrorCode::kStepOrder,
               "expected 41 or more");
  expect_error(store->move(Slots(from), Slots(to), {.step = 40}), ErrorCode::kStepOrder,
               "expected 41 or more");
  expect_ok(store->move(Slots(from), Slots(to), {.step = 41}));
  commit_rows(writer, {2}, {row_of(2)}, 0, 41);  // a move comes before its step's commits
  EXPECT_EQ(store->last_step(), 41);
  expect_error(writer.submit(41), ErrorCode::kStepOrder, "above 41");
  expect_error(writer.submit(0), ErrorCode::kStepOrder, "got 0");
  expect_error(writer.submit(kMaxStep + 1), ErrorCode::kStepOrder, "got 1099511627776");
}

TEST_F(StoreStory, ASlotTakesOneRowAStep) {
  commit_rows(writer, {0, 1}, {row_of(0), row_of(1)}, 0, 1);
  const std::vector<int64_t> first = {0};
  const std::vector<int64_t> second = {1};
  const std::vector<int64_t> target = {5};
  expect_ok(store->move(Slots(first), Slots(target), {.step = 2}));
  expect_error(store->move(Slots(second), Slots(target), {.step = 2}), ErrorCode::kConflict, "target[0]");
  EXPECT_EQ(row_at(read(*store, {5}), 0), row_of(0));
  commit_rows(writer, {5}, {row_of(9)}, 0, 2);  // as the move's step: which row it is cannot be told
  EXPECT_EQ(reason_at(*store, 5), Reason::kRefused);
  commit_rows(writer, {5}, {row_of(9)}, 0, 3);
  EXPECT_EQ(row_at(read(*store, {5}), 0), row_of(9));
}

TEST_F(StoreStory, AnOlderStepThatArrivesLateChangesNothing) {
  auto late = value_of(StoreWriter::open(store));
  commit_rows(writer, {5, 6}, {row_of(1), row_of(2)}, 0, 10);
  commit_rows(late, {5, 7}, {row_of(3), row_of(4)}, 0, 3);
  EXPECT_EQ(row_at(read(*store, {5}), 0), row_of(1));
  EXPECT_EQ(row_at(read(*store, {7}), 0), row_of(4));
}

TEST_F(StoreStory, ARowBeingWrittenIsPendingWhoeverLooksWhenever) {
  auto late = value_of(StoreWriter::open(store));
  commit_rows(writer, {0}, {row_of(0)}, 0, 10);
  const uint64_t step = value_of(late.submit(3));
  const int64_t slot = 5;
  late.refuse(&slot, 1, step);  // what a slot carries while its row is written
  EXPECT_EQ(reason_at(*store, 5), Reason::kPending);
  EXPECT_EQ(reason_at(*store, 5, 2), Reason::kLater);
  late.land(step);
  EXPECT_EQ(reason_at(*store, 5), Reason::kRefused);
}

TEST_F(StoreStory, RoutesThatMayRepeatIdsDoNotBreakAStoresPromise) {
  RouteSpecFields fields = tiny_spec().fields();
  fields.distinct = true;
  const auto strict = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 4}));
  const std::vector<uint8_t> ids = {1, 1, 3, 4, 5, 6};
  const Routes routes = value_of(Routes::from_ids(tiny_spec(), 0, {.ids = ids.data(), .num_rows = 1}));
  const std::vector<int64_t> slots = {0};
  expect_error(strict->write(Slots(slots), routes, {.version = 1}), ErrorCode::kSpecMismatch, "distinct");
}

TEST_F(StoreStory, AbsurdNumbersOfSlotsAreRefusedBeforeAnyMemoryIsTaken) {
  const std::vector<int64_t> nowhere = {-1};
  const Slots absurd = Slots::blocks(nowhere, int64_t{1} << 61, int64_t{1} << 61);
  expect_error(store->rows(absurd), ErrorCode::kInvalidArgument, "at most 268435456");
  expect_error(store->read(absurd), ErrorCode::kInvalidArgument, "at most 268435456");
  expect_error(store->invalidate(absurd), ErrorCode::kInvalidArgument, "at most 268435456");
  expect_error(store->move(absurd, absurd), ErrorCode::kInvalidArgument, "at most 268435456");
  expect_error(store->read(Slots::blocks(nowhere, 0, 1)), ErrorCode::kOutOfRange, "slots[0]");
  EXPECT_EQ(Slots::blocks(nowhere, 4, -1).size(), 0);
}

TEST_F(StoreStory, LazyRowsGiveWhatReadGives) {
  commit_rows(writer, {2, 3}, {row_of(2), row_of(3)});
  const std::vector<int64_t> slots = {3, 17, 2};
  const auto source = value_of(store->rows(Slots(slots), 4));
  commit_rows(writer, {3}, {row_of(200)});  // after the source's as_of
  std::vector<std::byte> bytes(18);
  std::vector<Reason> reasons(3);
  expect_ok(source->pull(0, 2, bytes.data(), reasons.data()));
  expect_ok(source->pull(2, 1, bytes.data() + 12, reasons.data() + 2));
  EXPECT_THAT(reasons, ElementsAre(Reason::kLater, Reason::kUnwritten, Reason::kValid));
  EXPECT_EQ(std::memcmp(bytes.data() + 12, row_of(2).data(), 6), 0);
  EXPECT_EQ(source->start(), 4);
  expect_error(source->pull(2, 2, bytes.data(), reasons.data()), ErrorCode::kOutOfRange, "[2, 4)");
}

TEST_F(StoreStory, BadArgumentsAreNamedAndNothingChanges) {
  commit_rows(writer, {0, 1}, {row_of(0), row_of(1)});
  const std::vector<int64_t> outside = {0, 32};
  expect_error(store->read(Slots(outside)), ErrorCode::kOutOfRange, "slots[1]: expected a slot from 0 to 31");
  expect_error(store->invalidate(Slots(outside)), ErrorCode::kOutOfRange, "slots[1]");
  EXPECT_EQ(reason_at(*store, 0), Reason::kValid);
  const std::vector<int64_t> from = {0, 1};
  const std::vector<int64_t> twice = {5, 5};
  expect_error(store->move(Slots(from), Slots(twice)), ErrorCode::kInvalidArgument, "got 5 twice");
  const std::vector<int64_t> one = {5};
  expect_error(store->move(Slots(from), Slots(one)), ErrorCode::kWrongShape, "expected 2 slots");
  expect_error(store->read(Slots(one), {.start = -1}), ErrorCode::kOutOfRange, "start");
  expect_error(store->read(Slots(one), {.as_of = -1}), ErrorCode::kStepOrder, "as_of");
  const std::vector<int32_t> tokens = {1, 2};
  expect_error(store->read(Slots(one), {.tokens = tokens}), ErrorCode::kWrongShape, "tokens");
  EXPECT_EQ(reason_at(*store, 5), Reason::kUnwritten);
}

TEST_F(StoreStory, ReadsCarryTokens) {
  commit_rows(writer, {0, 1}, {row_of(0), row_of(1)});
  const std::vector<int32_t> tokens = {11, 12};
  const Routes routes = read(*store, {0, 1}, {.tokens = tokens});
  EXPECT_THAT(routes.tokens(), ElementsAre(11, 12));
}

TEST_F(StoreStory, AClosedStoreSaysSo) {
  const std::vector<int64_t> slots = {0};
  const auto source = value_of(store->rows(Slots(slots)));
  store->close();
  store->close();
  expect_error(store->read(Slots(slots)), ErrorCode::kClosed, "closed");
  expect_error(store->invalidate(Slots(slots)), ErrorCode::kClosed, "closed");
  expect_error(store->reset(), ErrorCode::kClosed, "closed");
  expect_error(store->move(Slots(slots), Slots(slots)), ErrorCode::kClosed, "closed");
  std::byte row[6];
  Reason reason;
  expect_error(source->pull(0, 1, row, &reason), ErrorCode::kClosed, "closed");
  EXPECT_EQ(store->memory_bytes(), 0);  // case K08
}

TEST(StoreSize, IsKnownBeforeAllocation) {  // case K01
  RouteSpecFields fields;
  for (int32_t layer = 0; layer < 48; ++layer) fields.layers.push_back(layer);
  fields.top_k = 8;
  fields.num_experts = 128;
  const RouteSpec spec = value_of(RouteSpec::create(fields));
  const int64_t bytes = value_of(Store::required_bytes(spec, 1'897'744));
  EXPECT_EQ(spec.row_bytes(), 384);  // case K05
  EXPECT_GE(bytes, int64_t{1'897'744} * (384 + 16));
  EXPECT_LE(bytes, int64_t{1'897'744} * (384 + 16) / 100 * 101);
  expect_error(Store::create(spec, {.num_slots = 1'897'744, .memory_limit_bytes = 1 << 20}),
               ErrorCode::kMemoryLimit, "expected at most 1048576 bytes");
  expect_error(Store::required_bytes(spec, INT64_MAX / 8), ErrorCode::kInvalidArgument,
               "more than memory can have");
  expect_error(Store::required_bytes(spec, 0), ErrorCode::kInvalidArgument, "num_slots");
  expect_error(Store::create(spec, {.num_slots = INT64_MAX / 1024}), ErrorCode::kOutOfMemory, "bytes");
}

TEST(StoreWriters, AreLimitedAndGivenBack) {
  const auto store = tiny_store(1);
  {
    std::vector<StoreWriter> writers;
    for (int i = 1; i < WriterTable::kMaxWriters; ++i) writers.push_back(value_of(StoreWriter::open(store)));
    expect_error(StoreWriter::open(store), ErrorCode::kCapacity, "one more");
  }
  EXPECT_TRUE(StoreWriter::open(store).has_value());
}

}  // namespace
}  // namespace moetape::inline v0
