#include "moetape/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "tape/tape_test_util.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using TapeFiles = InFolder;

RouteSpec small_spec() {
  return make_spec({.layers = {3, 4, 7},
                    .top_k = 2,
                    .num_experts = 8,
                    .excluded = {{1, "hash \"routed\""}},
                    .model = "tiny\nmoe"});
}

// Three sequences that carry different things.
std::vector<Routes> three(const RouteSpec& spec) {
  return {tell(spec, {.start = 5, .num_rows = 3, .missing = true, .versions = true}, 1),
          tell(spec, {.start = 0, .num_rows = 0}, 2),
          tell(spec, {.start = 0, .num_rows = 5, .versions = true, .tokens = true}, 3)};
}

std::vector<TapeSequence> three_names() {
  return {{"first", "{\"reward\": 1}"}, {"", ""}, {"dritte №3", ""}};
}

std::string write_three(const std::string& path, const RouteSpec& spec, TapeOptions options = {}) {
  options.overwrite = true;
  TapeWriter writer = value_of(TapeWriter::create(path, spec, options));
  const std::vector<Routes> routes = three(spec);
  for (size_t i = 0; i < routes.size(); ++i) expect_ok(writer.append(routes[i], three_names()[i]));
  EXPECT_EQ(writer.num_sequences(), 3);
  EXPECT_EQ(writer.num_rows(), 8);
  expect_ok(writer.finish());
  return path;
}

TEST_F(TapeFiles, GiveBackWhatWasWritten) {
  const RouteSpec spec = small_spec();
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    for (const auto& groups :
         std::vector<std::vector<std::vector<int32_t>>>{{}, {{3, 7}, {4}}, {{7}, {3}, {4}}}) {
      const std::string file = write_three(path("run.tape"), spec, {.codec = codec, .layer_groups = groups});
      EXPECT_THAT(names(), ElementsAre("run.tape"));
      const Tape tape = value_of(Tape::open(file));
      EXPECT_EQ(tape.spec(), spec) << "all fields";
      EXPECT_EQ(tape.num_sequences(), 3);
      EXPECT_EQ(tape.num_rows(), 8);
      EXPECT_EQ(tape.options().codec, codec);
      EXPECT_EQ(tape.options().layer_groups, groups);
      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(value_of(tape.read(i)), three(spec)[static_cast<size_t>(i)]) << i;
        const TapeEntry entry = value_of(tape.entry(i));
        EXPECT_EQ(entry.id, three_names()[static_cast<size_t>(i)].id);
        EXPECT_EQ(entry.meta, three_names()[static_cast<size_t>(i)].meta);
      }
      EXPECT_THAT(tape.verify(), IsEmpty());
    }
  }
}

// case E03: the bytes say all that is needed to read them, on disk and on the wire.
TEST_F(TapeFiles, AreTheSameBytesOnTheNetwork) {
  const RouteSpec spec = small_spec();
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    const TapeOptions options = {.codec = codec, .layer_groups = {{3}, {4, 7}}};
    const std::string file = write_three(path("run.tape"), spec, options);
    const Buffer bytes = value_of(tape_bytes(spec, three(spec), three_names(), options));
    EXPECT_EQ(bytes_of(bytes), bytes_of_file(file));
    const Tape tape = value_of(Tape::from_bytes(bytes));
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(value_of(tape.read(i)), three(spec)[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(tape.files()[0].path, "");
  }
}

TEST(Tape, SaysWhatASequenceIs) {
  const RouteSpec spec = small_spec();
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, three(spec), three_names()))));
  const TapeEntry first = value_of(tape.entry(0));
  EXPECT_EQ(first.start, 5);
  EXPECT_EQ(first.end, 8);
  EXPECT_EQ(first.num_missing, three(spec)[0].num_missing());
  EXPECT_EQ(first.versions, three(spec)[0].versions());
  EXPECT_FALSE(first.has_tokens);
  EXPECT_TRUE(value_of(tape.entry(2)).has_tokens);
  expect_error(tape.entry(3), ErrorCode::kOutOfRange, "sequence: expected one of [0, 3), got 3");
  expect_error(tape.entry(-1), ErrorCode::kOutOfRange, "got -1");
  expect_error(tape.read(3), ErrorCode::kOutOfRange, "got 3");
  expect_error(tape.verify(3), ErrorCode::kOutOfRange, "got 3");
}

// case J04: nothing known, no rows, and rows that are missing are three things.
TEST(Tape, TokensAndRowsThatAreNotThereStayAway) {
  const RouteSpec spec = small_spec();
  const Routes empty = tell(spec, {.start = 9}, 1);
  const Routes empty_with_tokens = value_of(empty.with_tokens({}));
  const Routes missing = make_routes(spec, Ids(12), {0, 0}, 3);
  const Routes rows = tell(spec, {.start = 0, .num_rows = 2}, 1);
  const std::vector<Routes> all = {empty, empty_with_tokens, missing, rows};
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, all))));
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(value_of(tape.read(static_cast<int64_t>(i))), all[i]) << i;
  EXPECT_FALSE(value_of(tape.read(0)).has_tokens());
  EXPECT_TRUE(value_of(tape.read(1)).has_tokens());
  EXPECT_THAT(value_of(tape.read(2)).reasons(), ElementsAre(Reason::kNotSent, Reason::kNotSent));
  EXPECT_THAT(tape.verify(), IsEmpty());
}

// case E07: packed rows with offsets; an empty sequence is a valid view.
TEST(Tape, SequencesArePackedOneBehindTheOther) {
  const RouteSpec spec = small_spec();
  const std::vector<Routes> routes = {tell(spec, {.num_rows = 3}, 1), tell(spec, {}, 2),
                                      tell(spec, {.num_rows = 5}, 3)};
  const Buffer bytes = value_of(tape_bytes(spec, routes));
  const Tape tape = value_of(Tape::from_bytes(bytes));
  const TapeFile& file = tape.files()[0];
  const auto tensor = [&](const std::string& name) {
    return *std::ranges::find(file.tensors, name, &TapeTensor::name);
  };
  EXPECT_THAT(tensor("ids").shape, ElementsAre(8, 3, 2));
  int64_t offsets[4];
  std::memcpy(offsets, bytes.data() + tensor("offsets").offset, sizeof offsets);
  EXPECT_THAT(offsets, ElementsAre(0, 3, 3, 8));
  EXPECT_EQ(value_of(tape.read(1)).num_rows(), 0);
  EXPECT_TRUE(value_of(tape.read(1)).complete());
  EXPECT_EQ(value_of(tape.read(2)), routes[2]);
}

TEST(Tape, ATapeOfNothingIsATape) {
  const RouteSpec spec = small_spec();
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, {}))));
  EXPECT_EQ(tape.num_sequences(), 0);
  EXPECT_EQ(tape.spec(), spec);
  EXPECT_THAT(tape.verify(), IsEmpty());
  EXPECT_THAT(value_of(tape.find("x")), IsEmpty());
}

// case K09: whoever passes a tape on reads its header, and copies no row.
TEST(Tape, IdsAreLentNotCopied) {
  const RouteSpec spec = small_spec();
  const Buffer bytes = value_of(tape_bytes(spec, three(spec)));
  const auto owner = std::make_shared<int>(1);
  std::optional<Tape> tape = value_of(Tape::from_bytes(Buffer::wrap(bytes.data(), bytes.size(), owner)));
  const Routes routes = value_of(tape->read(2));
  const auto is_inside = [&](const std::byte* at) {
    return at >= bytes.data() && at < bytes.data() + bytes.size();
  };
  EXPECT_TRUE(is_inside(routes.ids().data()));
  const Routes part = value_of(tape->read(2, 1, 4));
  EXPECT_EQ(part.ids().data(), routes.row(1).data());
  tape.reset();
  EXPECT_EQ(owner.use_count(), 3) << "routes keep the bytes when the tape is gone";
  EXPECT_EQ(part, value_of(three(spec)[2].slice(1, 4)));
}

TEST(Tape, ALayerGroupIsLentToo) {
  const RouteSpec spec = small_spec();
  const Buffer bytes = value_of(tape_bytes(spec, three(spec), {}, {.layer_groups = {{3, 7}, {4}}}));
  const Tape tape = value_of(Tape::from_bytes(bytes));
  const Routes stage = value_of(tape.read(2, 0, 5, std::vector<int32_t>{3, 7}));
  EXPECT_TRUE(stage.ids().data() >= bytes.data() && stage.ids().data() < bytes.data() + bytes.size());
  EXPECT_THAT(stage.spec().layers(), ElementsAre(3, 7));
}

TEST(Tape, IdsAtAnOddAddressAreCopied) {
  const RouteSpec spec = make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 300});
  const Routes routes = tell(spec, {.num_rows = 4}, 1);
  const Buffer bytes = value_of(tape_bytes(spec, std::vector{routes}));
  std::vector<std::byte> odd(static_cast<size_t>(bytes.size()) + 1);
  std::memcpy(odd.data() + 1, bytes.data(), static_cast<size_t>(bytes.size()));
  const Tape tape = value_of(Tape::from_bytes(Buffer::wrap(odd.data() + 1, bytes.size(), nullptr)));
  const Routes read = value_of(tape.read(0));
  EXPECT_EQ(read, routes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read.ids().data()) % 2, 0u);
}

Ids columns(const Routes& routes, std::span<const int32_t> layers) {
  Ids ids;
  for (int64_t row = 0; row < routes.num_rows(); ++row) {
    for (const int32_t layer : layers) {
      const int32_t column = value_of(routes.spec().column_of(layer));
      for (int32_t k = 0; k < routes.spec().top_k(); ++k) {
        ids.push_back(
            std::to_integer<int>(routes.row(row)[static_cast<size_t>(column * routes.spec().top_k() + k)]));
      }
    }
  }
  return ids;
}

// cases E05 and E06: a turn's new rows, and a pipeline stage's layers, are read alone.
TEST(Tape, AnyPositionsAndLayersCanBeRead) {
  const RouteSpec spec = make_spec({.layers = {3, 4, 7, 9}, .top_k = 3, .num_experts = 60});
  const Routes routes =
      tell(spec, {.start = 10, .num_rows = 3000, .missing = true, .versions = true, .tokens = true}, 4);
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    for (const auto& groups : std::vector<std::vector<std::vector<int32_t>>>{{}, {{3, 9}, {4, 7}}}) {
      const Tape tape = value_of(Tape::from_bytes(
          value_of(tape_bytes(spec, std::vector{routes}, {}, {.codec = codec, .layer_groups = groups}))));
      for (const auto& [start, end] : std::vector<std::pair<int64_t, int64_t>>{
               {10, 3010}, {2910, 3010}, {1033, 1035}, {1034, 1034}, {10, 10}, {500, 2500}}) {
        EXPECT_EQ(value_of(tape.read(0, start, end)), value_of(routes.slice(start, end)))
            << start << " " << end;
        for (const std::vector<int32_t>& layers :
             std::vector<std::vector<int32_t>>{{3}, {4, 7}, {3, 7}, {3, 4, 9}}) {
          const Routes part = value_of(tape.read(0, start, end, layers));
          const Routes expected = value_of(routes.slice(start, end));
          EXPECT_EQ(part.spec(), value_of(spec.with_layers(layers)));
          EXPECT_EQ(columns(part, layers), columns(expected, layers));
          EXPECT_EQ(part.versions(), expected.versions());
          EXPECT_TRUE(std::ranges::equal(part.tokens(), expected.tokens()));
          EXPECT_EQ(part.num_missing(), expected.num_missing());
        }
      }
      expect_error(tape.read(0, 9, 20), ErrorCode::kOutOfRange,
                   "expected positions within [10, 3010), got [9, 20)");
      expect_error(tape.read(0, 20, 3011), ErrorCode::kOutOfRange, "got [20, 3011)");
      expect_error(tape.read(0, 20, 19), ErrorCode::kOutOfRange, "got [20, 19)");
      expect_error(tape.read(0, 10, 20, std::vector<int32_t>{5}), ErrorCode::kOutOfRange, "layer");
      EXPECT_FALSE(tape.read(0, 10, 20, std::vector<int32_t>{4, 3}));
    }
  }
}

// A version for each row, and sequences by turns.
TEST(Tape, SlicesOfManyRunsHoldTheirOwn) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 8});
  constexpr int64_t kNumRows = 2000;
  std::vector<Routes> routes;
  for (const int64_t start : {0, 7}) {
    RoutesBuilder builder = value_of(RoutesBuilder::create(spec, start, kNumRows));
    std::fill_n(builder.ids(), kNumRows, std::byte{3});
    for (int64_t row = 0; row < kNumRows; ++row) {
      builder.reasons()[row] = row % 5 == 4 ? Reason::kNotSent : Reason::kValid;
      if (row % 5 == 4) builder.ids()[row] = std::byte{0};
      builder.add_version(row, 1, static_cast<uint32_t>(row + start));
    }
    routes.push_back(std::move(builder).finish());
  }
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, routes))));
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const auto sequence = static_cast<int64_t>(random() % 2);
    const Routes& whole = routes[static_cast<size_t>(sequence)];
    const int64_t start = whole.start() + static_cast<int64_t>(random() % kNumRows);
    const int64_t end = start + static_cast<int64_t>(random()) % (whole.end() - start + 1) * (i % 10 == 0);
    const int64_t last = std::clamp(end + i % 7, start, whole.end());
    EXPECT_EQ(value_of(tape.read(sequence, start, last)), value_of(whole.slice(start, last)))
        << sequence << " " << start << " " << last;
  }
}

TEST(Tape, RowsCanBePulledInAnyPieces) {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2}, .top_k = 2, .num_experts = 32});
  const Routes routes = tell(spec, {.start = 3, .num_rows = 2500, .missing = true}, 5);
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    const Tape tape =
        value_of(Tape::from_bytes(value_of(tape_bytes(spec, std::vector{routes}, {}, {.codec = codec}))));
    const std::unique_ptr<RowSource> source = value_of(tape.rows(0));
    EXPECT_EQ(source->start(), 3);
    EXPECT_EQ(source->num_rows(), 2500);
    std::vector<std::byte> rows(routes.ids().size());
    std::vector<Reason> reasons(2500);
    for (int64_t first = 0; first < 2500; first += 33) {
      const int64_t count = std::min<int64_t>(33, 2500 - first);
      expect_ok(source->pull(first, count, rows.data() + first * spec.row_bytes(), reasons.data() + first));
    }
    EXPECT_TRUE(std::ranges::equal(rows, routes.ids()));
    for (size_t i = 0; i < reasons.size(); ++i) {
      EXPECT_EQ(reasons[i] == Reason::kValid, routes.reasons()[i] == Reason::kValid);
    }
    EXPECT_EQ(source->pull(2490, 11, rows.data(), reasons.data()).error().code, ErrorCode::kOutOfRange);
  }
}

TEST(Tape, FindsSequencesByTheirIds) {
  const RouteSpec spec = small_spec();
  const Routes routes = tell(spec, {.num_rows = 1}, 1);
  const std::vector<Routes> four(4, routes);
  const std::vector<TapeSequence> names = {{"a", ""}, {"b", ""}, {"a", ""}, {"", ""}};
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, four, names))));
  EXPECT_THAT(value_of(tape.find("a")), ElementsAre(0, 2));
  EXPECT_THAT(value_of(tape.find("b")), ElementsAre(1));
  EXPECT_THAT(value_of(tape.find("")), ElementsAre(3));
  EXPECT_THAT(value_of(tape.find("c")), IsEmpty());
}

// case D04: every id from 0 to 255 is an id.
TEST(Tape, EveryIdOfEveryWidthSurvives) {
  for (const int32_t num_experts : {1, 2, 3, 64, 128, 255, 256, 257, 512, 65'536}) {
    const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = num_experts});
    Ids ids;
    for (int32_t id = 0; id < num_experts; id += num_experts > 1000 ? 97 : 1) ids.push_back(id);
    ids.push_back(num_experts - 1);
    const Routes routes = make_routes(spec, ids);
    for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
      const Tape tape =
          value_of(Tape::from_bytes(value_of(tape_bytes(spec, std::vector{routes}, {}, {.codec = codec}))));
      EXPECT_EQ(value_of(tape.read(0)), routes) << num_experts;
      EXPECT_THAT(tape.verify(), IsEmpty());
    }
  }
}

// cases E04 and D12: 30,000 tokens of 48 layers are 11.5 MB, not 40 MB of JSON.
TEST(Tape, IsHardlyLargerThanItsIds) {
  std::vector<int32_t> layers(48);
  std::iota(layers.begin(), layers.end(), 0);
  const RouteSpec spec = make_spec({.layers = layers, .top_k = 8, .num_experts = 128});
  RoutesBuilder builder = value_of(RoutesBuilder::create(spec, 0, 30'000));
  std::fill_n(builder.reasons(), 30'000, Reason::kValid);
  for (int64_t i = 0; i < 30'000 * spec.row_bytes(); ++i) builder.ids()[i] = static_cast<std::byte>(i % 128);
  builder.add_version(0, 30'000, 1);
  const std::vector<Routes> routes = {std::move(builder).finish()};
  constexpr int64_t kIdBytes = int64_t{30'000} * 48 * 8;
  const int64_t plain = value_of(tape_bytes(spec, routes)).size();
  EXPECT_GE(plain, kIdBytes);
  EXPECT_LT(plain, kIdBytes + 4096);
  EXPECT_LT(value_of(tape_bytes(spec, routes, {}, {.codec = Codec::kBitpack})).size(),
            kIdBytes * 7 / 8 + 4096);
}

TEST(Tape, ManyReadersShareOne) {
  const RouteSpec spec = small_spec();
  const Tape tape = value_of(Tape::from_bytes(value_of(tape_bytes(spec, three(spec), three_names()))));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([tape, &spec] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(value_of(tape.read(2)), three(spec)[2]);
        EXPECT_THAT(value_of(tape.find("first")), ElementsAre(0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tape, FilesSayWhatTheyHold) {
  const RouteSpec spec = small_spec();
  const Buffer bytes = value_of(tape_bytes(spec, three(spec)));
  const Tape tape = value_of(Tape::from_bytes(bytes, "answer"));
  ASSERT_EQ(tape.files().size(), 1u);
  const TapeFile& file = tape.files()[0];
  EXPECT_EQ(file.num_bytes, bytes.size());
  EXPECT_EQ(file.num_sequences, 3);
  EXPECT_EQ(file.num_rows, 8);
  EXPECT_EQ(file.tensors[0].name, "ids");
  EXPECT_EQ(file.tensors[0].dtype, "U8");
  EXPECT_EQ(file.tensors[0].offset % 64, 0);
  EXPECT_EQ(file.tensors.back().offset + file.tensors.back().num_bytes, bytes.size());
  expect_error(tape.entry(7), ErrorCode::kOutOfRange, "answer: sequence");
}

}  // namespace
}  // namespace moetape::inline v0
