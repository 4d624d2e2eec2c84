// A device that does not do as it is told: nothing hangs, nothing old passes for new, and the error says why.
#include "record/cuda/on_device_test.h"

namespace moetape::inline v0::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;

class OnAFailingDevice : public OnDevice {};

INSTANTIATE_TEST_SUITE_P(Paths, OnAFailingDevice, kBothPaths, path_name);

TEST_P(OnAFailingDevice, ALaunchThatFailsRefusesTheStepsSlots) {
  make(two_layers(), {.max_rows = 4});
  step({0, 1}, {{0, 1}, {2, 3}});
  for (const int num_failing : {1, 3}) {  // once, and so often that the host must refuse them
    step({0, 1}, {{0, 1}, {2, 3}});
    expect_ok(recorder->begin(0, forward));
    capture_layers({{4, 5}});
    device->num_failing_launches = num_failing;
    expect_error(commit({0}), ErrorCode::kDeviceFailed, "does not take this");
    device->num_failing_launches = 0;
    EXPECT_THAT(rows({0, 1}), ElementsAre("refused", "2 3 2 3"));
    step({0}, {{6, 7}});
    EXPECT_THAT(rows({0}), ElementsAre("6 7 6 7"));
  }
}

TEST_P(OnAFailingDevice, ATicketOfAStepThatCouldNotBeLaunchedSaysSo) {
  make(two_layers(), {.max_rows = 4});
  capture_layers({{4, 5}});
  const Ticket ticket = value_of(prepare({0}));
  device->num_failing_launches = 2;
  expect_error(recorder->launch(0, forward), ErrorCode::kDeviceFailed, "does not take this");
  expect_error(ticket.wait(), ErrorCode::kDeviceFailed, "does not take this");
  expect_error(recorder->launch(0, forward), ErrorCode::kInvalidArgument,
               "expected a step that was prepared");
  EXPECT_THAT(rows({0}), ElementsAre("refused"));
}

TEST_P(OnAFailingDevice, AStepThatDidNotReachTheDeviceIsRefusedByTheHost) {
  make(two_layers(), {.max_rows = 4});
  step({0, 1}, {{0, 1}, {2, 3}});
  capture_layers({{4, 5}, {6, 7}});
  device->num_failing_copies = 1;
  expect_error(commit({0, 1}), ErrorCode::kDeviceFailed, "does not take this");
  EXPECT_THAT(rows({0, 1}), Each(std::string("refused")));
  step({0}, {{4, 5}});
  EXPECT_THAT(rows({0}), ElementsAre("4 5 4 5"));
}

TEST_P(OnAFailingDevice, AFailedStepIsRefusedByTheHostWhereTheDeviceCannot) {
  make(two_layers(), {.max_rows = 2});
  step({0, 1}, {{0, 1}, {2, 3}});
  step({2, 3}, {{0, 1}, {2, 3}});
  capture_layers({{4, 5}, {6, 7}});
  device->num_failing_launches = 1;
  // More slots than the lane has rows: several launches.
  expect_error(commit({0, 1, 2, 3}), ErrorCode::kDeviceFailed, "does not take this");
  EXPECT_THAT(rows({0, 1, 2, 3}), Each(std::string("refused")));
}

TEST_P(OnAFailingDevice, ADeadDeviceIsNoTimeout) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  step({0, 1}, {{0, 1}, {2, 3}});
  std::vector<Ticket> tickets;
  for (const int64_t slot : {0, 1}) {
    capture_layers({{4, 5}});
    tickets.push_back(value_of(commit({slot})));
  }
  device->is_dead = true;
  for (const Ticket& ticket : tickets) {
    expect_error(ticket.wait(std::chrono::hours(1)), ErrorCode::kDeviceFailed, "dead");
    EXPECT_TRUE(ticket.ready());
  }
  EXPECT_THAT(rows({0, 1}), Each(std::string("refused")));
  expect_error(capture(1, {{4, 5}}), ErrorCode::kDeviceFailed, "dead");
  recorder.reset();
}

TEST_P(OnAFailingDevice, AMoveWaitsForStepsThatOnlyALookBringsHome) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  int64_t* choice = device->upload(std::vector<int64_t>{1, 2});
  device->begin_capture(forward);
  for (const int32_t layer : {1, 3})
    expect_ok(recorder->capture(layer, {choice, IntType::kInt64, 1, 2, 2, 1}, 0, 0, forward));
  expect_ok(recorder->launch(0, forward));
  const auto graph = device->end_capture(forward);
  const std::vector<int64_t> source = {0};
  for (const int64_t target : {5, 6}) {
    // Nobody looks at the ticket: this thread is in move() itself.
    expect_ok(recorder->begin(0, forward));
    if (target == 5) capture_layers({{1, 2}});
    const Ticket ticket = target == 5 ? value_of(commit({0})) : value_of(prepare({0}));
    if (target == 6) device->replay(graph, forward);
    device->run(forward);
    const std::vector<int64_t> to = {target};
    expect_ok(store->move(Slots(source), Slots(to), {.timeout = std::chrono::milliseconds(0)}));
    EXPECT_THAT(rows({target}), ElementsAre("1 2 1 2"));
    EXPECT_TRUE(ticket.ready());
  }
}

TEST_P(OnAFailingDevice, TheRecordersEndWaitsForKernelsThatCommitNothing) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  device->begin_capture(forward);
  for (const int32_t layer : {1, 3}) expect_ok(capture(layer, {{1, 2}}));
  expect_ok(recorder->launch(0, forward));
  const auto graph = device->end_capture(forward);
  expect_ok(recorder->begin(0, forward));
  device->replay(graph, forward);  // nobody prepared it
  bool done = false;
  device->call([&] { done = true; }, forward);
  recorder.reset();
  EXPECT_TRUE(done);
}

TEST_P(OnAFailingDevice, TheRecordersEndRefusesWhatWasNeverLaunched) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  step({0}, {{0, 1}});
  capture_layers({{4, 5}});
  const Ticket ticket = value_of(prepare({0}));
  recorder.reset();
  expect_error(ticket.wait(), ErrorCode::kNotCaptured, "never launched");
  EXPECT_THAT(rows({0}), ElementsAre("refused"));
}

}  // namespace
}  // namespace moetape::inline v0::cuda
