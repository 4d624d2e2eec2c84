// A step in the steady state allocates nothing. A program of its own, since it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "record/record_test_util.h"

namespace {
std::atomic<int64_t> num_allocations = 0;
}

// Where only some of these are inlined, g++ takes them for pairs that do not match.
[[gnu::noinline]] void* operator new(size_t size) {
  num_allocations += 1;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace moetape::inline v0 {
namespace {

TEST(Allocation, ASteadyStepAllocatesNothing) {  // case K03
  RouteSpecFields fields;
  for (int32_t layer = 3; layer < 61; ++layer) fields.layers.push_back(layer);
  fields.top_k = 8;
  fields.num_experts = 256;
  const auto store = value_of(Store::create(value_of(RouteSpec::create(fields)), {.num_slots = 4096}));
  const auto recorder = value_of(Recorder::create(store, {.max_rows = 512}));
  std::vector<int32_t> ids;
  for (int32_t row = 0; row < 300; ++row) {
    for (int32_t c = 0; c < 8; ++c) ids.push_back((row + c * 5) % 256);
  }
  ids[8 * 299] = -1;  // a padding row in every step
  const auto slots = slots_from(100, 300);
  const Layout layout = Layout::whole();
  const auto run_step = [&] {
    bool good = recorder->begin().has_value();
    for (const int32_t layer : fields.layers) {
      good = good && recorder->capture(layer, {ids.data(), IntType::kInt32, 200, 8, 8, 1}).has_value();
      good = good &&
             recorder->capture(layer, {ids.data() + 1600, IntType::kInt32, 100, 8, 8, 1}, 0, 200).has_value();
    }
    return good && recorder->commit(Slots(slots), layout).has_value();
  };
  ASSERT_TRUE(run_step());
  const int64_t before = num_allocations;
  bool good = true;
  for (int i = 0; i < 100; ++i) good = good && run_step();
  EXPECT_EQ(num_allocations - before, 0);
  EXPECT_TRUE(good);
}

}  // namespace
}  // namespace moetape::inline v0
