// Tapes that are not what they claim to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "base/fail.h"
#include "tape/header.h"
#include "tape/tape_test_util.h"
#include "tape/text.h"

namespace moetape::inline v0 {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Bytes = std::vector<std::byte>;

RouteSpec small_spec() { return make_spec({.layers = {3, 4, 7}, .top_k = 2, .num_experts = 6}); }

// Something of everything.
Bytes full_tape(const TapeOptions& options) {
  const RouteSpec spec = small_spec();
  const std::vector<Routes> routes = {
      tell(spec, {.start = 5, .num_rows = 3, .missing = true, .versions = true}, 1),
      tell(spec, {.start = 2}, 2),
      tell(spec, {.num_rows = 6, .missing = true, .versions = true, .tokens = true}, 3),
      tell(spec, {.num_rows = 4, .tokens = true}, 4)};
  const std::vector<TapeSequence> names = {{"one", "{}"}, {"two", ""}, {"", "meta"}, {"four", "€"}};
  return bytes_of(value_of(tape_bytes(spec, routes, names, options)));
}

Result<Tape> open_bytes(const Bytes& bytes) { return Tape::from_bytes(buffer_of(bytes), "bad.tape"); }

// What each sequence says, or nothing where it refuses to be read.
struct Content {
  std::vector<std::optional<Routes>> routes;
  std::vector<std::optional<TapeSequence>> names;
};

Content content_of(const Tape& tape) {
  Content content;
  for (int64_t i = 0; i < tape.num_sequences(); ++i) {
    const Result<Routes> routes = tape.read(i);
    content.routes.push_back(routes ? std::optional(*routes) : std::nullopt);
    const Result<TapeEntry> entry = tape.entry(i);
    content.names.push_back(entry ? std::optional(TapeSequence{entry->id, entry->meta}) : std::nullopt);
  }
  return content;
}

class AllKinds : public testing::TestWithParam<int> {
 protected:
  Bytes bytes() const {
    switch (GetParam()) {
      case 0:
        return full_tape({});
      case 1:
        return full_tape({.codec = Codec::kBitpack, .layer_groups = {{3, 7}, {4}}});
      default:
        return bytes_of(channel_tape(small_spec(), 3));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Tapes, AllKinds, testing::Range(0, 3));

// case E03: one byte less is an error.
TEST_P(AllKinds, ThatAreCutAnywhereAreRefused) {
  const Bytes good = bytes();
  EXPECT_THAT(value_of(open_bytes(good)).verify(), IsEmpty());
  for (size_t size = 0; size < good.size(); ++size) {
    const auto tape = open_bytes({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)});
    ASSERT_FALSE(tape) << size;
    ASSERT_EQ(tape.error().code, ErrorCode::kCorruptData) << size;
    ASSERT_THAT(tape.error().message, HasSubstr("bad.tape: "));
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  expect_error(open_bytes(longer), ErrorCode::kCorruptData, "expected a file of");
}

TEST_P(AllKinds, WithAFlippedBitNeverSaySomethingElse) {
  const Bytes good = bytes();
  const Content content = content_of(value_of(open_bytes(good)));
  size_t num_opened = 0;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto tape = open_bytes(bad);
    if (!tape) continue;
    ++num_opened;
    ASSERT_FALSE(tape->verify().empty()) << "bit " << bit << " goes unnoticed";
    ASSERT_EQ(tape->num_sequences(), std::ssize(content.routes));
    const Content found = content_of(*tape);
    for (size_t i = 0; i < content.routes.size(); ++i) {
      ASSERT_TRUE(!found.routes[i] || found.routes[i] == content.routes[i])
          << "bit " << bit << ", sequence " << i;
      ASSERT_TRUE(!found.names[i] || found.names[i] == content.names[i])
          << "bit " << bit << ", sequence " << i;
    }
  }
  EXPECT_GT(num_opened, 500u) << "only what is damaged is refused";
}

TEST(DamagedTape, OnlyTheDamagedSequenceIsLost) {
  Bytes bytes = full_tape({});
  const TapeTensor ids = value_of(open_bytes(bytes)).files()[0].tensors[0];
  ASSERT_EQ(ids.name, "ids");
  const auto at = static_cast<size_t>(ids.offset) + 4 * 6 + 1;  // row 4: the second of sequence 2
  bytes[at] ^= std::byte{1};
  const Tape tape = value_of(open_bytes(bytes));
  EXPECT_TRUE(tape.read(0));
  EXPECT_TRUE(tape.read(1));
  EXPECT_TRUE(tape.read(3));
  expect_error(tape.read(2), ErrorCode::kCorruptData,
               fmt::format("bad.tape: sequence 2: ids, rows [0, 6), bytes {} to {} of the file: damaged",
                           ids.offset + 18, ids.offset + 54));
  EXPECT_TRUE(tape.entry(2)) << "what is said of it is whole";
  const std::vector<TapeFault> faults = tape.verify();
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].sequence, 2);
}

// case E08: a region that nobody wrote is no row of zeros.
TEST(DamagedTape, AHoleInTheFileIsNoRow) {
  Bytes bytes = full_tape({});
  const TapeTensor ids = value_of(open_bytes(bytes)).files()[0].tensors[0];
  std::fill_n(bytes.begin() + ids.offset, ids.num_bytes, std::byte{0});
  const Tape tape = value_of(open_bytes(bytes));
  for (const int64_t sequence : {0, 2, 3})
    expect_error(tape.read(sequence), ErrorCode::kCorruptData, "damaged");
}

TEST(DamagedTape, OnlyTheDamagedBlockOfASequenceIsLost) {
  const RouteSpec spec = small_spec();
  const Routes routes = tell(spec, {.start = 7, .num_rows = 5000}, 1);
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    Bytes bytes = bytes_of(value_of(tape_bytes(spec, std::vector{routes}, {}, {.codec = codec})));
    const TapeTensor ids = value_of(open_bytes(bytes)).files()[0].tensors[0];
    bytes[static_cast<size_t>(ids.offset + 2500 * (ids.num_bytes / 5000))] ^= std::byte{4};
    const Tape tape = value_of(open_bytes(bytes));
    EXPECT_EQ(value_of(tape.read(0, 7, 7 + 2048)), value_of(routes.slice(7, 7 + 2048)));
    EXPECT_EQ(value_of(tape.read(0, 7 + 3072, 5007)), value_of(routes.slice(7 + 3072, 5007)));
    expect_error(tape.read(0, 7 + 2047, 7 + 2049), ErrorCode::kCorruptData, "rows [2048, 3072)");
    expect_error(tape.read(0), ErrorCode::kCorruptData, "sequence 0");
  }
}

TEST(DamagedTape, AnIdThatDamageMayHideIsNotSaidToBeAbsent) {
  Bytes bytes = full_tape({});
  const Tape sound = value_of(open_bytes(bytes));
  for (const TapeTensor& tensor : sound.files()[0].tensors) {
    if (tensor.name == "sequence_id_bytes") bytes[static_cast<size_t>(tensor.offset)] ^= std::byte{1};
  }
  const Tape tape = value_of(open_bytes(bytes));
  EXPECT_THAT(value_of(tape.find("two")), testing::ElementsAre(1));
  expect_error(tape.find("one"), ErrorCode::kCorruptData, "1 are damaged, sequence 0 first");
}

// A header with another text, its checksum made right: what is left is what the reader itself must find.
Bytes with_header(Bytes bytes, const std::function<void(std::string&)>& change) {
  int64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string text(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(length));
  change(text);
  EXPECT_NE(text, std::string(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(length)));
  text.resize(static_cast<size_t>(length), ' ');
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  const std::span header(bytes.data(), static_cast<size_t>(length) + 8);
  if (const auto at = tape::find_header_checksum(header)) tape::seal(header, *at);
  return bytes;
}

Bytes replaced(const Bytes& bytes, const std::string& from, const std::string& to) {
  return with_header(bytes, [&](std::string& text) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  });
}

struct Lie {
  std::string from, to;
  ErrorCode code;
  std::string message;
};

TEST(DamagedTape, LyingHeadersAreRefused) {
  const Bytes good = full_tape({.layer_groups = {{3, 7}, {4}}});
  constexpr ErrorCode kCorrupt = ErrorCode::kCorruptData;
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  const std::vector<Lie> lies = {
      // What it is.
      {R"("moetape.tape")", R"("pt")", kCorrupt,
       "expected a tape (format \"moetape.tape\"), got a safetensors file of \"pt\""},
      {R"("format":"moetape.tape",)", "", kCorrupt, "got a safetensors file of no format"},
      {R"("format_version":"1")", R"("format_version":"2")", kUnsupported, "this moetape reads 1, got 2"},
      {R"("codec":"none")", R"("codec":"zstd")", kUnsupported, "codec \"zstd\" is not known"},
      {R"("model":"",)", R"("model":"","mood":"",)", kUnsupported, "metadata \"mood\" are not known"},
      {R"("start":{)", R"("begin":{)", kUnsupported, "tensor \"begin\" is not known"},
      {R"("padding.0":{)", R"("padding.x":{)", kUnsupported, "tensor \"padding.x\" is not known"},
      {R"("header_xxh3":)", R"("header_xxh3" :)", kCorrupt,
       "header: expected \"header_xxh3\":\" and 16 digits"},
      // The spec.
      {R"("top_k":"2",)", "", kCorrupt, "metadata: expected \"top_k\", got none"},
      {R"("top_k":"2")", R"("top_k":"0x2")", kCorrupt, "metadata \"top_k\": expected a number of 0 to"},
      {R"("top_k":"2")", R"("top_k":"-2")", kCorrupt, "got \"-2\""},
      {R"("top_k":"2")", R"("top_k":"99999999999")", kCorrupt, "metadata \"top_k\""},
      {R"("top_k":"2")", R"("top_k":"7")", kCorrupt, "metadata: top_k: expected 1 to 6"},
      {R"("top_k":"2")", R"("top_k":"3")", kCorrupt, "metadata \"fingerprint\""},
      {R"("num_layers":"8")", R"("num_layers":"0")", kCorrupt, "metadata \"num_layers\""},
      {R"("layers":"[3,4,7]")", R"("layers":"[3,4,4]")", kCorrupt, "metadata: layers: expected"},
      {R"("layers":"[3,4,7]")", R"("layers":"[3,4,7]]")", kCorrupt,
       "metadata \"layers\": expected another JSON"},
      {R"("layers":"[3,4,7]")", R"("layers":"[3,4,1e1]")", kCorrupt,
       "metadata \"layers\": expected another JSON"},
      {R"("layers":"[3,4,7]")", R"("layers":"{}")", kCorrupt, "metadata \"layers\": expected another JSON"},
      {R"("layers":"[3,4,7]")", R"("layers":"3,4,7")", kCorrupt,
       "metadata \"layers\": expected another JSON"},
      {R"("layers":"[3,4,7]")", R"("layers":[3,4,7])", kCorrupt, "header:"},
      {R"("distinct":"true")", R"("distinct":"yes")", kCorrupt,
       "metadata \"distinct\": expected true or false"},
      {R"("excluded":"{}")", R"("excluded":"{\"a\":\"b\"}")", kCorrupt, "metadata \"excluded\""},
      {R"("excluded":"{}")", R"("excluded":"{\"3\":\"b\"}")", kCorrupt, "metadata: excluded: expected"},
      {R"("num_experts":"6")", R"("num_experts":"7")", kCorrupt, "metadata \"fingerprint\": expected"},
      {R"([[3,7],[4]])", R"([[3,7],[3]])", kCorrupt, "layer_groups: expected each of the layers"},
      {R"([[3,7],[4]])", R"([[3],[4]])", kCorrupt, "layer_groups: expected each of the layers"},
      {R"("block_rows":"1024")", R"("block_rows":"0")", kCorrupt, "metadata \"block_rows\""},
      {R"("block_rows":"1024")", R"("block_rows":"9223372036854775807")", kCorrupt,
       "metadata \"block_rows\""},
      // Types and shapes.
      {R"("ids.g0":{"dtype":"U8")", R"("ids.g0":{"dtype":"U4")", kUnsupported, "type \"U4\" is not known"},
      {R"("ids.g0":{"dtype":"U8")", R"("ids.g0":{"dtype":"U16")", kCorrupt,
       "tensor \"ids.g0\": expected the 104 bytes"},
      {R"("ids.g0":{"dtype":"U8")", R"("ids.g0":{"dtype":"I8")", kCorrupt,
       "tensor \"ids.g0\": expected U8[13, 2, 2], got I8"},
      {R"("shape":[13,2,2])", R"("shape":[13,4])", kCorrupt, "expected U8[13, 2, 2], got U8[13, 4]"},
      {R"("shape":[13,2,2])", R"("shape":[26,1,2])", kCorrupt, "expected U8[26, 2, 2], got U8[26, 1, 2]"},
      {R"("shape":[13,2,2])", R"("shape":[13,2,3])", kCorrupt, "expected the 78 bytes"},
      {R"("shape":[13,2,2])", R"("shape":[4294967296,4294967296,2])", kCorrupt,
       "expected the 2^63 and more bytes"},
      {R"("shape":[13,2,2])", R"("shape":[-13,2,2])", kCorrupt, "numbers of 0 or more, got -13"},
      {R"("shape":[13,2,2])", R"("shape":[13.0,2,2])", kCorrupt, "header:"},
      {R"("shape":[13,2,2])", R"("shape":[13,2,2,1,1,1,1,1,1,1])", kCorrupt, "expected at most 8 numbers"},
      {R"("shape":[13,2,2])", R"("shape":52)", kCorrupt, "header:"},
      {R"("shape":[13,2,2],)", "", kCorrupt, "expected dtype, shape and data_offsets"},
      {R"("shape":[13,2,2])", R"("shapes":[13,2,2])", kCorrupt, "got \"shapes\""},
      {R"("dtype":"U8","shape":[13,2,2])", R"("dtype":"U8","dtype":"U8","shape":[13,2,2])", kCorrupt,
       "every key once, got \"dtype\""},
      {R"("start":{"dtype":"I64","shape":[4])", R"("start":{"dtype":"I64","shape":[4,1])", kCorrupt,
       "tensor \"start\": expected I64[4], got I64[4, 1]"},
      {R"("start":{"dtype":"I64")", R"("start":{"dtype":"U64")", kCorrupt,
       "tensor \"start\": expected I64[4], got U64[4]"},
      // Places.
      {R"("data_offsets":[0,52])", R"("data_offsets":[1,53])", kCorrupt,
       "leaves a hole behind \"the header\""},
      {R"("data_offsets":[0,52])", R"("data_offsets":[52,0])", kCorrupt,
       "expected data_offsets [begin, end], got [52, 0]"},
      {R"("data_offsets":[0,52])", R"("data_offsets":[0,52,52])", kCorrupt,
       "expected data_offsets [begin, end]"},
      {R"("data_offsets":[0,52])", R"("data_offsets":[-1,51])", kCorrupt, "numbers of 0 or more"},
      {R"("data_offsets":[64,90])", R"("data_offsets":[63,89])", kCorrupt, "overlaps \"padding.0\""},
      {R"("data_offsets":[64,90])", R"("data_offsets":[9223372036854775781,9223372036854775807])", kCorrupt,
       "leaves a hole"},
      // The text.
      {R"({"__metadata__")", R"([{"__metadata__")", kCorrupt, "byte 8: expected the header's {"},
      {R"("stack":"target")", R"("stack":"target","stack":"target")", kCorrupt,
       "every key once, got \"stack\" twice"},
      {R"("ids.g1":)", R"("ids.g0":)", kCorrupt, "every key once, got \"ids.g0\" twice"},
      {R"("stack":"target")", R"("stack":"tar\ud800get")", kCorrupt, "header:"},
      {R"("stack":"target")", "\"stack\":\"targe\xff\"", kCorrupt, "header:"},
      {R"("stack":"target")", R"("stack":target)", kCorrupt, "header:"},
      {R"("stack":"target")", R"("stack":{"a":[[[[]]]]})", kCorrupt, "header:"}};
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.to);
    expect_error(open_bytes(replaced(good, lie.from, lie.to)), lie.code, lie.message);
  }
}

TEST(DamagedTape, WhatStandsBehindTheHeadersJsonIsRefused) {
  const Bytes good = full_tape({});
  expect_error(
      open_bytes(with_header(good, [](std::string& text) { text[text.find_last_of('}') + 4] = '}'; })),
      ErrorCode::kCorruptData, "expected spaces behind the header's JSON");
  expect_error(open_bytes(with_header(good, [](std::string& text) { text.resize(text.find_last_of('}')); })),
               ErrorCode::kCorruptData, "header:");
}

TEST(DamagedTape, AHeaderThatLeavesTheDataUnalignedIsRefused) {
  Bytes bytes = full_tape({});
  int64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  ++length;
  std::memcpy(bytes.data(), &length, 8);
  bytes.insert(bytes.begin() + 8 + length - 1, std::byte{' '});
  const std::span header(bytes.data(), static_cast<size_t>(length) + 8);
  tape::seal(header, value_of(tape::find_header_checksum(header)));
  expect_error(open_bytes(bytes), ErrorCode::kCorruptData,
               fmt::format("byte 0: expected a header that ends at a multiple of 64 bytes, got one that ends "
                           "at {}",
                           length + 8));
}

// Two neighbours in the file change places, and the header says so.
Bytes with_swapped(const Bytes& bytes, const std::string& first, const std::string& second) {
  const std::vector<TapeTensor> tensors = value_of(open_bytes(bytes)).files()[0].tensors;
  const auto one = std::ranges::find(tensors, first, &TapeTensor::name);
  const auto other = std::ranges::find(tensors, second, &TapeTensor::name);
  EXPECT_EQ(one->offset + one->num_bytes, other->offset);
  Bytes swapped = bytes;
  const auto begin = swapped.begin() + one->offset;
  std::rotate(begin, begin + one->num_bytes, begin + one->num_bytes + other->num_bytes);
  const int64_t data = tensors[0].offset;
  const auto place = [&](int64_t from, int64_t size) {
    return fmt::format("\"data_offsets\":[{},{}]", from - data, from - data + size);
  };
  return with_header(swapped, [&](std::string& text) {
    const std::string old_one = place(one->offset, one->num_bytes);
    const std::string old_other = place(other->offset, other->num_bytes);
    const size_t at = text.find(old_other);
    text.replace(at, old_other.size(), place(one->offset, other->num_bytes));
    text.replace(text.find(old_one), old_one.size(), place(one->offset + other->num_bytes, one->num_bytes));
  });
}

TEST(DamagedTape, TensorsThatAreNotAlignedAreRefused) {
  const Bytes grouped = full_tape({.layer_groups = {{3, 7}, {4}}});
  expect_error(open_bytes(with_swapped(grouped, "padding.0", "ids.g1")), ErrorCode::kCorruptData,
               "tensor \"ids.g1\": expected to begin at a multiple of 64 bytes");
  expect_error(open_bytes(with_swapped(full_tape({}), "tokens", "valid")), ErrorCode::kCorruptData,
               "tensor \"tokens\": expected to begin at a multiple of 4 bytes");
  EXPECT_TRUE(open_bytes(with_swapped(full_tape({}), "version_ids", "tokens"))) << "the order is free";
  const Bytes channels = bytes_of(channel_tape(small_spec(), 3));
  const Bytes swapped = with_swapped(channels, "channel.weights", "padding.1");
  EXPECT_TRUE(open_bytes(channels));
  expect_error(open_bytes(swapped), ErrorCode::kCorruptData, "tensor \"channel.");
}

TEST(DamagedTape, AHugeHeaderIsRefusedUnread) {
  Bytes bytes(70'000, std::byte{' '});
  for (const uint64_t length : {uint64_t{65'529}, uint64_t{100'000'000}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::memcpy(bytes.data(), &length, 8);
    expect_error(open_bytes(bytes), ErrorCode::kCorruptData,
                 "byte 0: expected a header of at most 65528 bytes");
  }
}

TEST(DamagedTape, OtherFilesAreNoTapes) {
  expect_error(open_bytes({}), ErrorCode::kCorruptData, "expected a tape, got a file of 0 bytes");
  const std::string text = "{\"a\": 1, \"and\": \"some more text than eight bytes\"}";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(open_bytes({bytes.begin(), bytes.end()}).error().code, ErrorCode::kCorruptData);
}

TEST(DamagedTape, PaddingAndUnusedBitsAreZero) {
  const Bytes good = full_tape({});
  const Tape sound = value_of(open_bytes(good));
  for (const TapeTensor& tensor : sound.files()[0].tensors) {
    Bytes bad = good;
    if (tensor.name == "padding.0") {
      bad[static_cast<size_t>(tensor.offset)] = std::byte{1};
      expect_error(open_bytes(bad), ErrorCode::kCorruptData,
                   fmt::format("byte {}: expected the zeros of padding", tensor.offset));
    } else if (tensor.name == "valid") {
      bad[static_cast<size_t>(tensor.offset + tensor.num_bytes - 1)] |= std::byte{0x80};
      expect_error(open_bytes(bad), ErrorCode::kCorruptData, "expected zero bits behind 13 rows");
    }
  }
}

// Sources that break their promises give tapes whose checksums are right.
class LyingSource final : public RowSource {
 public:
  LyingSource(std::vector<uint8_t> ids, bool missing, int64_t start = 4)
      : ids_(std::move(ids)), missing_(missing), start_(start) {}
  const RouteSpec& spec() const override { return spec_; }
  int64_t start() const override { return start_; }
  int64_t num_rows() const override { return std::ssize(ids_) / 6; }
  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override {
    std::memcpy(rows, ids_.data() + first * 6, static_cast<size_t>(count * 6));
    std::fill_n(reasons, count, missing_ ? Reason::kLost : Reason::kValid);
    return {};
  }

 private:
  RouteSpec spec_ = small_spec();
  std::vector<uint8_t> ids_;
  bool missing_;
  int64_t start_;
};

TEST_F(InFolder, PositionsThatAreNoneAreNotWritten) {
  TapeWriter writer = value_of(TapeWriter::create(path("run.tape"), small_spec()));
  for (const int64_t start : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    LyingSource source({0, 1, 2, 3, 4, 5}, false, start);
    expect_error(writer.append(source), ErrorCode::kOutOfRange, fmt::format("got 1 rows from {}", start));
  }
  EXPECT_EQ(writer.num_sequences(), 0);
}

// case D07: an id equal to the number of experts is none.
TEST_F(InFolder, IdsThatAreNoExpertsAreRefusedThoughTheChecksumsAreRight) {
  const auto write = [&](std::vector<uint8_t> ids, bool missing, Codec codec) {
    TapeWriter writer =
        value_of(TapeWriter::create(path("run.tape"), small_spec(), {.codec = codec, .overwrite = true}));
    LyingSource source(std::move(ids), missing);
    expect_ok(writer.append(source));
    expect_ok(writer.finish());
    return value_of(Tape::open(path("run.tape")));
  };
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    const Tape large = write({0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 4, 5}, false, codec);
    expect_error(large.read(0), ErrorCode::kCorruptData,
                 "sequence 0: row 1 (position 5): expected ids in [0, 6), got 6");
    EXPECT_TRUE(large.read(0, 4, 5)) << "the first row is good";
    const Tape filled = write({0, 0, 0, 0, 0, 1}, true, codec);
    expect_error(filled.read(0), ErrorCode::kCorruptData,
                 "row 0 (position 4): expected the zeros of a missing row");
    const Tape twice = write({0, 1, 2, 3, 3, 3}, false, codec);
    EXPECT_TRUE(twice.read(0));
    expect_error(twice.verify(0), ErrorCode::kCorruptData,
                 "row 0 (position 4), layer 7: expected 2 different ids, got 3 twice");
    EXPECT_FALSE(twice.verify().empty());
  }
}

}  // namespace
}  // namespace moetape::inline v0
