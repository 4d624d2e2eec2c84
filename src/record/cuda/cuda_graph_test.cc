// Graphs of an engine in one recorder: of many sizes, in pieces, given up, replayed without a step.
#include "record/cuda/on_device_test.h"

namespace moetape::inline v0::cuda {
namespace {

using testing::Each;
using testing::ElementsAre;
using Graph = SimulatedDevice::Graph;

class InGraphs : public OnDevice {
 protected:
  template <class Function>
  Graph captured(Function function) {
    device->begin_capture(forward);
    function();
    return device->end_capture(forward);
  }
  // A forward of `rows` rows, whose routers choose as `choice` says when the graph is replayed.
  Graph whole_graph(const int64_t* choice, int64_t rows) {
    return captured([&] {
      expect_ok(recorder->begin(0, forward));
      capture_choice(choice, rows);
      expect_ok(recorder->launch(0, forward));
    });
  }
  void capture_choice(const int64_t* choice, int64_t rows) {
    for (const int32_t layer : recorder->spec().layers())
      expect_ok(recorder->capture(layer, {choice, IntType::kInt64, rows, 2, 2, 1}, 0, 0, forward));
  }
  static void choose(int64_t* choice, int64_t rows, int64_t first) {
    for (int64_t i = 0; i < rows; ++i) {
      choice[2 * i] = (first + i) % 8;
      choice[2 * i + 1] = (first + i + 1) % 8;
    }
  }
  int64_t unwritten_rows_of_an_empty_forward(const std::vector<int64_t>& slots) {
    for (const int32_t layer : recorder->spec().layers()) value_of(recorder->layer_buffer(layer));
    return refused_for(landed(value_of(commit(slots))), RowFault::kUnwritten);
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, InGraphs, kBothPaths, path_name);

TEST_P(InGraphs, GraphsOfAllSizesTakeTurnsInOneRecorder) {  // case H08
  make(two_layers(), {.max_rows = 16}, Mode::kByHand, {.num_slots = 64});
  int64_t* choice = device->upload(std::vector<int64_t>(32));
  std::map<int64_t, Graph> graphs;
  for (const int64_t size : {16, 8, 4, 2, 1}) graphs[size] = whole_graph(choice, size);
  int64_t number = 0;
  for (int64_t round = 0; round < 60; ++round) {
    const int64_t valid = 1 + round * 7 % 16;
    const auto slots = slots_from(round % 48, valid);
    const auto& [size, graph] = *graphs.lower_bound(valid);
    choose(choice, valid, round);
    expect_ok(recorder->begin(0, forward));
    const Ticket ticket = value_of(prepare(slots, Layout::graph_padded(valid, size), {.step = ++number}));
    device->replay(graph, forward);
    EXPECT_EQ(landed(ticket).num_kept, valid) << round;
    EXPECT_EQ(value_of(store->read(Slots(slots))).row(valid - 1)[0],
              static_cast<std::byte>((round + valid - 1) % 8));
    if (round % 10 != 9) continue;
    // A prefill between them is no graph's.
    expect_ok(recorder->begin(0, forward));
    capture_layers(Ids(3, {6, 7}));
    EXPECT_EQ(landed(value_of(commit({61, 62, 63}, Layout::whole(), {.step = ++number}))).num_kept, 3);
    EXPECT_THAT(rows({61, 62, 63}), Each(std::string("6 7 6 7")));
  }
}

TEST_P(InGraphs, PiecesAreCapturedForOneSizeAfterAnother) {
  make(two_layers(), {.max_rows = 8}, Mode::kByHand);
  int64_t* choice = device->upload(std::vector<int64_t>(16));
  // Begin and commit are outside; each layer is a graph of its own, and there is one more set a size.
  std::map<int64_t, std::vector<Graph>> pieces;
  for (const int64_t size : {8, 4, 2}) {
    for (const int32_t layer : {1, 3}) {
      pieces[size].push_back(captured([&] {
        expect_ok(recorder->capture(layer, {choice, IntType::kInt64, size, 2, 2, 1}, 0, 0, forward));
      }));
    }
  }
  for (const int64_t size : {2, 8, 4}) {
    choose(choice, size, size);
    expect_ok(recorder->begin(0, forward));
    for (const Graph& piece : pieces[size]) device->replay(piece, forward);
    EXPECT_EQ(landed(value_of(commit(slots_from(0, size)))).num_kept, size);
  }
  EXPECT_THAT(rows({0, 3, 7}), ElementsAre("4 5 4 5", "7 0 7 0", "7 0 7 0"));
}

TEST_P(InGraphs, TheLaunchMayBeInTheLastPiece) {
  make(two_layers(), {.max_rows = 8}, Mode::kByHand);
  int64_t* choice = device->upload(std::vector<int64_t>(16));
  const auto piece = [&](int32_t layer) {
    expect_ok(recorder->capture(layer, {choice, IntType::kInt64, 8, 2, 2, 1}, 0, 0, forward));
  };
  const Graph first = captured([&] { piece(1); });
  const Graph last = captured([&] {
    piece(3);
    expect_ok(recorder->launch(0, forward));
  });
  choose(choice, 8, 1);
  expect_ok(recorder->begin(0, forward));
  const Ticket ticket = value_of(prepare({0, 1}, Layout::graph_padded(2, 8)));
  device->replay(first, forward);
  device->replay(last, forward);
  EXPECT_EQ(landed(ticket).num_kept, 2);
  EXPECT_THAT(rows({0, 1}), ElementsAre("1 2 1 2", "2 3 2 3"));
}

TEST_P(InGraphs, ACaptureThatWasGivenUpIsForgotten) {
  make(two_layers(), {.max_rows = 8});
  int64_t* choice = device->upload(std::vector<int64_t>(16));
  captured([&] {  // out of memory in the middle of the forward
    expect_ok(recorder->capture(1, {choice, IntType::kInt64, 8, 2, 2, 1}, 0, 0, forward));
    expect_error(recorder->capture(1, {choice, IntType::kInt64, 4, 3, 3, 1}, 0, 0, forward),
                 ErrorCode::kWrongShape, "expected 2 columns");
  });
  const Graph graph = captured([&] {  // and begin() is outside of the graph
    capture_choice(choice, 4);
    expect_ok(recorder->launch(0, forward));
  });
  choose(choice, 4, 3);
  const Ticket ticket = value_of(prepare(slots_from(0, 4)));
  device->replay(graph, forward);
  EXPECT_EQ(landed(ticket).num_kept, 4);
}

TEST_P(InGraphs, AStepThatIsGivenUpIsNeverCommittedByADummyReplay) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  int64_t* choice = device->upload(std::vector<int64_t>(8));
  const Graph graph = whole_graph(choice, 4);
  step({0, 1, 2}, {{4, 5}, {4, 5}, {4, 5}});
  for (const bool begins : {true, false}) {
    expect_ok(recorder->begin(0, forward));
    const Ticket given_up = value_of(prepare({0, 1}));  // and then the scheduler takes the step back
    choose(choice, 4, 1);
    if (begins) {
      expect_ok(recorder->begin(0, forward));
      device->replay(graph, forward);  // a rank without tokens runs along
    }
    step({2}, {{6, 7}});
    expect_error(given_up.wait(), ErrorCode::kNotCaptured, "never launched");
    EXPECT_THAT(rows({0, 1, 2}), ElementsAre("refused", "refused", "6 7 6 7"));
    step({0, 1}, {{4, 5}, {4, 5}});
    EXPECT_THAT(rows({0, 1}), Each(std::string("4 5 4 5")));
  }
}

TEST_P(InGraphs, AStepThatAGraphLaunchedIsNotGivenUp) {
  make(two_layers(), {.max_rows = 4}, Mode::kByHand);
  int64_t* choice = device->upload(std::vector<int64_t>(8));
  const Graph graph = whole_graph(choice, 2);
  choose(choice, 2, 1);
  std::vector<Ticket> tickets;
  for (int64_t i = 0; i < 3; ++i) {  // the host is ahead: nothing has run when the next step begins
    expect_ok(recorder->begin(0, forward));
    tickets.push_back(value_of(prepare(slots_from(2 * i, 2))));
    device->replay(graph, forward);
  }
  for (const Ticket& ticket : tickets) EXPECT_EQ(landed(ticket).num_kept, 2);
  EXPECT_THAT(rows({0, 1, 4, 5}), ElementsAre("1 2 1 2", "2 3 2 3", "1 2 1 2", "2 3 2 3"));
}

TEST_P(InGraphs, RowsThatTheLayoutDoesNotNameArePutBackToo) {
  make(two_layers(), {.max_rows = 16});
  int64_t* choice = device->upload(std::vector<int64_t>(16));
  choose(choice, 8, 0);
  const Graph graph = whole_graph(choice, 8);
  expect_ok(recorder->begin(0, forward));
  const Ticket ticket = value_of(prepare({0, 1, 2}));  // says that the batch has three rows
  device->replay(graph, forward);
  EXPECT_EQ(landed(ticket).num_kept, 3);
  EXPECT_EQ(unwritten_rows_of_an_empty_forward(slots_from(0, 8)), 8);
  // And where the pieces are graphs and the launch is not.
  const Graph piece = captured([&] { capture_choice(choice, 8); });
  expect_ok(recorder->begin(0, forward));
  device->replay(piece, forward);
  EXPECT_EQ(landed(value_of(commit({0, 1, 2}))).num_kept, 3);
  EXPECT_EQ(unwritten_rows_of_an_empty_forward(slots_from(0, 8)), 8);
}

}  // namespace
}  // namespace moetape::inline v0::cuda
