#include "moetape/tape.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

TEST(Tape, KeepsWhatWasWritten) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "moetape_tape_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder / "run.tape";
  const RouteSpec spec = make_spec({.layers = {3, 4, 7}, .top_k = 2, .num_experts = 8});
  const Routes routes =
      make_routes(spec, {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 5, 6, 1, 4, 2}, {1, 0, 1}, 5);
  TapeWriter writer = value_of(TapeWriter::create(path, spec));
  expect_ok(writer.append(routes, {.id = "a", .meta = "{}"}));
  expect_ok(writer.append(value_of(Routes::empty(spec, 2)), {.id = "b"}));
  expect_ok(writer.finish());
  const Tape tape = value_of(Tape::open(path));
  EXPECT_EQ(tape.num_sequences(), 2);
  EXPECT_EQ(value_of(tape.read(0)), routes);
  EXPECT_EQ(value_of(tape.entry(0)).id, "a");
  EXPECT_EQ(value_of(tape.entry(1)).start, 2);
}

}  // namespace
}  // namespace moetape::inline v0
