// What a recorder does with the steps of an engine, told as stories.
#include "record/record_test_util.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;

class Recording : public testing::Test {
 protected:
  void make(RouteSpecFields fields, RecorderOptions options, int64_t num_slots = 16) {
    store = value_of(Store::create(value_of(RouteSpec::create(std::move(fields))), {.num_slots = num_slots}));
    recorder = value_of(Recorder::create(store, options));
  }
  Result<Ticket> commit(const std::vector<int64_t>& slots, const Layout& layout = Layout::whole(),
                        const CommitOptions& options = {}) {
    return recorder->commit(Slots(slots), layout, options);
  }
  void step(const std::vector<int64_t>& slots, const Ids& ids, const CommitOptions& options = {}) {
    for (const int32_t layer : recorder->spec().layers())
      expect_ok(capture(*recorder, layer, ids, options.lane));
    value_of(commit(slots, Layout::whole(), options));
  }

  std::shared_ptr<Store> store;
  std::unique_ptr<Recorder> recorder;
};

TEST_F(Recording, RowsByBatchRowBecomeRowsBySlot) {  // SGLang: capture by batch row, host rows by KV slot
  make(two_layers(), {.max_rows = 4});
  expect_ok(recorder->begin());
  expect_ok(capture(*recorder, 1, {{0, 1}, {2, 3}}));
  expect_ok(capture(*recorder, 3, {{4, 5}, {7, 6}}));
  const Ticket ticket = value_of(commit({9, 2}));
  EXPECT_TRUE(ticket.ready());
  EXPECT_TRUE(ticket.wait().has_value());
  EXPECT_EQ(ticket.report().num_kept, 2);
  EXPECT_EQ(ticket.report().step, 1);
  EXPECT_THAT(shown(*store, {2, 9}), ElementsAre("2 3 7 6", "0 1 4 5"));
}

TEST_F(Recording, LayersKeepTheirOwnColumnInAnyOrder) {  // case G01
  RouteSpecFields fields = two_layers();
  fields.layers = {3, 4, 5};
  fields.num_layers = 6;
  make(fields, {.max_rows = 4});
  expect_ok(capture(*recorder, 5, {{5, 0}}));
  expect_ok(capture(*recorder, 3, {{3, 0}}));
  expect_ok(capture(*recorder, 4, {{4, 0}}));
  value_of(commit({0}));
  EXPECT_THAT(shown(*store, {0}), ElementsAre("3 0 4 0 5 0"));
}

TEST_F(Recording, ALayerThatNobodyCapturedFailsTheStepByName) {  // cases H01 H04 H13
  make(two_layers(), {.max_rows = 4});
  step({0}, {{1, 2}});
  expect_ok(recorder->begin());
  expect_ok(capture(*recorder, 1, {{3, 4}}));
  expect_error(commit({0}), ErrorCode::kNotCaptured, "layers [3]");
  EXPECT_THAT(shown(*store, {0}), ElementsAre("refused"));  // the previous row must not live on
  step({0}, {{5, 6}});
  EXPECT_THAT(shown(*store, {0}), ElementsAre("5 6 5 6"));
  EXPECT_EQ(recorder->counters().failed_commits, 1);
}

TEST_F(Recording, NothingCapturedIsNoStep) {  // case B12
  make(two_layers(), {.max_rows = 4});
  expect_ok(recorder->begin());
  expect_error(commit({0, 1}), ErrorCode::kNotCaptured, "layers [1, 3]");
  EXPECT_THAT(shown(*store, {0}), ElementsAre("refused"));
  EXPECT_EQ(value_of(commit({})).report().num_tokens,
            0);  // an idle rank; LightLLM: an empty flush does nothing
}

TEST_F(Recording, AStepThatWasBegunAndDroppedIsCounted) {  // case B10
  make(two_layers(), {.max_rows = 4});
  expect_ok(recorder->begin());
  expect_ok(capture(*recorder, 1, {{1, 2}}));
  expect_ok(recorder->begin());
  EXPECT_EQ(recorder->counters().abandoned, 1);
  step({0}, {{3, 4}});
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("3 4 3 4", "unwritten"));
}

TEST_F(Recording, LeftoversOfAWarmUpAreDropped) {
  make(two_layers(), {.max_rows = 4});
  expect_ok(capture(*recorder, 1, {{1, 2}, {3, 4}, {5, 6}}));
  expect_ok(recorder->begin());
  EXPECT_EQ(recorder->counters().abandoned, 0);
  step({0}, {{3, 4}});
  EXPECT_THAT(shown(*store, {0}), ElementsAre("3 4 3 4"));
}

TEST_F(Recording, ADataParallelRankTakesItsSlice) {  // cases A05 A06
  make(two_layers(), {.max_rows = 8});
  Ids batch;
  for (int64_t i = 0; i < 8; ++i) batch.push_back({i, (i + 1) % 8});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, batch));
  value_of(commit(slots_from(0, 5), Layout::dp_concat({3, 5}, 1)));
  EXPECT_THAT(shown(*store, {0, 4}), ElementsAre("3 4 3 4", "7 0 7 0"));

  // Gathered already (DeepEP): these five rows are the rank's own, and slicing again is detected.
  batch.resize(5);
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, batch));
  expect_error(commit(slots_from(0, 5), Layout::dp_concat({3, 5}, 1)), ErrorCode::kWrongShape, "5");
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, batch));
  value_of(commit(slots_from(0, 5)));
  EXPECT_THAT(shown(*store, {0, 4}), ElementsAre("0 1 0 1", "4 5 4 5"));
}

TEST_F(Recording, GraphPaddedRanksAreFoundByTheExtent) {  // cases A01 A02 A03
  make(two_layers(), {.max_rows = 16});
  Ids batch;
  for (int64_t i = 0; i < 16; ++i) batch.push_back({i % 8, (i + 3) % 8});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, batch));
  value_of(commit(slots_from(0, 8), Layout::dp_padded({4, 8}, 8, 1)));
  EXPECT_THAT(shown(*store, {0, 7}), ElementsAre("0 3 0 3", "7 2 7 2"));
}

TEST_F(Recording, PaddingRowsNeverArrive) {  // cases A10 A18
  make(two_layers(), {.max_rows = 8}, 8);
  step(slots_from(0, 8), Ids(8, {6, 7}));
  for (const int64_t padding : {int64_t{-1}, int64_t{4}}) {
    Ids batch(5, {1, 2});
    batch.resize(8, {padding, padding});
    for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, batch));
    std::vector<int64_t> slots = slots_from(0, 5);
    const Ticket ticket = value_of(commit(slots, Layout::graph_padded(5, 8)));
    EXPECT_EQ(ticket.report().num_kept, 5);
    EXPECT_EQ(ticket.report().num_refused, 0);
    EXPECT_FALSE(ticket.report().first_offender.has_value());
  }
  EXPECT_THAT(shown(*store, {4, 5}), ElementsAre("1 2 1 2", "6 7 6 7"));
}

TEST_F(Recording, AShardWritesItsOwnTokensOnly) {  // case A09
  make(two_layers(), {.max_rows = 3});
  auto other_rank = value_of(Recorder::create(store, {.max_rows = 3}));
  for (const int32_t layer : {1, 3}) {
    expect_ok(capture(*recorder, layer, {{0, 1}, {1, 2}, {2, 3}}));
    expect_ok(capture(*other_rank, layer, {{3, 4}, {4, 5}, {-1, -1}}));
  }
  const auto slots = slots_from(0, 5);
  const Ticket first = value_of(commit(slots, Layout::tp_shard(5, 2, 0)));
  const Ticket second = value_of(other_rank->commit(Slots(slots), Layout::tp_shard(5, 2, 1)));
  EXPECT_EQ(first.report().num_kept, 3);
  EXPECT_EQ(first.report().num_elsewhere, 2);
  EXPECT_EQ(second.report().num_kept, 2);
  EXPECT_THAT(shown(*store, slots), ElementsAre("0 1 0 1", "1 2 1 2", "2 3 2 3", "3 4 3 4", "4 5 4 5"));
}

TEST_F(Recording, AnIndexPlacesRowsOneByOne) {
  make(two_layers(), {.max_rows = 4});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}, {2, 3}, {4, 5}}));
  const Ticket ticket = value_of(commit({7, 8, 9}, Layout::rows({2, -1, 0})));
  EXPECT_EQ(ticket.report().num_elsewhere, 1);
  EXPECT_THAT(shown(*store, {7, 8, 9}), ElementsAre("4 5 4 5", "unwritten", "0 1 0 1"));
}

TEST_F(Recording, LanesOfOverlappedMicroBatchesDoNotMix) {  // case F01; LightLLM: lanes by micro-batch
  make(two_layers(), {.max_rows = 2, .num_lanes = 2});
  expect_ok(capture(*recorder, 1, {{0, 1}}, 0));
  expect_ok(capture(*recorder, 1, {{2, 3}}, 1));
  expect_ok(capture(*recorder, 3, {{4, 5}}, 1));
  expect_ok(capture(*recorder, 3, {{6, 7}}, 0));
  value_of(commit({1}, Layout::whole(), {.lane = 1}));
  value_of(commit({0}, Layout::whole(), {.lane = 0}));
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("0 1 6 7", "2 3 4 5"));
  expect_error(capture(*recorder, 1, {{0, 1}}, 2), ErrorCode::kOutOfRange, "lane: expected 0 to 1, got 2");
  expect_error(commit({0}, Layout::whole(), {.lane = -1}), ErrorCode::kOutOfRange, "lane");
}

TEST_F(Recording, EarlierStepsKeepTheirMetadataWhenALaterOneBegins) {  // case B08
  make(two_layers(), {.max_rows = 4, .num_lanes = 2});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, Ids(4, {0, 1}), 0));
  expect_ok(capture(*recorder, 1, Ids(4, {2, 3}), 1));  // the next step is under way
  value_of(commit(slots_from(0, 4), Layout::whole(), {.step = 1, .lane = 0}));
  expect_ok(capture(*recorder, 3, Ids(4, {2, 3}), 1));
  value_of(commit(slots_from(4, 4), Layout::whole(), {.step = 2, .lane = 1}));
  EXPECT_THAT(shown(*store, {0, 3, 4, 7}), ElementsAre("0 1 0 1", "0 1 0 1", "2 3 2 3", "2 3 2 3"));
}

TEST_F(Recording, VersionsAreOfTheStepOrOfTheToken) {
  make(two_layers(), {.max_rows = 4});
  step({0}, {{0, 1}}, {.version = 3});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}, {2, 3}}));
  const std::vector<uint32_t> versions = {4, 5};
  value_of(commit({1, 2}, Layout::whole(), {.versions = std::span<const uint32_t>(versions)}));
  const auto slots = slots_from(0, 3);
  EXPECT_THAT(value_of(store->read(Slots(slots))).versions(),
              ElementsAre(VersionRun{0, 1, 3}, VersionRun{1, 2, 4}, VersionRun{2, 3, 5}));
}

TEST_F(Recording, AStepOrVersionThatCannotBeRefusesTheSlots) {
  make(two_layers(), {.max_rows = 4});
  step({0, 1}, {{0, 1}, {2, 3}}, {.step = 5});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 5}}));
  expect_error(commit({0}, Layout::whole(), {.step = 5}), ErrorCode::kStepOrder, "above 5");
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("refused", "2 3 2 3"));
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 5}}));
  expect_error(commit({1}, Layout::whole(), {.step = 6, .version = 0xFFFFFF}), ErrorCode::kStepOrder,
               "version");
  EXPECT_THAT(shown(*store, {1}), ElementsAre("refused"));
  step({0, 1}, {{0, 1}, {2, 3}}, {.step = 7});
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("0 1 0 1", "2 3 2 3"));
}

TEST_F(Recording, AWrongNumberOfVersionsFailsTheStepLikeAnythingElse) {
  make(two_layers(), {.max_rows = 4});
  step({0, 1}, {{0, 1}, {2, 3}});
  for (const std::vector<uint32_t>& versions : {std::vector<uint32_t>{}, std::vector<uint32_t>{1, 2, 3}}) {
    for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 5}, {6, 7}}));
    expect_error(commit({0, 1}, Layout::whole(), {.versions = std::span<const uint32_t>(versions)}),
                 ErrorCode::kWrongShape, "versions: expected 2");
    EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("refused", "refused"));
  }
  EXPECT_EQ(recorder->counters().failed_commits, 2);
  step({0, 1}, {{0, 1}, {2, 3}});
}

TEST_F(Recording, ASlotThatAnotherLaneWroteInThisStepIsRefusedAndCounted) {
  make(two_layers(), {.max_rows = 4, .num_lanes = 2});
  step({0, 1}, {{0, 1}, {2, 3}}, {.step = 5, .lane = 0});
  step({3}, {{0, 1}}, {.step = 9, .lane = 0});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{4, 5}, {6, 7}, {1, 0}}, 1));
  const Ticket ticket = value_of(commit({1, 2, 3}, Layout::whole(), {.step = 5, .lane = 1}));
  EXPECT_EQ(ticket.report().num_kept, 1);
  EXPECT_EQ(ticket.report().num_by_fault[static_cast<size_t>(RowFault::kSuperseded)], 2);
  EXPECT_EQ(ticket.report().first_offender->value, 1);  // the slot
  EXPECT_THAT(shown(*store, {0, 1, 2, 3}), ElementsAre("0 1 0 1", "refused", "6 7 6 7", "0 1 0 1"));
}

TEST_F(Recording, SlotsOutOfRangeOrTwiceFailTheWholeStep) {
  make(two_layers(), {.max_rows = 4});
  step({0, 1, 2}, {{0, 1}, {2, 3}, {4, 5}});
  for (const auto& [slots, code, text] :
       std::vector<std::tuple<std::vector<int64_t>, ErrorCode, std::string>>{
           {{0, 16},
            ErrorCode::kOutOfRange,
            "slots[1]: expected a slot from 0 to 15, or -1 for no place; got 16"},
           {{0, -2}, ErrorCode::kOutOfRange, "got -2"},
           {{1, 1},
            ErrorCode::kInvalidArgument,
            "slots[1]: expected every slot once in a step, got 1 twice"}}) {
    for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{6, 7}, {6, 7}}));
    expect_error(commit(slots), code, text);
  }
  EXPECT_THAT(shown(*store, {0, 1, 2}), ElementsAre("refused", "refused", "4 5 4 5"));
  step({1, 0}, {{0, 1}, {2, 3}});  // a failed step leaves no slot marked as seen
  EXPECT_THAT(shown(*store, {0, 1}), ElementsAre("2 3 2 3", "0 1 0 1"));
}

TEST_F(Recording, TokensWithoutASlotAreCountedNotKept) {
  make(two_layers(), {.max_rows = 4});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}, {2, 3}, {4, 5}}));
  const Ticket ticket = value_of(commit({-1, 4, -1}));
  EXPECT_EQ(ticket.report().num_kept, 1);
  EXPECT_EQ(ticket.report().num_no_slot, 2);
  EXPECT_EQ(recorder->counters().rows_no_slot, 2);  // case J07
  EXPECT_THAT(shown(*store, {4}), ElementsAre("2 3 2 3"));
}

TEST_F(Recording, PipelineStagesRecordTheirOwnLayers) {  // case G10
  RouteSpecFields fields = two_layers();
  fields.layers = {0, 1, 2, 3};
  const RouteSpec whole = value_of(RouteSpec::create(fields));
  std::vector<Routes> parts;
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{2, 3}, std::vector<int32_t>{0, 1}}) {
    make(value_of(whole.with_layers(layers)).fields(), {.max_rows = 1});
    for (const int32_t layer : layers) expect_ok(capture(*recorder, layer, {{layer, layer + 1}}));
    value_of(commit({0}, Layout::whole(), {.version = 1}));
    const std::vector<int64_t> slot = {0};
    parts.push_back(value_of(store->read(Slots(slot))));
  }
  const Routes merged = value_of(merge_layers(parts));
  EXPECT_EQ(merged.spec(), whole);
  EXPECT_TRUE(merged.complete());
  const std::vector<int> ids = {0, 1, 1, 2, 2, 3, 3, 4};
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(static_cast<int>(merged.row(0)[i]), ids[i]);
}

TEST_F(Recording, DraftsHaveASpecOfTheirOwn) {  // case G09
  make(two_layers(), {.max_rows = 1});
  RouteSpecFields draft_fields = two_layers();
  draft_fields.stack = "draft";
  const auto draft = value_of(Store::create(value_of(RouteSpec::create(draft_fields)), {.num_slots = 16}));
  auto draft_recorder = value_of(Recorder::create(draft, {.max_rows = 1}));
  step({0}, {{1, 2}});
  for (const int32_t layer : {1, 3}) expect_ok(capture(*draft_recorder, layer, {{5, 6}}));
  const std::vector<int64_t> slot = {0};
  value_of(draft_recorder->commit(Slots(slot)));
  EXPECT_THAT(shown(*store, {0}), ElementsAre("1 2 1 2"));
  expect_error(store->write(Slots(slot), value_of(draft->read(Slots(slot)))), ErrorCode::kSpecMismatch,
               "spec");
}

TEST_F(Recording, ARequestsRowsAreReadBySlotAlone) {  // cases C19 J09: what is not asked for is not read
  make(two_layers(), {.max_rows = 3});
  step({0, 5, 9}, {{0, 1}, {2, 3}, {4, 5}});
  EXPECT_THAT(shown(*store, {5}), ElementsAre("2 3 2 3"));
}

TEST_F(Recording, AClosedStoreRefusesCommits) {
  make(two_layers(), {.max_rows = 1});
  expect_ok(recorder->begin());
  for (const int32_t layer : {1, 3}) expect_ok(capture(*recorder, layer, {{0, 1}}));
  store->close();
  expect_error(commit({0}), ErrorCode::kClosed, "closed");
  expect_error(Recorder::create(store, {.max_rows = 1}), ErrorCode::kClosed, "closed");
}

TEST_F(Recording, SizesAndOptionsAreCheckedAtCreation) {  // cases K01 A04
  make(two_layers(), {.max_rows = 1});
  expect_error(Recorder::create(store, {.max_rows = 0}), ErrorCode::kInvalidArgument, "max_rows");
  expect_error(Recorder::create(store, {.max_rows = 1, .num_lanes = 0}), ErrorCode::kInvalidArgument,
               "num_lanes");
  expect_error(Recorder::create(store, {.max_rows = 1, .memory_limit_bytes = -1}),
               ErrorCode::kInvalidArgument, "memory_limit_bytes");
  const RouteSpec spec = store->spec();
  EXPECT_GE(value_of(Recorder::required_bytes(spec, 1 << 20, {.max_rows = 1})), (1 << 20) / 8);
  expect_error(Recorder::create(store, {.max_rows = INT64_MAX / 2}), ErrorCode::kInvalidArgument, "max_rows");
  expect_error(Recorder::create(store, {.max_rows = 1 << 20, .memory_limit_bytes = 1024}),
               ErrorCode::kMemoryLimit, "expected at most 1024 bytes");
  RecorderOptions mapped = {.max_rows = 1};
  mapped.id_maps.emplace(2, value_of(IdMap::create({0})));
  expect_error(Recorder::create(store, mapped), ErrorCode::kOutOfRange, "2");
}

}  // namespace
}  // namespace moetape::inline v0
