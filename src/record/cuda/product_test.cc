// The kernels' bodies in their launch geometry against record/cpu, byte for byte, over products of what
// specs, batches and ids can be. Every pair of two values comes up; MOETAPE_TEST_FULL=1 takes all
// combinations of the sizes (make nightly).
#include "record/cuda/product.h"

#include "record/cuda/cuda_test_util.h"

namespace moetape::inline v0::cuda {
namespace {

TEST(CudaProduct, EveryPairOfSizesTypesLayoutsAndFaultsGivesTheCpusBytes) {  // cases A17 D11
  constexpr unsigned kSeed = 20'260'801;
  std::mt19937 random(kSeed);
  const bool full = std::getenv("MOETAPE_TEST_FULL") != nullptr;
  const auto combinations = full ? full_product(random) : pairwise(random);
  EXPECT_LE(combinations.size(), full ? 5000u : 300u);
  for (const Combination& combination : combinations) {
    SCOPED_TRACE(fmt::format("seed {}: {}", kSeed, text_of(combination)));
    const Step step = make_step(combination, random);
    Runner runner(combination, step);
    EXPECT_EQ(difference(runner.on_device(std::make_shared<SimulatedDevice>()), runner.on_cpu()), "");
    if (HasFailure()) return;
  }
}

TEST(CudaProduct, WideIdsFillLanesOfFourBytes) {
  RouteSpecFields fields;
  fields.layers = {0, 1, 2};
  fields.top_k = 3;
  fields.num_experts = 40'000;
  const auto store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 8}));
  const auto device = std::make_shared<SimulatedDevice>();
  const auto recorder = value_of(make_simulated(store, {.max_rows = 4}, device));
  EXPECT_EQ(value_of(recorder->layer_buffer(0)).type, IntType::kInt32);
  const IdsView ids = on_device(*device, {{39'999, 32'768, 0}, {1, 40'000, 2}, {1, 5'000'000'000, 2}}, 3);
  for (const int32_t layer : {0, 1, 2}) expect_ok(recorder->capture(layer, ids));
  const Ticket ticket = value_of(recorder->commit(Slots(slots_from(0, 3))));
  EXPECT_EQ(ticket.report().first_offender->value, 40'000);
  EXPECT_EQ(ticket.report().num_by_fault[static_cast<size_t>(RowFault::kTooLarge)], 2);
  const std::string row = "39999 32768 0";
  EXPECT_THAT(shown(*store, {0, 1, 2}),
              testing::ElementsAre(row + " " + row + " " + row, "refused", "refused"));
}

TEST(CudaProduct, LongRowsAreWorkedOnInPieces) {
  RouteSpecFields fields;
  for (int32_t layer = 0; layer < 200; ++layer) fields.layers.push_back(layer);
  fields.top_k = 60;  // 120 bytes a layer: 32 layers at a time
  fields.num_experts = 300;
  const auto store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 8}));
  const auto device = std::make_shared<SimulatedDevice>();
  const auto recorder = value_of(make_simulated(store, {.max_rows = 4}, device));
  for (const int32_t layer : fields.layers) {
    Ids ids(3);
    for (int64_t k = 0; k < 60; ++k) {
      for (auto& row : ids) row.push_back((layer + k) % 300);
    }
    if (layer == 150) ids[1][59] = ids[1][0];
    expect_ok(recorder->capture(layer, on_device(*device, ids, 60)));
  }
  const auto slots = slots_from(0, 3);
  const Ticket ticket = value_of(recorder->commit(Slots(slots)));
  EXPECT_EQ(ticket.report().first_offender->layer, 150);
  EXPECT_EQ(ticket.report().first_offender->fault, RowFault::kRepeated);
  const Routes routes = value_of(store->read(Slots(slots)));
  EXPECT_EQ(routes.reasons()[1], Reason::kRefused);
  for (const int64_t row : {0, 2}) {
    for (int64_t i = 0; i < 200 * 60; ++i) {
      uint16_t id;
      std::memcpy(&id, routes.row(row).data() + 2 * i, 2);
      ASSERT_EQ(id, (i / 60 + i % 60) % 300);
    }
  }
}

}  // namespace
}  // namespace moetape::inline v0::cuda
