#include "moetape/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <random>

#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<Dialect> kDialects = all_dialects();

// 0,1,2,3,4,5,6,0,1,2,3,4 as [3,2,2].
RouteSpec vector_spec() { return make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}); }
Routes vector_routes() { return make_routes(vector_spec(), {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}); }

std::string encoded(const Routes& routes, Dialect dialect, MissingFill missing = MissingFill::kRefuse) {
  std::string text = value_of(encode(routes, dialect, {.missing = missing}));
  const size_t size = encoded_size(routes.spec(), routes.num_rows(), dialect, {}, routes.start()).value();
  const bool at_most =
      dialect == Dialect::kMegatron || (dialect == Dialect::kSkyrl && routes.spec().id_bytes() == 2);
  EXPECT_LE(text.size(), size);
  if (!at_most) {
    EXPECT_EQ(text.size(), size);
  }
  return text;
}

Routes decoded(std::string_view text, Dialect dialect, const RouteSpec& spec,
               const DecodeOptions& options = {}) {
  return value_of(decode(text, dialect, spec, options));
}

Ids ids_of(const Routes& routes) {
  Ids ids;
  const size_t id_bytes = static_cast<size_t>(routes.spec().id_bytes());
  for (size_t at = 0; at < routes.ids().size(); at += id_bytes) {
    uint16_t id = 0;
    std::memcpy(&id, routes.ids().data() + at, id_bytes);
    ids.push_back(id);
  }
  return ids;
}

TEST(WireDialect, NamesGoBothWays) {
  for (const Dialect dialect : kDialects) {
    EXPECT_EQ(dialect_from_name(dialect_name(dialect)).value(), dialect);
  }
  const auto unknown = dialect_from_name("sgl");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(unknown.error().message,
            "dialect: expected one of sglang, vllm, vllm-split, lightllm, prime-rl, skyrl, nemo-rl, "
            "megatron, trtllm, "
            "verl, slime, miles, npy, tape, tape-base64, got \"sgl\"");
}

TEST(WireVectors, Sglang) {
  const std::string text = "AAAAAAEAAAACAAAAAwAAAAQAAAAFAAAABgAAAAAAAAABAAAAAgAAAAMAAAAEAAAA";
  EXPECT_EQ(encoded(vector_routes(), Dialect::kSglang), text);
  EXPECT_EQ(decoded(text, Dialect::kSglang, vector_spec()), vector_routes());
}

TEST(WireVectors, Vllm) {
  std::string dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), }";
  dict.resize(117, ' ');
  const std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + "\n" +
                           std::string("\0\1\2\3\4\5\6\0\1\2\3\4", 12);
  ASSERT_EQ(file.size(), 140u);
  const std::string text = encoded(vector_routes(), Dialect::kVllm);
  EXPECT_EQ(text, base64(file));
  EXPECT_TRUE(text.starts_with("k05VTVBZAQB2AHsn"));
  EXPECT_TRUE(text.ends_with("IAoAAQIDBAUGAAECAwQ="));
  EXPECT_EQ(decoded(text, Dialect::kVllm, vector_spec()), vector_routes());
}

TEST(WireVectors, Lightllm) {
  const std::string text = R"({"shape":[3,2,2],"dtype":"uint8","data":"AAECAwQFBgABAgME"})";
  EXPECT_EQ(encoded(vector_routes(), Dialect::kLightllm), text);
  EXPECT_EQ(decoded(text, Dialect::kLightllm, vector_spec()), vector_routes());
}

// case D01
TEST(WireWidth, FollowsTheNumberOfExperts) {
  const auto head = [](int32_t num_experts, int64_t id) {
    const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = num_experts});
    const Routes routes = make_routes(spec, {id});
    for (const Dialect dialect : kDialects) {
      EXPECT_EQ(ids_of(decoded(encoded(routes, dialect), dialect, spec)), Ids{id});
    }
    return encoded(routes, Dialect::kLightllm);
  };
  EXPECT_THAT(head(256, 255), HasSubstr(R"("dtype":"uint8","data":"/w==")"));
  EXPECT_THAT(head(257, 3), HasSubstr(R"("dtype":"int16","data":"AwA=")"));
  EXPECT_THAT(head(257, 256), HasSubstr(R"("dtype":"int16","data":"AAE=")"));
}

TEST(WireWidth, VllmSendsTwoUnsignedBytes) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 2, .num_experts = 65536});
  const Routes routes = make_routes(spec, {40000, 65535});
  const std::string text = encoded(routes, Dialect::kVllm);
  EXPECT_TRUE(
      text.starts_with(base64(std::string("\x93NUMPY\x01\x00\x76\x00{'descr': '<u2'", 25)).substr(0, 32)));
  EXPECT_EQ(decoded(text, Dialect::kVllm, spec), routes);
  EXPECT_EQ(decoded(encoded(routes, Dialect::kSglang), Dialect::kSglang, spec), routes);
}

// case D02
TEST(WireWidth, LightllmRefusesMoreExpertsThanInt16Counts) {
  const RouteSpec largest = make_spec({.layers = {0}, .top_k = 1, .num_experts = 32768});
  const Routes routes = make_routes(largest, {32767});
  EXPECT_EQ(decoded(encoded(routes, Dialect::kLightllm), Dialect::kLightllm, largest), routes);

  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 1, .num_experts = 40001});
  const auto refused = encode(make_routes(spec, {40000}), Dialect::kLightllm);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("num_experts: expected at most 32768"));
  EXPECT_THAT(refused.error().message, HasSubstr("40001"));
}

// case D12, case K05
TEST(WireSize, IsKnownBeforehand) {
  std::vector<int32_t> layers(48);
  for (int32_t i = 0; i < 48; ++i) layers[static_cast<size_t>(i)] = i;
  const RouteSpec spec = make_spec({.layers = layers, .top_k = 8, .num_experts = 128});
  EXPECT_EQ(spec.row_bytes(), 384);
  EXPECT_EQ(encoded_size(spec, 1, Dialect::kSglang).value(), 1536u / 3 * 4);
  EXPECT_EQ(encoded_size(spec, 30'000, Dialect::kSglang).value(), 46'080'000u / 3 * 4);
  const size_t head = std::string_view(R"({"shape":[30000,48,8],"dtype":"uint8","data":""})").size();
  EXPECT_EQ(encoded_size(spec, 30'000, Dialect::kLightllm).value(), 15'360'000u + head);
  EXPECT_EQ(encoded_size(spec, 30'000, Dialect::kVllm).value(), (11'520'000u + 128 + 2) / 3 * 4);
}

TEST(WireSize, RefusesWhatNoTextCanHold) {
  const RouteSpec spec = vector_spec();
  EXPECT_EQ(encoded_size(spec, -1, Dialect::kVllm).error().code, ErrorCode::kInvalidArgument);
  for (const Dialect dialect : kDialects) {
    EXPECT_EQ(encoded_size(spec, int64_t{1} << 62, dialect).error().code, ErrorCode::kOutOfRange);
  }
}

TEST(WireSize, RefusesASmallerBuffer) {
  RoutesSource source(vector_routes());
  std::string out(64, 'x');
  ASSERT_TRUE(encode_into(source, Dialect::kSglang, out));
  const auto small = encode_into(source, Dialect::kSglang, std::span(out).first(63));
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::kCapacity);
  EXPECT_EQ(small.error().message, "out: expected room for 64 characters, got 63");
  std::string larger(70, 'x');
  ASSERT_TRUE(encode_into(source, Dialect::kSglang, larger));
  EXPECT_EQ(larger, out + "xxxxxx");
}

// case G11, case G16
TEST(WireLayers, DenseLayersAreZeroColumnsOfTheFormsThatHaveThem) {
  const RouteSpec spec = make_spec({.layers = {1, 3}, .top_k = 2, .num_experts = 8, .num_layers = 5});
  const Ids ids = {1, 2, 3, 4, 5, 6, 7, 0};
  const Routes routes = make_routes(spec, ids);
  EXPECT_EQ(encoded(routes, Dialect::kSglang), base64(raw_ids(spec, ids, true, 4)));
  EXPECT_TRUE(encoded(routes, Dialect::kVllm).ends_with(base64(" \n" + raw_ids(spec, ids, true, 1))));
  EXPECT_EQ(encoded(routes, Dialect::kLightllm),
            R"({"shape":[2,2,2],"dtype":"uint8","data":")" + base64(raw_ids(spec, ids, false, 1)) + "\"}");
  for (const Dialect dialect : kDialects) {
    EXPECT_EQ(decoded(encoded(routes, dialect), dialect, spec), routes) << dialect_name(dialect);
  }
}

// case J04
TEST(WireRows, NoRowsAreNoError) {
  const RouteSpec spec = make_spec({.layers = {1}, .top_k = 2, .num_experts = 300});
  const Routes empty = *Routes::empty(spec, 7);
  EXPECT_EQ(encoded(empty, Dialect::kSglang), "");
  EXPECT_EQ(encoded(empty, Dialect::kLightllm), R"({"shape":[0,1,2],"dtype":"int16","data":""})");
  for (const Dialect dialect : kDialects) {
    const Routes back = decoded(encoded(empty, dialect), dialect, spec, {.start = 7, .num_rows = 0});
    EXPECT_EQ(back, empty) << dialect_name(dialect);
    const auto more = decode(encoded(empty, dialect), dialect, spec, {.num_rows = 1});
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::kWrongShape);
  }
}

TEST(WireRows, CarryStartAndVersionOfTheCaller) {
  const Routes routes = decoded(encoded(vector_routes(), Dialect::kVllm), Dialect::kVllm, vector_spec(),
                                {.start = 5, .num_rows = 3, .version = 9});
  EXPECT_EQ(routes.start(), 5);
  EXPECT_EQ(routes.end(), 8);
  EXPECT_THAT(routes.versions(), ElementsAre(VersionRun{5, 8, 9}));
  const auto bad = decode("", Dialect::kSglang, vector_spec(), {.version = kMaxVersion + 1});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(decode("", Dialect::kSglang, vector_spec(), {.start = -1}));
}

// case H01, case B12
TEST(WireMissing, IsRefusedWithCountsAndTheFirstRow) {
  const RouteSpec spec = vector_spec();
  Ids ids(4 * 3000, 0);
  std::vector<uint8_t> valid(3000, 1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 2);
  for (const size_t row : {1200u, 1201u, 2999u}) valid[row] = 0;
  const Routes routes = make_routes(spec, ids, valid, 10);
  const Routes gap = *make_routes(spec, {0, 1, 0, 1}, {}, 8).extend(routes);
  for (const Dialect dialect : kDialects) {
    if (dialect_info(dialect).says_missing) continue;
    const auto refused = encode(gap, dialect);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMissingRows);
    EXPECT_THAT(refused.error().message,
                HasSubstr("expected all of 3002 rows, got 4 missing (1 gap, 3 not_sent)"));
    EXPECT_THAT(refused.error().message, HasSubstr("the first at row 1 (position 9)"));
  }
}

// case D04
TEST(WireMissing, NamedFillsTakeTheirPlace) {
  const RouteSpec spec = make_spec({.layers = {0, 2}, .top_k = 2, .num_experts = 256});
  const Routes routes = make_routes(spec, {255, 1, 2, 255, -1, 9, 9, 9, 5, 6, 7, 8}, {1, 0, 1});
  const Ids zeros = {255, 1, 2, 255, 0, 0, 0, 0, 5, 6, 7, 8};
  const Ids distinct = {255, 1, 2, 255, 0, 1, 0, 1, 5, 6, 7, 8};
  for (const Dialect dialect : kDialects) {
    const std::string text = encoded(routes, dialect, MissingFill::kDistinct);
    EXPECT_EQ(decoded(text, dialect, spec), make_routes(spec, distinct));
    // Case H01: what engines send for a lost row is no row of different experts, so it does not come back.
    const auto refused = decode(encoded(routes, dialect, MissingFill::kZeros), dialect, spec);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message,
                HasSubstr("row 1 (position 1), layer 0: expected 2 different ids, got 0"));
  }
  EXPECT_EQ(encoded(routes, Dialect::kSglang, MissingFill::kZeros), base64(raw_ids(spec, zeros, true, 4)));
}

TEST(WireMissing, DistinctNeedsAsManyExperts) {
  const RouteSpec spec = make_spec({.layers = {0}, .top_k = 3, .num_experts = 2, .distinct = false});
  const Routes routes = make_routes(spec, {0, 0, 0}, {0});
  const auto refused = encode(routes, Dialect::kSglang, {.missing = MissingFill::kDistinct});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  const Routes back = decoded(encoded(routes, Dialect::kSglang, MissingFill::kZeros), Dialect::kSglang, spec);
  EXPECT_EQ(ids_of(back), (Ids{0, 0, 0}));
}

// A source that is asked in order, once, and fails where it is told to.
class ScriptedSource : public RowSource {
 public:
  ScriptedSource(Routes routes, int64_t fails_at) : inner_(std::move(routes)), fails_at_(fails_at) {}
  const RouteSpec& spec() const override { return inner_.spec(); }
  int64_t start() const override { return inner_.start(); }
  int64_t num_rows() const override { return inner_.num_rows(); }
  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override {
    EXPECT_EQ(first, next_);
    EXPECT_GT(count, 0);
    next_ += count;
    if (fails_at_ < next_) return Failure(Error{ErrorCode::kClosed, "source closed"});
    return inner_.pull(first, count, rows, reasons);
  }
  int64_t next() const { return next_; }

 private:
  RoutesSource inner_;
  int64_t fails_at_;
  int64_t next_ = 0;
};

TEST(WireSource, IsPulledOnceInOrder) {
  const RouteSpec spec = vector_spec();
  std::mt19937_64 random(1);
  const Routes routes = make_routes(spec, random_ids(spec, 10'000, random));
  for (const Dialect dialect : kDialects) {
    ScriptedSource source(routes, 10'000);
    EXPECT_EQ(encode(source, dialect).value(), encoded(routes, dialect));
    EXPECT_EQ(source.next(), 10'000);
    ScriptedSource failing(routes, 9'999);
    EXPECT_EQ(encode(failing, dialect).error().code, ErrorCode::kClosed);
  }
}

TEST(WireArray, IsTakenAsItIs) {
  const RouteSpec spec = make_spec({.layers = {1, 2}, .top_k = 2, .num_experts = 8, .num_layers = 4});
  const std::vector<int16_t> all = {0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 0, 0, 0};
  const std::vector<int64_t> moe = {1, 2, 3, 4, 5, 6, 7, 0};
  const Routes routes = make_routes(spec, {1, 2, 3, 4, 5, 6, 7, 0});
  const std::array<int64_t, 3> all_shape = {2, 4, 2};
  const std::array<int64_t, 3> moe_shape = {2, 2, 2};
  EXPECT_EQ(decode_array(all.data(), IntType::kInt16, all_shape, Dialect::kVllm, spec).value(), routes);
  EXPECT_EQ(decode_array(moe.data(), IntType::kInt64, moe_shape, Dialect::kLightllm, spec).value(), routes);
  const auto wrong = decode_array(moe.data(), IntType::kInt64, moe_shape, Dialect::kVllm, spec);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kWrongShape);
  EXPECT_EQ(wrong.error().message, "vllm: shape: expected [rows, 4 (all) layers, 2 ids], got [2, 2, 2]");
}

struct RandomCase {
  RouteSpec spec;
  Ids ids;
  Routes routes;
};

RandomCase random_case() {
  const int32_t top_k = *rc::gen::inRange(1, 10);
  const int32_t num_experts = top_k + *rc::gen::element(0, 3, 240, 256, 512, 32000);
  const int32_t num_layers = *rc::gen::inRange(1, 10);
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (*rc::gen::arbitrary<bool>()) layers.push_back(layer);
  }
  if (layers.empty()) layers.push_back(num_layers - 1);
  const RouteSpec spec =
      make_spec({.layers = layers, .top_k = top_k, .num_experts = num_experts, .num_layers = num_layers});
  const int64_t num_rows = *rc::gen::element<int64_t>(0, 1, 2, 3, 5, 64, 777, 3000);
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const Ids ids = random_ids(spec, num_rows, random);
  return {spec, ids, make_routes(spec, ids, {}, 3)};
}

RC_GTEST_PROP(WireRandom, TextsAreThePlainOnesAndComeBack, ()) {
  const auto [spec, ids, routes] = random_case();
  RC_ASSERT(encoded(routes, Dialect::kSglang) == base64(raw_ids(spec, ids, true, 4)));
  const std::string npy_data = raw_ids(spec, ids, true, spec.id_bytes());
  const std::string npy_text = encoded(routes, Dialect::kVllm);
  RC_ASSERT(npy_text.size() == base64(std::string(128, ' ') + npy_data).size());
  RC_ASSERT(npy_text.ends_with(base64(std::string(" \n") + npy_data)));
  const std::string json_text = encoded(routes, Dialect::kLightllm);
  RC_ASSERT(json_text.ends_with(":\"" + base64(raw_ids(spec, ids, false, spec.id_bytes())) + "\"}"));
  for (const Dialect dialect : kDialects) {
    const DecodeOptions options{.start = 3, .num_rows = routes.num_rows()};
    RC_ASSERT(decoded(encoded(routes, dialect), dialect, spec, options) == routes);
  }
}

}  // namespace
}  // namespace moetape::inline v0::wire
