// What a lane takes, and what it says to the rest.
#include "record/record_test_util.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;

class Capturing : public testing::Test {
 protected:
  void make(RouteSpecFields fields, RecorderOptions options = {.max_rows = 8}) {
    store = value_of(Store::create(value_of(RouteSpec::create(std::move(fields))), {.num_slots = 64}));
    recorder = value_of(Recorder::create(store, options));
  }
  Result<Ticket> commit(int64_t num_tokens) {
    const auto slots = slots_from(0, num_tokens);
    return recorder->commit(Slots(slots));
  }

  std::shared_ptr<Store> store;
  std::unique_ptr<Recorder> recorder;
};

TEST_F(Capturing, ChunksAreJoinedByOffset) {  // case A19
  make(two_layers());
  expect_ok(capture(*recorder, 1, Ids(3, {0, 1}), 0, 0));
  expect_ok(capture(*recorder, 1, Ids(2, {2, 3}), 0, 3));
  expect_ok(capture(*recorder, 3, Ids(2, {2, 3}), 0, 3));  // in any order
  expect_ok(capture(*recorder, 3, Ids(3, {0, 1}), 0, 0));
  value_of(commit(5));
  EXPECT_THAT(shown(*store, {0, 3, 4}), ElementsAre("0 1 0 1", "2 3 2 3", "2 3 2 3"));
}

TEST_F(Capturing, RowsCapturedTwiceAreAnErrorAtOnceAndFailTheStep) {  // cases A19 G15
  make(two_layers());
  expect_ok(capture(*recorder, 1, Ids(3, {0, 1})));
  expect_error(capture(*recorder, 1, Ids(2, {2, 3})), ErrorCode::kAlreadyCaptured,
               "layer 1 rows [0, 2) already captured");
  expect_error(capture(*recorder, 1, Ids(2, {2, 3}), 0, 2), ErrorCode::kAlreadyCaptured, "rows [2, 3)");
  expect_ok(capture(*recorder, 3, Ids(3, {0, 1})));
  expect_error(commit(3), ErrorCode::kAlreadyCaptured, "layer 1");
  EXPECT_EQ(recorder->counters().failed_captures, 2);
}

TEST_F(Capturing, AChunkWithoutRowsIsACaptureAndTakesNoPlace) {
  make(two_layers());
  for (const int32_t layer : {1, 3}) {
    expect_ok(capture(*recorder, layer, {}, 0, 3));
    expect_ok(capture(*recorder, layer, Ids(5, {0, 1})));
    expect_ok(capture(*recorder, layer, {}, 0, 5));
  }
  value_of(commit(5));
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {}, 0, 3));
  EXPECT_EQ(value_of(commit(0)).report().num_tokens, 0);
}

TEST_F(Capturing, IdsThatWereUnusableBeforeCaptureFailTheStep) {  // case H03
  make(two_layers());
  expect_ok(recorder->fail_step({ErrorCode::kWrongType, "ids: expected integers, got float32"}));
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}}));
  expect_error(commit(1), ErrorCode::kWrongType, "float32");
  EXPECT_EQ(recorder->counters().failed_captures, 1);
}

TEST_F(Capturing, LayersWithOtherRowCountsAreNamed) {
  make(two_layers());
  expect_ok(capture(*recorder, 1, Ids(3, {0, 1})));
  expect_ok(capture(*recorder, 3, Ids(2, {0, 1})));
  expect_error(commit(3), ErrorCode::kWrongShape, "layers [3]: expected rows [0, 3)");
  expect_ok(capture(*recorder, 1, Ids(2, {0, 1}), 0, 1));
  expect_ok(capture(*recorder, 3, Ids(3, {0, 1})));
  expect_error(commit(3), ErrorCode::kWrongShape, "layers [1]");
}

TEST_F(Capturing, MoreRowsThanTheLaneHoldsAreRefusedBeforeAnyIsWritten) {  // cases A04 A14
  make(two_layers(), {.max_rows = 4});
  expect_error(capture(*recorder, 1, Ids(9, {0, 1})), ErrorCode::kCapacity, "needs 9 rows, the lane has 4");
  expect_error(capture(*recorder, 1, Ids(2, {0, 1}), 0, 3), ErrorCode::kCapacity, "needs 5 rows");
  expect_error(capture(*recorder, 1, Ids(1, {0, 1}), 0, -1), ErrorCode::kOutOfRange, "offset");
  expect_error(capture(*recorder, 1, Ids(2, {0, 1}), 0, INT64_MAX), ErrorCode::kCapacity,
               "needs 9223372036854775809 rows");
  expect_error(commit(4), ErrorCode::kCapacity, "needs 9 rows");
  EXPECT_THAT(shown(*store, {0}), ElementsAre("refused"));
}

TEST_F(Capturing, ABufferMayBeLargerThanTheBatch) {  // case A13
  make(two_layers(), {.max_rows = 8});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, Ids(4, {0, 1})));
  value_of(commit(4));
  EXPECT_THAT(shown(*store, {3, 4}), ElementsAre("0 1 0 1", "unwritten"));
}

TEST_F(Capturing, ALayerOutsideTheSpecIsAnErrorAndTheStepGoesOn) {  // cases H03 G12 G02
  make(two_layers());
  expect_error(capture(*recorder, -1, {{0, 1}}), ErrorCode::kOutOfRange, "-1");
  expect_error(capture(*recorder, 2, {{0, 1}}), ErrorCode::kOutOfRange, "2");
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}}));
  value_of(commit(1));
  EXPECT_EQ(recorder->counters().failed_captures, 2);
}

TEST_F(Capturing, SharedExpertColumnsAreCut) {  // case A12
  RouteSpecFields fields = two_layers();
  fields.num_experts = 64;
  fields.shared_columns = 1;
  make(fields);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 7, 64}, {1, 3, 64}}));
  value_of(commit(2));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("4 7 4 7", "1 3 1 3"));
  for (const int32_t layer : {1, 3})
    expect_ok(capture(*recorder, layer, {{5, 6}}));  // a kernel that has none
  value_of(commit(1));
  EXPECT_THAT(shown(*store, {0}), ElementsAre("5 6 5 6"));
}

TEST_F(Capturing, ARoutedIdInASharedColumnIsNeverCutOff) {
  RouteSpecFields fields = two_layers();
  fields.shared_columns = 1;
  make(fields);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 7, 2}, {1, 3, 8}}));
  const Ticket ticket = value_of(commit(2));
  EXPECT_EQ(ticket.report().num_by_fault[static_cast<size_t>(RowFault::kShared)], 1);
  EXPECT_EQ(ticket.report().first_offender->value, 2);
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("refused", "1 3 1 3"));
}

TEST_F(Capturing, IdsThatAreNoExpertsRefuseTheirRowOnly) {  // cases D07 D11 B12 I07
  make(two_layers());
  expect_ok(capture(*recorder, 1, {{0, 1}, {-1, 2}, {3, 4}, {5, 5}, {6, 7}}));
  expect_ok(capture(*recorder, 3, {{0, 1}, {1, 2}, {3, 8}, {5, 6}, {6, 7}}));
  const Ticket ticket = value_of(commit(5));
  const CommitReport& report = ticket.report();
  EXPECT_EQ(report.num_kept, 2);
  EXPECT_EQ(report.num_refused, 3);
  EXPECT_EQ(report.num_by_fault[static_cast<size_t>(RowFault::kNegative)], 1);
  EXPECT_EQ(report.num_by_fault[static_cast<size_t>(RowFault::kTooLarge)], 1);
  EXPECT_EQ(report.num_by_fault[static_cast<size_t>(RowFault::kRepeated)], 1);
  ASSERT_TRUE(report.first_offender.has_value());
  EXPECT_EQ(report.first_offender->layer, 1);
  EXPECT_EQ(report.first_offender->row, 1);
  EXPECT_EQ(report.first_offender->value, -1);
  EXPECT_THAT(shown(*store, slots_from(0, 5)),
              ElementsAre("0 1 0 1", "refused", "refused", "refused", "6 7 6 7"));
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, Ids(5, {0, 1})));
  EXPECT_EQ(value_of(commit(5)).report().num_kept, 5);  // the next step starts clean
}

TEST_F(Capturing, WidthFollowsTheNumberOfExperts) {  // cases D01 D04 D05 D13
  RouteSpecFields fields = two_layers();
  fields.num_experts = 256;
  make(fields);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{255, 0}}));
  value_of(commit(1));
  EXPECT_THAT(shown(*store, {0}), ElementsAre("255 0 255 0"));
  EXPECT_EQ(store->spec().row_bytes(), 4);

  fields.num_experts = 512;
  make(fields);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{100, 3}, {300, 255}}));
  value_of(commit(2));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("100 3 100 3", "300 255 300 255"));
  EXPECT_EQ(store->spec().row_bytes(), 8);
}

TEST_F(Capturing, RangesAreCheckedBeforeAnIdIsCut) {  // case D07
  make(two_layers());
  const std::vector<int64_t> wraps = {256,       65536,    int64_t{1} << 32, (int64_t{1} << 32) + 1,
                                      INT64_MAX, INT64_MIN};
  for (const int64_t id : wraps) {
    for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{id, 1}}));
    const Ticket ticket = value_of(commit(1));
    EXPECT_EQ(ticket.report().num_refused, 1) << id;
    EXPECT_EQ(ticket.report().first_offender->value, id);
  }
}

TEST_F(Capturing, HugeUnsignedIdsAreNotTakenForNegativeOnes) {
  make(two_layers());
  const std::vector<uint64_t> ids = {UINT64_MAX, 1};
  for (const int32_t layer : {1, 3})
    expect_ok(recorder->capture(layer, {ids.data(), IntType::kUint64, 1, 2, 2, 1}));
  const Ticket ticket = value_of(commit(1));
  EXPECT_EQ(ticket.report().first_offender->fault, RowFault::kTooLarge);
  EXPECT_EQ(ticket.report().first_offender->value, INT64_MAX);
}

TEST_F(Capturing, RepeatedIdsAreTakenWhereTheSpecAllowsThem) {
  RouteSpecFields fields = two_layers();
  fields.distinct = false;
  make(fields);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 0}}));
  EXPECT_EQ(value_of(commit(1)).report().num_kept, 1);
}

TEST_F(Capturing, WrongColumnsAreNamed) {
  make(two_layers());
  expect_error(capture(*recorder, 1, {{0, 1, 2}}), ErrorCode::kWrongShape,
               "expected 2 columns (top_k), got 3");
  expect_error(commit(1), ErrorCode::kWrongShape, "got 3");
}

TEST_F(Capturing, EveryIntegerTypeAndStrideIsTheSame) {
  make(two_layers());
  const auto check = [&]<class T>(T, IntType type) {
    const std::vector<T> padded = {5, 9, 6, 9, 9, 9,
                                   7, 9, 0, 9, 9, 9};  // [2 rows, stride 6], every second column
    const IdsView view = {padded.data(), type, 2, 2, 6, 2};
    for (const int32_t layer : {1, 3}) expect_ok(recorder->capture(layer, view));
    value_of(commit(2));
    EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("5 6 5 6", "7 0 7 0")) << int_type_name(type);
  };
  check(int8_t{}, IntType::kInt8);
  check(uint8_t{}, IntType::kUint8);
  check(int16_t{}, IntType::kInt16);
  check(uint16_t{}, IntType::kUint16);
  check(int32_t{}, IntType::kInt32);
  check(uint32_t{}, IntType::kUint32);
  check(int64_t{}, IntType::kInt64);
  check(uint64_t{}, IntType::kUint64);
}

TEST_F(Capturing, PhysicalIdsAreMappedBack) {  // cases H02 H05 A15
  RecorderOptions options = {.max_rows = 8};
  std::vector<int32_t> to_logical = {0, 9, 2, 4, 3, 5, 6, 7, 8, 1, 10, 11, 3};  // 3 has replicas 4 and 12
  RouteSpecFields fields = two_layers();
  fields.num_experts = 12;
  for (const int32_t layer : {1, 3}) options.id_maps.emplace(layer, value_of(IdMap::create(to_logical)));
  make(fields, options);
  for (const int32_t layer : {1, 3})
    expect_ok(capture(*recorder, layer, {{12, 1}, {4, 1}, {13, 0}, {12, 4}}));
  const Ticket ticket = value_of(commit(4));
  EXPECT_THAT(shown(*store, slots_from(0, 4)), ElementsAre("3 9 3 9", "3 9 3 9", "refused", "refused"));
  EXPECT_EQ(ticket.report().first_offender->value, 13);
  EXPECT_EQ(ticket.report().num_by_fault[static_cast<size_t>(RowFault::kRepeated)], 1);
}

TEST_F(Capturing, DispatchIdsLoseTheirSharedSlots) {  // case A15
  RouteSpecFields fields = two_layers();
  fields.num_experts = 64;
  fields.shared_columns = 1;
  RecorderOptions options = {.max_rows = 8};
  for (const int32_t layer : {1, 3}) {
    options.id_maps.emplace(layer, value_of(IdMap::interleaved_shared(64, 2, 1)));
  }
  make(fields, options);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{41, 0, 32}, {32, 1, 65}}));
  const Ticket ticket = value_of(commit(2));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("40 0 40 0", "refused"));
  EXPECT_EQ(ticket.report().first_offender->value, 32);
}

TEST_F(Capturing, AllLayersAtOnce) {
  make(two_layers());
  const std::vector<int32_t> layer_major = {0, 1, 2, 3, 4, 5, 6, 7};  // [L=2, T=2, K=2]
  expect_ok(recorder->capture_all({layer_major.data(), IntType::kInt32, 2, 2, 2, 1}, 4, 2));
  value_of(commit(2));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("0 1 4 5", "2 3 6 7"));
  const std::vector<int32_t> token_major = {0, 1, 4, 5, 2, 3, 6, 7};  // [T=2, L=2, K=2]
  expect_ok(recorder->capture_all({token_major.data(), IntType::kInt32, 2, 2, 4, 1}, 2, 2));
  value_of(commit(2));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("0 1 4 5", "2 3 6 7"));
  expect_error(recorder->capture_all({token_major.data(), IntType::kInt32, 2, 2, 4, 1}, 2, 3),
               ErrorCode::kWrongShape, "expected 2 layers, got 3");
}

TEST_F(Capturing,
       KernelsThatFillOnlyPartAreSeen) {  // case A17: all-zero rows are no experts where ids are distinct
  RouteSpecFields fields = two_layers();
  fields.num_experts = 128;
  for (const int64_t rows : {1, 15, 16, 17, 255, 256, 257}) {
    make(fields, {.max_rows = 512});
    Ids ids(static_cast<size_t>(rows), {3, 4});
    ids.back() = {0, 0};
    for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, ids));
    std::vector<int64_t> slots(static_cast<size_t>(rows), -1);
    slots.back() = 5;
    const Ticket ticket = value_of(recorder->commit(Slots(slots)));
    EXPECT_EQ(ticket.report().num_refused, 1) << rows;
    EXPECT_THAT(shown(*store, {5}), ElementsAre("refused"));
  }
}

}  // namespace
}  // namespace moetape::inline v0
