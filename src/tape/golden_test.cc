// Tapes of schema 1 that were written once and are never written again: every later moetape reads them.
// The disabled test at the end wrote them; tests/python/test_tape_safetensors.py reads them without moetape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tape/tape_test_util.h"

namespace moetape::inline v0 {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

const fs::path kFolder = fs::path(MOETAPE_SOURCE_DIR) / "tests/golden/tape-1";

// Ids that a formula gives, so that no generator has to stay the same: distinct in every list.
Routes routes_by_formula(const RouteSpec& spec, int64_t start, int64_t num_rows, bool missing, bool versions,
                         bool tokens) {
  Ids ids;
  std::vector<uint8_t> valid;
  std::vector<int32_t> words;
  for (int64_t position = start; position < start + num_rows; ++position) {
    valid.push_back(!missing || position % 3 != 1);
    words.push_back(static_cast<int32_t>(position * 1000 - 500));
    for (int64_t layer = 0; layer < spec.num_moe_layers(); ++layer) {
      for (int64_t k = 0; k < spec.top_k(); ++k) {
        ids.push_back((position * 7 + layer * 3 + (spec.top_k() - k) * 5) % spec.num_experts());
      }
    }
  }
  const Routes plain = make_routes(spec, ids, valid, start);
  RoutesBuilder builder = value_of(RoutesBuilder::create(spec, start, num_rows));
  std::ranges::copy(plain.ids(), builder.ids());
  std::ranges::copy(plain.reasons(), builder.reasons());
  if (versions) {
    builder.add_version(0, num_rows / 2, 3);
    builder.add_version(num_rows / 2, num_rows - num_rows / 2, 16'777'214);
  }
  if (tokens) builder.set_tokens(words);
  return std::move(builder).finish();
}

struct Golden {
  std::string file;
  RouteSpec spec;
  TapeOptions options = {};
  bool is_plain = false;  // no missing rows, versions or tokens
};

std::vector<Golden> all() {
  const RouteSpec narrow = make_spec({.layers = {3, 4, 7},
                                      .top_k = 2,
                                      .num_experts = 11,
                                      .shared_columns = 1,
                                      .num_layers = 9,
                                      .excluded = {{1, "routed by a \"hash\""}},
                                      .model = "golden ☀\n"});
  const RouteSpec wide =
      make_spec({.stack = "draft", .layers = {0, 2}, .top_k = 3, .num_experts = 301, .distinct = false});
  return {{"plain.tape", narrow, {}, true},
          {"everything.tape", narrow},
          {"groups.tape", narrow, {.layer_groups = {{3, 7}, {4}}}},
          {"bitpack.tape", narrow, {.codec = Codec::kBitpack}},
          {"wide.tape", wide},
          {"wide-bitpack-groups.tape", wide, {.codec = Codec::kBitpack, .layer_groups = {{2}, {0}}}},
          {"shards.tape", narrow, {.max_file_bytes = 4096}}};
}

std::vector<Routes> routes_of(const Golden& golden) {
  const bool rich = !golden.is_plain;
  return {routes_by_formula(golden.spec, 5, 9, rich, rich, false),
          routes_by_formula(golden.spec, 2, 0, false, false, false),
          routes_by_formula(golden.spec, 0, 1100, false, rich, rich),
          routes_by_formula(golden.spec, 30, 4, rich, false, rich)};
}

std::vector<TapeSequence> names() {
  return {{"a", "{\"reward\":1.5}"}, {"b", ""}, {"", "no name"}, {"ü", "{}"}};
}

class GoldenTapes : public testing::TestWithParam<size_t> {};

TEST_P(GoldenTapes, AreRead) {
  const Golden golden = all()[GetParam()];
  const Tape tape = value_of(Tape::open(kFolder / golden.file));
  EXPECT_EQ(tape.spec(), golden.spec);
  EXPECT_EQ(tape.options().codec, golden.options.codec);
  EXPECT_EQ(tape.options().layer_groups, golden.options.layer_groups);
  EXPECT_EQ(tape.files().size() > 1, golden.options.max_file_bytes > 0);
  ASSERT_EQ(tape.num_sequences(), 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto sequence = static_cast<int64_t>(i);
    EXPECT_EQ(value_of(tape.read(sequence)), routes_of(golden)[i]);
    EXPECT_EQ(value_of(tape.entry(sequence)).id, names()[i].id);
    EXPECT_EQ(value_of(tape.entry(sequence)).meta, names()[i].meta);
  }
  EXPECT_THAT(tape.verify(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Schema1, GoldenTapes, testing::Range(size_t{0}, all().size()),
                         [](const auto& golden) {
                           std::string name = all()[golden.param].file;
                           std::ranges::replace_if(name, [](char c) { return c == '.' || c == '-'; }, '_');
                           return name;
                         });

TEST(GoldenTape, WithAChannelIsRead) {
  const Tape tape = value_of(Tape::open(kFolder / "channels.tape"));
  EXPECT_EQ(tape.num_sequences(), 2);
  EXPECT_THAT(tape.verify(), IsEmpty());
}

TEST(GoldenTape, DISABLED_WriteThem) {
  fs::create_directories(kFolder);
  for (const Golden& golden : all()) {
    TapeWriter writer = value_of(TapeWriter::create(kFolder / golden.file, golden.spec, golden.options));
    for (size_t i = 0; i < 4; ++i) expect_ok(writer.append(routes_of(golden)[i], names()[i]));
    expect_ok(writer.finish());
  }
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 4});
  write_file(kFolder / "channels.tape", bytes_of(channel_tape(spec, 2)));
}

}  // namespace
}  // namespace moetape::inline v0
