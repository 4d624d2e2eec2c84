// Tapes out of tapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tape/tape_test_util.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using TapeEdit = InFolder;

RouteSpec small_spec() { return make_spec({.layers = {3, 4, 7}, .top_k = 2, .num_experts = 8}); }

Tape tape_of(const std::vector<Routes>& routes, const std::vector<TapeSequence>& names = {},
             const TapeOptions& options = {}) {
  return value_of(Tape::from_bytes(value_of(tape_bytes(routes[0].spec(), routes, names, options))));
}

std::vector<Routes> some(uint64_t seed) {
  return {tell(small_spec(),
               {.start = 4, .num_rows = 1500, .missing = true, .versions = true, .tokens = true}, seed),
          tell(small_spec(), {.start = 0, .num_rows = 0}, seed + 1),
          tell(small_spec(), {.start = 1, .num_rows = 20, .versions = true}, seed + 2)};
}

// case B11's kind: what two writers kept comes together, each row once.
TEST_F(TapeEdit, MergingKeepsAllSequencesInOrder) {
  const Tape first = tape_of(some(1), {{"a", "1"}, {"b", "2"}, {"c", "3"}});
  const Tape second = tape_of(some(5), {{"a", "4"}, {"e", "5"}, {"f", "6"}},
                              {.codec = Codec::kBitpack, .layer_groups = {{3}, {4, 7}}});
  for (const TapeOptions& options :
       {TapeOptions{}, TapeOptions{.codec = Codec::kBitpack}, TapeOptions{.layer_groups = {{7}, {3, 4}}},
        TapeOptions{.max_file_bytes = 8000}}) {
    expect_ok(merge_tapes(std::vector{first, second}, path("merged.tape"), options));
    const Tape merged = value_of(Tape::open(path("merged.tape")));
    ASSERT_EQ(merged.num_sequences(), 6);
    for (int64_t i = 0; i < 6; ++i) {
      const auto& source = i < 3 ? some(1) : some(5);
      EXPECT_EQ(value_of(merged.read(i)), source[static_cast<size_t>(i % 3)]) << i;
      EXPECT_EQ(value_of(merged.entry(i)).meta, std::to_string(i + 1));
    }
    EXPECT_THAT(value_of(merged.find("a")), ElementsAre(0, 3));
    EXPECT_THAT(merged.verify(), IsEmpty());
    std::filesystem::remove(path("merged.tape"));
  }
}

TEST_F(TapeEdit, ATapeCanBeMergedIntoItsOwnPlace) {
  TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec()));
  expect_ok(writer.append(some(1)[0]));
  expect_ok(writer.finish());
  const Tape tape = value_of(Tape::open(path("run.tape")));
  expect_ok(merge_tapes(std::vector{tape, tape}, path("run.tape"), {.overwrite = true}));
  EXPECT_EQ(tape.num_sequences(), 1);
  EXPECT_EQ(value_of(tape.read(0)), some(1)[0]);
  EXPECT_EQ(value_of(Tape::open(path("run.tape"))).num_sequences(), 2);
}

TEST_F(TapeEdit, TapesOfAnotherSpecAreRefused) {
  const RouteSpec other = make_spec({.layers = {3, 4, 7}, .top_k = 3, .num_experts = 8});
  const std::vector<Tape> tapes = {tape_of(some(1)), tape_of({tell(other, {.num_rows = 2}, 1)})};
  expect_error(merge_tapes(tapes, path("merged.tape")), ErrorCode::kSpecMismatch,
               "tapes[1]: expected routes of spec");
  expect_error(merge_tapes({}, path("merged.tape")), ErrorCode::kInvalidArgument, "expected one or more");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TapeEdit, WhatMayRepeatIsMergedAsSuch) {
  RouteSpecFields fields = small_spec().fields();
  fields.distinct = false;
  const Tape repeating = tape_of({tell(make_spec(fields), {.num_rows = 9}, 1)});
  expect_ok(merge_tapes(std::vector{tape_of(some(1)), repeating}, path("merged.tape")));
  EXPECT_FALSE(value_of(Tape::open(path("merged.tape"))).spec().distinct());
}

// case K02: each rank takes its sequences, positions and layers, and nothing else.
TEST_F(TapeEdit, SlicingTakesSequencesPositionsAndLayers) {
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    const Tape tape = tape_of(some(1), {{"a", "1"}, {"b", "2"}, {"c", "3"}}, {.codec = codec});
    const TapeSelection selection = {.sequences = {{2, 0}}, .start = 10, .end = 1200, .layers = {3, 7}};
    expect_ok(
        slice_tape(tape, selection, path("part.tape"), {.layer_groups = {{7}, {3}}, .overwrite = true}));
    const Tape part = value_of(Tape::open(path("part.tape")));
    EXPECT_THAT(part.spec().layers(), ElementsAre(3, 7));
    EXPECT_EQ(part.spec().num_layers(), tape.spec().num_layers());
    ASSERT_EQ(part.num_sequences(), 2);
    EXPECT_EQ(value_of(part.read(0)), value_of(tape.read(2, 10, 21, selection.layers)));
    EXPECT_EQ(value_of(part.read(1)), value_of(tape.read(0, 10, 1200, selection.layers)));
    EXPECT_EQ(value_of(part.entry(0)).id, "c");
    EXPECT_THAT(part.verify(), IsEmpty());
  }
}

TEST_F(TapeEdit, ASequenceWithoutRowsInTheSliceStays) {
  const Tape tape = tape_of(some(1), {{"a", ""}, {"b", ""}, {"c", ""}});
  expect_ok(slice_tape(tape, {.start = 1000}, path("part.tape")));
  const Tape part = value_of(Tape::open(path("part.tape")));
  ASSERT_EQ(part.num_sequences(), 3);
  EXPECT_EQ(value_of(part.read(0)), value_of(some(1)[0].slice(1000, 1504)));
  EXPECT_EQ(value_of(part.read(1)).num_rows(), 0);
  EXPECT_EQ(value_of(part.read(2)).num_rows(), 0);
  EXPECT_EQ(value_of(part.entry(2)).id, "c");
}

TEST_F(TapeEdit, SlicesOfWhatIsNotThereAreRefused) {
  const Tape tape = tape_of(some(1));
  expect_error(slice_tape(tape, {.sequences = {{3}}}, path("part.tape")), ErrorCode::kOutOfRange, "got 3");
  expect_error(slice_tape(tape, {.layers = {5}}, path("part.tape")), ErrorCode::kOutOfRange, "layer");
  expect_error(slice_tape(tape, {.start = -1}, path("part.tape")), ErrorCode::kOutOfRange, "got [-1, end)");
  expect_error(slice_tape(tape, {.start = 9, .end = 8}, path("part.tape")), ErrorCode::kOutOfRange,
               "got [9, 8)");
  TapeWriter writer = value_of(TapeWriter::create(path("part.tape"), small_spec()));
  expect_error(writer.append(tape, 0, 3, 9), ErrorCode::kOutOfRange,
               "expected positions within [4, 1504), got [3, 9)");
  expect_error(writer.append(tape, 0, 9, 8), ErrorCode::kOutOfRange, "got [9, 8)");
  expect_ok(writer.append(tape, 0, 5, 8));
  EXPECT_EQ(writer.num_rows(), 3);
}

TEST_F(TapeEdit, ChannelsThatNobodyKnowsComeAlong) {
  const Buffer bytes = channel_tape(small_spec(), 3);
  const Tape tape = value_of(Tape::from_bytes(bytes));
  EXPECT_THAT(tape.verify(), IsEmpty());
  expect_ok(merge_tapes(std::vector{tape, tape}, path("merged.tape"), {.codec = Codec::kBitpack}));
  expect_ok(slice_tape(value_of(Tape::open(path("merged.tape"))),
                       {.sequences = {{5}}, .start = 1, .layers = {4}}, path("part.tape")));
  const Tape part = value_of(Tape::open(path("part.tape")));
  EXPECT_THAT(part.verify(), IsEmpty());
  const std::vector<std::byte> file = bytes_of_file(path("part.tape"));
  const std::vector<std::byte> values = channel_values(2, 4);
  size_t num_found = 0;
  for (const TapeTensor& tensor : part.files()[0].tensors) {
    if (!tensor.name.starts_with("channel.")) continue;
    const tape::Channel& channel = kChannels[num_found++];
    EXPECT_EQ(tensor.name, channel.name);
    EXPECT_EQ(tensor.dtype, channel.dtype);
    EXPECT_EQ(tensor.shape.size(), channel.row_shape.size() + 1);
    EXPECT_EQ(tensor.shape[0], 3);
    EXPECT_EQ(std::memcmp(file.data() + tensor.offset, values.data() + channel.row_bytes,
                          static_cast<size_t>(3 * channel.row_bytes)),
              0);
  }
  EXPECT_EQ(num_found, 2u);
}

TEST_F(TapeEdit, SequencesOfOneTapeHaveTheSameChannels) {
  const Tape with = value_of(Tape::from_bytes(channel_tape(small_spec(), 2)));
  const Tape without = tape_of(some(1));
  expect_error(merge_tapes(std::vector{with, without}, path("merged.tape")), ErrorCode::kConflict,
               "channels: expected [\"channel.weights F32[3, 2]\", \"channel.z U8[]\"]");
  expect_error(merge_tapes(std::vector{without, with}, path("merged.tape")), ErrorCode::kConflict,
               "channels: expected []");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(TapeEdit, DamageIsNotCarriedOn) {
  std::vector<std::byte> bytes = bytes_of(value_of(tape_bytes(small_spec(), some(1))));
  const Tape sound = value_of(Tape::from_bytes(buffer_of(bytes)));
  bytes[static_cast<size_t>(sound.files()[0].tensors[0].offset) + 6000] ^= std::byte{1};
  const Tape tape = value_of(Tape::from_bytes(buffer_of(bytes), "bad.tape"));
  TapeWriter writer = value_of(TapeWriter::create(path("saved.tape"), small_spec()));
  expect_error(writer.append(tape, 0), ErrorCode::kCorruptData, "bad.tape: sequence 0");
  expect_ok(writer.append(tape, 2));
  expect_ok(writer.finish());
  EXPECT_EQ(value_of(value_of(Tape::open(path("saved.tape"))).read(0)), some(1)[2]);
}

}  // namespace
}  // namespace moetape::inline v0
