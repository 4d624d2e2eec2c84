// What a recorder on a device does with the steps of an engine: on a simulated device, by both commit paths.
#include "moetape/recorder.h"
#include "record/cuda/on_device_test.h"

namespace moetape::inline v0::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;
INSTANTIATE_TEST_SUITE_P(Paths, OnDevice, kBothPaths, path_name);

TEST_P(OnDevice, CapturedRowsBecomeRowsBySlot) {
  make(two_layers(), {.max_rows = 4});
  expect_ok(recorder->begin(0, forward));
  expect_ok(capture(1, {{0, 1}, {2, 3}}));
  expect_ok(capture(3, {{4, 5}, {7, 6}}));
  const CommitReport report = landed(value_of(commit({9, 2})));
  EXPECT_EQ(report.num_kept, 2);
  EXPECT_EQ(report.step, 1);
  EXPECT_THAT(rows({2, 9}), ElementsAre("2 3 7 6", "0 1 4 5"));
  EXPECT_EQ(recorder->device(), "cuda:0");
  EXPECT_EQ(recorder->counters().rows_kept, 2);
}

TEST_P(OnDevice, RoutersWriteStraightIntoTheLane) {
  make(two_layers(), {.max_rows = 4});
  const LayerBuffer buffer = value_of(recorder->layer_buffer(3));
  EXPECT_EQ(buffer.type, IntType::kInt16);
  EXPECT_EQ(std::pair(buffer.num_rows, buffer.num_columns), std::pair(int64_t{4}, int64_t{2}));
  const int64_t before = device->counts.kernels;
  expect_ok(recorder->begin(0, forward));
  write_layers({{6, 1}, {2, 3}}, forward);
  landed(value_of(commit({0, 1})));
  EXPECT_EQ(device->counts.kernels - before, 1);  // one kernel a step, however many layers
  EXPECT_THAT(rows({0, 1}), ElementsAre("6 1 6 1", "2 3 2 3"));
}

TEST_P(OnDevice, WhatARouterLeftOutIsFoundAndNamed) {  // cases H01 H09
  make(two_layers(), {.max_rows = 4});
  step({0, 1, 2}, {{0, 1}, {0, 1}, {0, 1}});
  expect_ok(recorder->begin(0, forward));
  const LayerBuffer first = value_of(recorder->layer_buffer(1));
  const LayerBuffer second = value_of(recorder->layer_buffer(3));
  expect_ok(write_buffer(*device, first, {{2, 3}, {4, 5}, {6, 7}}, forward));
  expect_ok(write_buffer(*device, second, {{2, 3}}, forward));  // accepted the buffer, wrote one row of it
  const CommitReport report = landed(value_of(commit({0, 1, 2})));
  EXPECT_EQ(report.num_kept, 1);
  EXPECT_EQ(refused_for(report, RowFault::kUnwritten), 2);
  EXPECT_THAT(report.unwritten, ElementsAre(UnwrittenLayer{3, 2}));
  EXPECT_EQ(report.first_offender->layer, 3);
  EXPECT_EQ(report.first_offender->row, 1);
  EXPECT_THAT(rows({0, 1, 2}), ElementsAre("2 3 2 3", "refused", "refused"));  // no old row, no expert 0
}

TEST_P(OnDevice, TheStepBehindAnUnwrittenOneIsClean) {
  make(two_layers(), {.max_rows = 4});
  write_layers({}, forward);
  for (int round = 0; round < 3; ++round) {
    expect_ok(recorder->begin(0, forward));
    if (round != 1) write_layers({{2, 3}, {4, 5}}, forward);
    const CommitReport report = landed(value_of(commit({0, 1})));
    EXPECT_EQ(report.num_kept, round == 1 ? 0 : 2);
    EXPECT_EQ(report.unwritten.size(), round == 1 ? 2u : 0u);
  }
}

TEST_P(OnDevice, AForgottenHookThatTheHostCanSeeFailsTheStepByName) {  // case H01
  make(two_layers(), {.max_rows = 4});
  step({0}, {{1, 2}});
  expect_ok(recorder->begin(0, forward));
  expect_ok(capture(1, {{3, 4}}));
  expect_error(commit({0}), ErrorCode::kNotCaptured, "layers [3]");
  EXPECT_THAT(rows({0}), ElementsAre("refused"));  // the previous row must not live on
  step({0}, {{5, 6}});
  EXPECT_THAT(rows({0}), ElementsAre("5 6 5 6"));
  EXPECT_EQ(recorder->counters().failed_commits, 1);
}

TEST_P(OnDevice, FailedStepsRefuseEverySlotTheyName) {
  make(two_layers(), {.max_rows = 2});
  step({0, 1}, {{0, 1}, {2, 3}});
  step({2, 3}, {{0, 1}, {2, 3}});
  capture_layers({{4, 5}, {6, 7}});
  // More slots than the lane has rows, one out of range.
  expect_error(commit({0, 1, 2, 99, 3}), ErrorCode::kOutOfRange, "slots[3]");
  EXPECT_THAT(rows({0, 1, 2, 3}), Each(std::string("refused")));
  capture_layers({{4, 5}, {6, 7}});
  expect_error(commit({5, 5}), ErrorCode::kInvalidArgument, "got 5 twice");
  capture_layers({{4, 5}, {6, 7}});
  expect_error(commit({0, 1}, Layout::whole(), {.step = 1}), ErrorCode::kStepOrder, "above");
  step({0, 1}, {{0, 1}, {2, 3}});
  EXPECT_THAT(rows({0, 1, 2}), ElementsAre("0 1 0 1", "2 3 2 3", "refused"));
}

TEST_P(OnDevice, IdsThatAreNoExpertsRefuseTheirRowOnly) {  // case D11
  RouteSpecFields fields = two_layers();
  fields.shared_columns = 1;
  make(fields, {.max_rows = 8});
  const Ids ids = {{0, 1, 8}, {-1, 2, 8}, {3, 8, 9}, {70'000, 1, 8}, {4, 4, 8}, {1, 2, 7}, {2, 1, 8}};
  const CommitReport report = step(slots_from(0, 7), ids);
  EXPECT_EQ(report.num_kept, 2);
  EXPECT_EQ(refused_for(report, RowFault::kNegative), 1);
  EXPECT_EQ(refused_for(report, RowFault::kTooLarge), 2);
  EXPECT_EQ(refused_for(report, RowFault::kRepeated), 1);
  EXPECT_EQ(refused_for(report, RowFault::kShared), 1);
  EXPECT_EQ(report.first_offender->row, 1);
  EXPECT_EQ(report.first_offender->layer, 1);
  EXPECT_EQ(report.first_offender->value, -1);
  EXPECT_THAT(rows(slots_from(0, 7)),
              ElementsAre("0 1 0 1", "refused", "refused", "refused", "refused", "refused", "2 1 2 1"));
}

TEST_P(OnDevice, SharedExpertColumnsAreCut) {  // case A12
  RouteSpecFields fields = two_layers();
  fields.num_experts = 64;
  fields.shared_columns = 1;
  make(fields, {.max_rows = 2});
  step({0, 1}, {{4, 7, 64}, {1, 3, 64}});
  EXPECT_THAT(rows({0, 1}), ElementsAre("4 7 4 7", "1 3 1 3"));
}

TEST_P(OnDevice, PaddingRowsNeverArrive) {  // cases A10 A18
  make(two_layers(), {.max_rows = 8});
  step(slots_from(0, 8), Ids(8, {6, 7}));
  for (const int64_t padding : {int64_t{-1}, int64_t{4}}) {
    Ids batch(5, {1, 2});
    batch.resize(8, {padding, padding});
    capture_layers(batch);
    const CommitReport report = landed(value_of(commit(slots_from(0, 5), Layout::graph_padded(5, 8))));
    EXPECT_EQ(report.num_kept, 5);
    EXPECT_EQ(report.num_refused, 0);
  }
  // The padding was put back to poison: a router that leaves rows 5 to 7 out is found.
  expect_ok(recorder->begin(0, forward));
  write_layers(Ids(5, {1, 2}), forward);
  const CommitReport report = landed(value_of(commit(slots_from(0, 8))));
  EXPECT_EQ(refused_for(report, RowFault::kUnwritten), 3);
}

TEST_P(OnDevice, ABufferMayBeLargerThanTheBatchAndNotSmaller) {  // case A13
  make(two_layers(), {.max_rows = 3});
  step({0}, {{0, 1}});
  const auto too_many = capture(1, Ids(4, {0, 1}));
  expect_error(too_many, ErrorCode::kCapacity, "needs 4 rows, the lane has 3");
  expect_error(capture(1, {{0, 1, 2}}), ErrorCode::kWrongShape, "expected 2 columns");
  expect_ok(recorder->begin(0, forward));
  write_layers(Ids(3, {0, 1}), forward);
  expect_error(commit({0, 1, 2, 3}), ErrorCode::kCapacity, "needs 4 rows");
}

TEST_P(OnDevice, ChunksAreJoinedByOffset) {  // case A19
  make(two_layers(), {.max_rows = 8});
  for (const int32_t layer : {1, 3}) {
    expect_ok(capture(layer, Ids(3, {0, 1}), 0, 0));
    expect_ok(capture(layer, Ids(2, {2, 3}), 0, 3));
  }
  landed(value_of(commit(slots_from(0, 5))));
  EXPECT_THAT(rows({0, 3, 4}), ElementsAre("0 1 0 1", "2 3 2 3", "2 3 2 3"));
  expect_ok(capture(1, Ids(3, {0, 1})));
  expect_error(capture(1, Ids(2, {0, 1})), ErrorCode::kAlreadyCaptured, "layer 1 rows [0, 2)");
}

TEST_P(OnDevice, LayoutsPlaceWhatIsThisRanks) {
  make(two_layers(), {.max_rows = 8});
  Ids batch;
  for (int64_t i = 0; i < 8; ++i) batch.push_back({i, (i + 1) % 8});
  capture_layers(batch);
  CommitReport report = landed(value_of(commit(slots_from(0, 5), Layout::dp_concat({3, 5}, 1))));
  EXPECT_EQ(report.num_kept, 5);
  EXPECT_THAT(rows({0, 4}), ElementsAre("3 4 3 4", "7 0 7 0"));
  capture_layers({{0, 1}, {2, 3}, {4, 5}});
  report = landed(value_of(commit({7, 8, 9}, Layout::rows({2, -1, 0}))));
  EXPECT_EQ(report.num_elsewhere, 1);
  EXPECT_THAT(rows({7, 8, 9}), ElementsAre("4 5 4 5", "unwritten", "0 1 0 1"));
  // A shard has fewer rows than the step has tokens.
  expect_ok(recorder->begin(0, forward));
  write_layers({{6, 7}, {5, 4}, {-1, -1}}, forward);
  report = landed(value_of(commit(slots_from(10, 5), Layout::tp_shard(5, 2, 1))));
  EXPECT_EQ(report.num_elsewhere, 3);
  EXPECT_THAT(rows({12, 13, 14}), ElementsAre("unwritten", "6 7 6 7", "5 4 5 4"));
}

TEST_P(OnDevice, SlotsMayLieOnTheDevice) {
  make(two_layers(), {.max_rows = 8}, Mode::kAtOnce, {.num_slots = 16, .pad_slot = 15});
  const std::vector<uint32_t> versions = {1, 2, 3, 4, 5};
  for (const bool wide : {false, true}) {
    const std::vector<int64_t> slots = {9, -1, 15, 16, wide ? 3 : 4};
    DeviceSlots on_device_slots = {device->upload(slots), IntType::kInt64, 5};
    if (!wide) {
      const std::vector<int32_t> narrow(slots.begin(), slots.end());
      on_device_slots = {device->upload(narrow), IntType::kInt32, 5};
    }
    capture_layers({{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}});
    const CommitOptions options = {.versions = std::span(versions), .stream = forward};
    const CommitReport report = landed(value_of(recorder->commit(on_device_slots, Layout::whole(), options)));
    EXPECT_EQ(report.num_kept, 2);
    EXPECT_EQ(report.num_no_slot, 2);
    EXPECT_EQ(report.num_out_of_range, 1);
    EXPECT_THAT(rows({9, wide ? 3 : 4}), ElementsAre("0 1 0 1", "4 5 4 5"));
  }
  const std::vector<int64_t> slots = {9, 3};
  EXPECT_THAT(value_of(store->read(Slots(slots))).versions(),
              ElementsAre(VersionRun{0, 1, 1}, VersionRun{1, 2, 5}));
  // Row i of the batch is token index[i].
  capture_layers({{0, 1}, {2, 3}, {4, 5}});
  const DeviceSlots two = {device->upload(slots), IntType::kInt64, 2};
  const CommitReport report =
      landed(value_of(recorder->commit(two, Layout::rows({1, -1, 0}), {.stream = forward})));
  EXPECT_EQ(report.num_kept, 2);
  EXPECT_THAT(rows({9, 3}), ElementsAre("4 5 4 5", "0 1 0 1"));
  // A failed step refuses them where they lie.
  expect_ok(capture(1, {{0, 1}, {2, 3}}));
  expect_error(recorder->commit(two, Layout::whole(), {.stream = forward}), ErrorCode::kNotCaptured, "[3]");
  EXPECT_THAT(rows({9, 3}), Each(std::string("refused")));
}

TEST_P(OnDevice, VersionsFollowTheirTokens) {
  make(two_layers(), {.max_rows = 4});
  const std::vector<uint32_t> versions = {7, 8, 9};
  capture_layers({{0, 1}, {2, 3}, {4, 5}});
  const CommitOptions options = {.versions = std::span(versions)};
  landed(value_of(commit({0, 1, 2}, Layout::rows({2, 1, 0}), options)));
  const auto slots = slots_from(0, 3);
  EXPECT_THAT(value_of(store->read(Slots(slots))).versions(),
              ElementsAre(VersionRun{0, 1, 7}, VersionRun{1, 2, 8}, VersionRun{2, 3, 9}));
  EXPECT_THAT(rows(slots), ElementsAre("4 5 4 5", "2 3 2 3", "0 1 0 1"));
}

TEST_P(OnDevice, PhysicalIdsAreMappedBack) {
  RecorderOptions options = {.max_rows = 4};
  options.id_maps.emplace(3, value_of(IdMap::create({7, 6, 5, -1, 0})));
  make(two_layers(), options);
  expect_ok(capture(1, {{0, 1}, {2, 3}}));
  expect_ok(capture(3, {{0, 4}, {3, 1}}));
  const CommitReport report = landed(value_of(commit({0, 1})));
  EXPECT_EQ(refused_for(report, RowFault::kTooLarge), 1);
  EXPECT_THAT(rows({0, 1}), ElementsAre("0 1 7 0", "refused"));
  expect_error(recorder->layer_buffer(3), ErrorCode::kUnsupported, "IdMap");
  value_of(recorder->layer_buffer(1));
}

TEST_P(OnDevice, AllLayersAtOnceAreOneKernel) {
  make(two_layers(), {.max_rows = 4});
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};  // [rows][layers][columns]
  const int64_t before = device->counts.kernels;
  const IdsView first = {device->upload(ids), IntType::kInt32, 2, 2, 4, 1};
  expect_ok(recorder->capture_all(first, 2, 2, 0, forward));
  landed(value_of(commit({0, 1})));
  EXPECT_EQ(device->counts.kernels - before, 2);
  EXPECT_THAT(rows({0, 1}), ElementsAre("0 1 2 3", "4 5 6 7"));
}

TEST_P(OnDevice, GraphsAreReplayedWithOtherSlotsCountsStepsAndVersions) {  // case H08
  make(two_layers(), {.max_rows = 8}, Mode::kByHand, {.num_slots = 64});
  const LayerBuffer buffer = value_of(recorder->layer_buffer(1));
  std::vector<int64_t> ids(16);
  int64_t* router_output = device->upload(ids);
  device->begin_capture(forward);
  expect_ok(recorder->begin(0, forward));
  expect_ok(device->copy(buffer.data, device->upload(std::vector<int16_t>(16, 5)), 0, forward));
  expect_ok(recorder->capture(1, {router_output, IntType::kInt64, 8, 2, 2, 1}, 0, 0, forward));
  expect_ok(recorder->capture(3, {router_output, IntType::kInt64, 8, 2, 2, 1}, 0, 0, forward));
  expect_ok(recorder->launch(0, forward));
  const auto graph = device->end_capture(forward);
  for (int64_t round = 0; round < 100; ++round) {
    for (int64_t i = 0; i < 8; ++i) {
      router_output[2 * i] = (round + i) % 8;
      router_output[2 * i + 1] = (round + i + 1) % 8;
    }
    const int64_t valid = 1 + round % 8;
    const auto slots = slots_from(round % 50, valid);
    expect_ok(recorder->begin(0, forward));
    const CommitOptions options = {.step = 10 + round, .version = static_cast<uint32_t>(round)};
    const Ticket ticket = value_of(prepare(slots, Layout::graph_padded(valid, 8), options));
    EXPECT_FALSE(ticket.ready());
    device->replay(graph, forward);
    EXPECT_EQ(landed(ticket).num_kept, valid);
    const Routes routes = value_of(store->read(Slots(slots)));
    EXPECT_TRUE(routes.complete());
    EXPECT_THAT(routes.versions(), ElementsAre(VersionRun{0, valid, static_cast<uint32_t>(round)}));
    EXPECT_EQ(routes.row(valid - 1)[0], static_cast<std::byte>((round + valid - 1) % 8));
    EXPECT_EQ(value_of(recorder->layer_buffer(1)).data, buffer.data);
  }
}

TEST_P(OnDevice, AReplayThatNobodyPreparedCommitsNothing) {
  make(two_layers(), {.max_rows = 4});
  write_layers({}, forward);
  device->begin_capture(forward);
  write_layers({{1, 2}, {3, 4}}, forward);
  expect_ok(recorder->launch(0, forward));
  const auto graph = device->end_capture(forward);
  landed([&] {
    Ticket ticket = value_of(prepare({0, 1}));
    device->replay(graph, forward);
    return ticket;
  }());
  EXPECT_THAT(rows({0, 1}), ElementsAre("1 2 1 2", "3 4 3 4"));
  device->replay(graph, forward);  // a warm-up
  // A step that cannot be: its replay commits nothing either.
  expect_error(prepare({0, 99}), ErrorCode::kOutOfRange, "slots[1]");
  device->replay(graph, forward);
  EXPECT_THAT(rows({0, 1}), ElementsAre("refused", "3 4 3 4"));
  // And what they wrote is gone.
  expect_ok(recorder->begin(0, forward));
  const CommitReport report = landed(value_of(commit({2, 3})));
  EXPECT_EQ(refused_for(report, RowFault::kUnwritten), 2);
}

TEST_P(OnDevice, AGraphMustSeeAllLayers) {
  make(two_layers(), {.max_rows = 4});
  device->begin_capture(forward);
  expect_ok(recorder->begin(0, forward));
  expect_ok(capture(1, {{1, 2}}));
  expect_error(recorder->launch(0, forward), ErrorCode::kNotCaptured, "layers [3]");
  expect_error(prepare({0}), ErrorCode::kInvalidArgument, "outside any graph");
  expect_ok(capture(1, {{1, 2}}));
  expect_ok(capture(3, {{1, 2}}));
  expect_ok(recorder->launch(0, forward));
  device->end_capture(forward);
}

TEST_P(OnDevice, IdsOfAForwardThatWasNeverCommittedAreGone) {
  make(two_layers(), {.max_rows = 8});
  expect_ok(recorder->begin(0, forward));
  write_layers(Ids(8, {1, 2}), forward);  // a dummy run
  expect_ok(recorder->begin(0, forward));
  EXPECT_EQ(recorder->counters().abandoned, 1);
  const CommitReport report = landed(value_of(commit(slots_from(0, 8))));
  EXPECT_EQ(refused_for(report, RowFault::kUnwritten), 8);
}

TEST_P(OnDevice, AStepIsPendingUntilItLands) {  // case F06
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  capture_layers({{0, 1}, {2, 3}});
  const Ticket ticket = value_of(commit({0, 1}));
  EXPECT_FALSE(ticket.ready());
  EXPECT_FALSE(ticket.report().landed);
  EXPECT_EQ(ticket.report().num_tokens, 2);
  expect_error(ticket.wait(std::chrono::milliseconds(0)), ErrorCode::kTimeout, "step 1");
  EXPECT_THAT(rows({0, 5}), ElementsAre("pending", "pending"));
  const std::vector<int64_t> slot = {0};
  EXPECT_EQ(value_of(store->read(Slots(slot), {.as_of = 0})).reasons()[0], Reason::kUnwritten);
  device->run_all();
  EXPECT_EQ(landed(ticket).num_kept, 2);
  EXPECT_THAT(rows({0, 1, 5}), ElementsAre("0 1 0 1", "2 3 2 3", "unwritten"));
}

TEST_P(OnDevice, AReaderNeedsNoTicketWhereTheDeviceWritesTheStore) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  capture_layers({{0, 1}, {2, 3}});
  const Ticket ticket = value_of(commit({0, 1}));
  device->run_all();
  const bool mapped = GetParam() == CommitPath::kMapped;
  EXPECT_THAT(rows({0, 5}), ElementsAre(mapped ? "0 1 0 1" : "pending", mapped ? "unwritten" : "pending"));
  landed(ticket);
  EXPECT_THAT(rows({0, 5}), ElementsAre("0 1 0 1", "unwritten"));
}

TEST_P(OnDevice, ALateCommitNeverRevivesASlotThatWasGivenAway) {  // case F08
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  capture_layers({{0, 1}, {2, 3}});
  const Ticket late = value_of(commit({0, 1}));
  const std::vector<int64_t> freed = {0};
  expect_ok(store->invalidate(Slots(freed)));  // preempted while its rows are on their way
  device->run_all();
  landed(late);
  EXPECT_THAT(rows({0, 1}), ElementsAre("invalidated", "2 3 2 3"));
  step({0}, {{6, 7}});
  EXPECT_THAT(rows({0}), ElementsAre("6 7 6 7"));
}

TEST_P(OnDevice, TheNextForwardWaitsForACommitOnAnotherStream) {  // case F02
  make(two_layers(), {.max_rows = 2}, Mode::kByHand);
  const StreamHandle side = device->make_stream();
  expect_ok(recorder->begin(0, forward));
  write_layers({{7, 6}}, forward);
  const Ticket first = value_of(commit({0}, Layout::whole(), {.stream = side}));  // delayed
  expect_ok(recorder->begin(0, forward));
  write_layers({{5, 4}}, forward);
  const Ticket second = value_of(commit({1}, Layout::whole(), {.stream = side}));
  device->run(forward);  // the forward's stream goes as far as it can
  device->run_all();
  landed(first);
  landed(second);
  EXPECT_THAT(rows({0, 1}), ElementsAre("7 6 7 6", "5 4 5 4"));
}

TEST_P(OnDevice, LanesOfOverlappedMicroBatchesDoNotMix) {  // case F01
  make(two_layers(), {.max_rows = 2, .num_lanes = 2}, Mode::kByHand);
  const StreamHandle other = device->make_stream();
  expect_ok(recorder->begin(0, forward));
  expect_ok(recorder->begin(1, other));
  write_layers({{0, 1}}, forward, 0);
  write_layers({{2, 3}}, other, 1);
  const Ticket second = value_of(commit({1}, Layout::whole(), {.lane = 1, .stream = other}));
  const Ticket first = value_of(commit({0}, Layout::whole(), {.lane = 0, .stream = forward}));
  device->run(other);
  device->run(forward);
  landed(second);
  landed(first);
  EXPECT_THAT(rows({0, 1}), ElementsAre("0 1 0 1", "2 3 2 3"));
  expect_error(recorder->begin(2, forward), ErrorCode::kOutOfRange, "lane: expected 0 to 1");
}

TEST_P(OnDevice, StepsInFlightKeepTheirSlotsAndTheNextOneWaitsForTheOldest) {  // case F01
  make(two_layers(), {.max_rows = 2}, Mode::kByHand);
  std::vector<Ticket> tickets;
  for (int64_t i = 0; i < kStepsInFlight + 2; ++i) {
    capture_layers({{i, i + 1}});
    tickets.push_back(value_of(commit({i})));
    const int64_t num_waits = std::max<int64_t>(i - kStepsInFlight + 1, 0);
    EXPECT_EQ(device->counts.synchronizations, 1 + num_waits) << i;  // one at creation
    for (int64_t earlier = 0; earlier <= i; ++earlier)
      EXPECT_EQ(tickets[static_cast<size_t>(earlier)].ready(), earlier < num_waits) << earlier;
  }
  device->run_all();
  for (const Ticket& ticket : tickets) EXPECT_EQ(landed(ticket).num_kept, 1);
  for (int64_t i = 0; i < kStepsInFlight + 2; ++i) {
    const std::string pair = std::to_string(i) + " " + std::to_string(i + 1);
    EXPECT_THAT(rows({i}), ElementsAre(pair + " " + pair));
  }
}

TEST_P(OnDevice, NothingWaitsAndNothingIsAllocatedInAStep) {  // case F04
  make(two_layers(), {.max_rows = 4});
  const IdsView ids = on_device(*device, {{0, 1}, {2, 3}}, 2);
  const std::vector<int64_t> slots = {0, 1};
  const auto run_step = [&] {
    expect_ok(recorder->begin(0, forward));
    for (const int32_t layer : {1, 3}) expect_ok(recorder->capture(layer, ids, 0, 0, forward));
    return landed(value_of(commit(slots)));
  };
  run_step();
  const int64_t syncs = device->counts.synchronizations;
  const int64_t allocations = device->counts.allocations;
  const int64_t kernels = device->counts.kernels;
  const int64_t copies = device->counts.copies;
  for (int i = 0; i < 10; ++i) run_step();
  EXPECT_EQ(device->counts.synchronizations - syncs, 0);
  EXPECT_EQ(device->counts.allocations - allocations, 0);
  EXPECT_EQ(device->counts.kernels - kernels, 30);  // two captures, one commit
  EXPECT_EQ(device->counts.copies - copies, GetParam() == CommitPath::kMapped ? 10 : 20);
}

TEST_P(OnDevice, AStepThatWasPreparedAndNeverLaunchedRefusesItsSlots) {
  make(two_layers(), {.max_rows = 4});
  step({0, 2}, {{4, 5}, {6, 7}});
  capture_layers({{0, 1}, {0, 1}});
  const Ticket lost = value_of(prepare({0, 3}));
  step({1}, {{2, 3}});
  expect_error(lost.wait(), ErrorCode::kNotCaptured, "step 2: it was prepared and never launched");
  EXPECT_FALSE(lost.report().landed);
  EXPECT_THAT(rows({0, 1, 2, 3, 4}), ElementsAre("refused", "2 3 2 3", "6 7 6 7", "refused", "unwritten"));
  expect_error(recorder->launch(0, forward), ErrorCode::kInvalidArgument,
               "expected a step that was prepared");
}

TEST_P(OnDevice, SlotsTakeOneRowAStepAndNeverAnOlderOne) {
  make(two_layers(), {.max_rows = 4, .num_lanes = 2});
  step({0, 1}, {{0, 1}, {2, 3}}, {.step = 5, .lane = 0});
  step({3}, {{0, 1}}, {.step = 9, .lane = 0});
  const CommitReport report = step({1, 2, 3}, {{4, 5}, {6, 7}, {1, 0}}, {.step = 5, .lane = 1});
  EXPECT_EQ(report.num_kept, 1);
  EXPECT_EQ(refused_for(report, RowFault::kSuperseded), 2);
  EXPECT_EQ(report.first_offender->value, 1);  // the slot
  EXPECT_EQ(report.first_offender->layer, -1);
  EXPECT_THAT(rows({0, 1, 2, 3}), ElementsAre("0 1 0 1", "refused", "6 7 6 7", "0 1 0 1"));
}

TEST_P(OnDevice, TicketsOutliveTheRecorderAndTheStoreItsClosing) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  capture_layers({{0, 1}});
  const Ticket ticket = value_of(commit({0}));
  store->close();  // the device still writes there
  expect_error(commit({0}), ErrorCode::kClosed, "closed");
  EXPECT_GT(store->memory_bytes(), 0);
  recorder.reset();
  EXPECT_EQ(store->memory_bytes(), 0);
  EXPECT_EQ(device->num_mapped, 0);
  EXPECT_EQ(landed(ticket).num_kept, 1);
}

TEST_P(OnDevice, WrongPointersAndStreamsAreRefusedBeforeAnythingIsEnqueued) {
  make(two_layers(), {.max_rows = 4});
  const int64_t before = device->counts.kernels + device->counts.copies;
  const std::vector<int64_t> host = {0, 1};
  SimulatedDevice elsewhere;
  const StreamHandle foreign = elsewhere.make_stream();
  expect_error(recorder->capture(1, {host.data(), IntType::kInt64, 1, 2, 2, 1}, 0, 0, forward),
               ErrorCode::kInvalidArgument, "ids: expected memory of");
  const IdsView ids = on_device(*device, {{0, 1}}, 2);
  IdsView behind_its_end = ids;
  behind_its_end.num_rows = 2;
  expect_error(recorder->capture(1, behind_its_end, 0, 0, forward), ErrorCode::kInvalidArgument, "ids");
  expect_error(recorder->capture(1, ids, 0, 0, foreign), ErrorCode::kInvalidArgument, "stream");
  expect_error(recorder->begin(0, foreign), ErrorCode::kInvalidArgument, "stream");
  expect_error(recorder->launch(0, foreign), ErrorCode::kInvalidArgument, "stream");
  const DeviceSlots on_host = {host.data(), IntType::kInt64, 2};
  expect_error(recorder->commit(on_host, Layout::whole(), {.stream = forward}), ErrorCode::kInvalidArgument,
               "slots: expected memory of");
  // A kernel that loads from an odd address would end the whole context.
  IdsView between = ids;
  between.num_columns = 1;
  between.data = static_cast<const std::byte*>(ids.data) + 4;
  expect_error(recorder->capture(1, between, 0, 0, forward), ErrorCode::kInvalidArgument,
               "ids: expected int64 at a multiple of 8 bytes");
  const DeviceSlots odd = {static_cast<const std::byte*>(ids.data) + 2, IntType::kInt32, 1};
  expect_error(recorder->commit(odd, Layout::whole(), {.stream = forward}), ErrorCode::kInvalidArgument,
               "slots: expected int32 at a multiple of 4 bytes");
  const DeviceSlots bytes = {ids.data, IntType::kInt8, 2};
  expect_error(recorder->commit(bytes, Layout::whole(), {.stream = forward}), ErrorCode::kWrongType, "int8");
  expect_error(commit({0}, Layout::whole(), {.stream = foreign}), ErrorCode::kInvalidArgument, "stream");
  EXPECT_EQ(device->counts.kernels + device->counts.copies, before);
  step({0}, {{0, 1}});  // nothing was left behind
  EXPECT_THAT(rows({0}), ElementsAre("0 1 0 1"));
}

TEST_P(OnDevice, TheWorkspaceMayBeTheCallers) {  // case K01
  make(two_layers(), {.max_rows = 4});
  RecorderOptions options = {.max_rows = 4, .num_lanes = 2};
  options.cuda.emplace().path = GetParam();
  const int64_t needed = value_of(Recorder::required_device_bytes(store->spec(), options));
  EXPECT_GE(needed, 2 * (2 * 4 * 2 * 2));
  std::byte* memory = value_of(device->allocate(needed));
  const auto made_with = [&](std::byte* workspace, int64_t bytes) {
    options.cuda->workspace = workspace;
    options.cuda->workspace_bytes = bytes;
    return make_simulated(store, options, device);
  };
  expect_error(made_with(memory, needed - 1), ErrorCode::kCapacity, "workspace: expected at least");
  expect_error(made_with(memory + 16, needed), ErrorCode::kInvalidArgument, "multiple of 256");
  std::vector<std::byte> host(static_cast<size_t>(needed) + 256);
  auto* aligned = host.data() + (256 - reinterpret_cast<uintptr_t>(host.data()) % 256);
  expect_error(made_with(aligned, needed), ErrorCode::kInvalidArgument, "workspace: expected memory of");
  recorder = value_of(made_with(memory, needed));
  EXPECT_EQ(value_of(recorder->layer_buffer(1)).data, memory);
  step({0}, {{0, 1}}, {.lane = 1});
  EXPECT_THAT(rows({0}), ElementsAre("0 1 0 1"));
}

TEST(CudaRecorder, SpecsThatNoLaneHoldsAreRefused) {
  const auto device = std::make_shared<SimulatedDevice>();
  RouteSpecFields fields = two_layers();
  fields.top_k = 129;
  fields.num_experts = 200;
  const auto store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 4}));
  expect_error(make_simulated(store, {.max_rows = 4}, device), ErrorCode::kUnsupported, "at most 128 ids");
  const auto small = value_of(Store::create(value_of(RouteSpec::create(two_layers())), {.num_slots = 4}));
  expect_error(make_simulated(small, {.max_rows = int64_t{1} << 31}, device), ErrorCode::kInvalidArgument,
               "max_rows");
}

TEST(CudaRecorder, TheCpuSaysThatItHasNoDevice) {
  const auto store = value_of(Store::create(value_of(RouteSpec::create(two_layers())), {.num_slots = 4}));
  const auto recorder = value_of(Recorder::create(store, {.max_rows = 4}));
  EXPECT_EQ(recorder->device(), "cpu");
  const std::vector<int64_t> slot = {0};
  expect_error(recorder->layer_buffer(1), ErrorCode::kUnsupported, "on the CPU");
  expect_error(recorder->prepare(Slots(slot)), ErrorCode::kUnsupported, "on the CPU");
  expect_error(recorder->launch(), ErrorCode::kUnsupported, "on the CPU");
  expect_error(recorder->commit(DeviceSlots{}), ErrorCode::kUnsupported, "on the CPU");
  EXPECT_EQ(value_of(Recorder::required_device_bytes(store->spec(), {.max_rows = 4})), 0);
}

TEST(CudaRecorder, ABuildOrMachineWithoutCudaSaysSo) {
  const auto store = value_of(Store::create(value_of(RouteSpec::create(two_layers())), {.num_slots = 4}));
  RecorderOptions options = {.max_rows = 4};
  options.cuda.emplace().device = 77;  // which no machine has
  expect_error(Recorder::create(store, options), ErrorCode::kUnsupported, "cuda:77");
  EXPECT_GT(value_of(Recorder::required_bytes(store->spec(), 4, options)), 0);
  EXPECT_GT(value_of(Recorder::required_device_bytes(store->spec(), options)), 0);
}

}  // namespace
}  // namespace moetape::inline v0::cuda
