// What each dialect has that others have not: types, axes, starts, missing rows, rows that nobody knows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "moetape/wire.h"
#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// 0,1,2,3,4,5,6,0,1,2,3,4 as [3,2,2].
RouteSpec vector_spec() { return make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}); }
Ids vector_ids() { return {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}; }
Routes vector_routes() { return make_routes(vector_spec(), vector_ids()); }
// Layer 0 is dense.
RouteSpec dense_spec() { return make_spec({.layers = {1}, .top_k = 2, .num_experts = 8, .num_layers = 2}); }
RouteSpec one_id_spec(int32_t num_experts) {
  return make_spec({.layers = {0}, .top_k = 1, .num_experts = num_experts});
}

std::string encoded(const Routes& routes, Dialect dialect, const EncodeOptions& options = {}) {
  return value_of(encode(routes, dialect, options));
}

Error refusal(const Result<Routes>& routes) {
  EXPECT_FALSE(routes);
  return routes ? Error{ErrorCode::kClosed, "no error"} : routes.error();
}

Error encode_refusal(const Routes& routes, Dialect dialect, const EncodeOptions& options) {
  const auto text = encode(routes, dialect, options);
  EXPECT_FALSE(text);
  return text ? Error{ErrorCode::kClosed, "no error"} : text.error();
}

std::string raw(const Ids& ids, int id_bytes) {
  std::string bytes;
  for (const int64_t id : ids)
    bytes.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(id_bytes));
  return bytes;
}

std::string npy_file(std::string_view descr, std::string_view shape, std::string_view data) {
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  dict.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + "\n" + std::string(data);
}

TEST(WireVectors, TextsOfTheOthers) {
  const Routes routes = vector_routes();
  EXPECT_EQ(encoded(routes, Dialect::kPrimeRl),
            R"({"data":"AAECAwQFBgABAgME","shape":[3,2,2],"start":0,"dtype":"uint8"})");
  EXPECT_EQ(encoded(routes, Dialect::kSkyrl),
            R"({"data":"AAECAwQFBgABAgME","shape":[3,2,2],"dtype":"uint8"})");
  EXPECT_EQ(encoded(routes, Dialect::kNemoRl), "nrlre1:int8:3x2x2:AAECAwQFBgABAgME");
  EXPECT_EQ(encoded(routes, Dialect::kMegatron), "[[[0,1],[2,3]],[[4,5],[6,0]],[[1,2],[3,4]]]");
  EXPECT_EQ(encoded(routes, Dialect::kTrtllm), raw(vector_ids(), 2));
  EXPECT_EQ(encoded(routes, Dialect::kVerl), raw(vector_ids(), 2));
  EXPECT_EQ(encoded(routes, Dialect::kSlime), raw(vector_ids(), 4));
  EXPECT_EQ(encoded(routes, Dialect::kMiles), raw(vector_ids(), 4));
  EXPECT_EQ(encoded(routes, Dialect::kNpy), npy_file("|u1", "3, 2, 2", raw(vector_ids(), 1)));
}

TEST(WireVectors, VllmSplitHasARowTooMany) {
  const std::string text = encoded(vector_routes(), Dialect::kVllmSplit, {.prompt_rows = 2});
  const std::string prompt = npy_file("<i2", "2, 2, 2", raw({0, 1, 2, 3, 4, 5, 6, 0}, 2));
  const std::string others = npy_file("<i2", "2, 2, 2", raw({1, 2, 3, 4, 0, 0, 0, 0}, 2));
  EXPECT_EQ(text, fmt::format(R"({{"prompt_routed_experts":"{}","routed_experts":"{}"}})", base64(prompt),
                              base64(others)));
  EXPECT_EQ(decode(text, Dialect::kVllmSplit, vector_spec(), {.num_rows = 3}).value(), vector_routes());
  const Error none = refusal(decode(fmt::format(R"({{"prompt_routed_experts":"{}"}})", base64(prompt)),
                                    Dialect::kVllmSplit, vector_spec()));
  EXPECT_THAT(none.message, HasSubstr("vllm-split: expected a \"routed_experts\", got none"));
  const Error rows = refusal(decode(text, Dialect::kVllmSplit, vector_spec(), {.num_rows = 4}));
  EXPECT_EQ(rows.code, ErrorCode::kWrongShape);
  EXPECT_EQ(rows.message, "vllm-split: rows: expected 4, got 3");
}

TEST(WireDialect, HasATableThatTellsWhatItTakes) {
  EXPECT_THAT(dialect_info(Dialect::kSglang).types,
              ElementsAre(IntType::kInt32, IntType::kUint16, IntType::kUint8));
  EXPECT_THAT(dialect_info(Dialect::kLightllm).axes, ElementsAre(LayerAxis::kMoe));
  EXPECT_TRUE(dialect_info(Dialect::kPrimeRl).says_start);
  for (const Dialect dialect : all_dialects()) {
    const DialectInfo& info = dialect_info(dialect);
    EXPECT_FALSE(info.types.empty()) << info.name;
    EXPECT_FALSE(info.axes.empty()) << info.name;
    EXPECT_EQ(info.says_missing, dialect == Dialect::kNemoRl);
  }
}

// case D12
TEST(WireType, SglangSendsWhatTheRequestNamed) {
  const Routes routes = vector_routes();
  const std::string narrow = encoded(routes, Dialect::kSglang, {.type = IntType::kUint8});
  EXPECT_EQ(narrow, "AAECAwQFBgABAgME");
  EXPECT_EQ(encoded(routes, Dialect::kSglang, {.type = IntType::kUint16}), base64(raw(vector_ids(), 2)));
  EXPECT_EQ(decode(narrow, Dialect::kSglang, vector_spec(), {.type = IntType::kUint8}).value(), routes);
  // 12 bytes are no rows of int32.
  EXPECT_THAT(refusal(decode(narrow, Dialect::kSglang, vector_spec())).message,
              HasSubstr("expected rows of 16 bytes (2 layers of 2 int32 ids), got 12 bytes"));
  EXPECT_THAT(refusal(decode(narrow, Dialect::kSglang, vector_spec(), {.type = IntType::kInt8})).message,
              HasSubstr("sglang: type: expected int32, uint16 or uint8, got int8"));
}

// case D01, case D02
TEST(WireType, HoldsTheExpertsOrIsRefused) {
  const Routes wide = make_routes(one_id_spec(512), {3});
  const Error narrow = encode_refusal(wide, Dialect::kSglang, {.type = IntType::kUint8});
  EXPECT_EQ(narrow.code, ErrorCode::kUnsupported);
  EXPECT_EQ(narrow.message, "sglang: type: expected one that counts 512 experts, got uint8");
  EXPECT_THAT(encode_refusal(wide, Dialect::kVllm, {.type = IntType::kInt64}).message,
              HasSubstr("vllm: type: expected uint8, uint16, int16 or int32, got int64"));

  // Widening is exact: 511 in every type that can count to it.
  const Routes routes = make_routes(one_id_spec(512), {511});
  for (const IntType type : {IntType::kUint16, IntType::kInt16, IntType::kInt32, IntType::kInt64}) {
    const std::string file = encoded(routes, Dialect::kNpy, {.type = type});
    EXPECT_TRUE(file.ends_with(raw({511}, int_type_bytes(type)))) << int_type_name(type);
    EXPECT_EQ(decode(file, Dialect::kNpy, one_id_spec(512)).value(), routes);
  }
  const Routes many = make_routes(one_id_spec(40001), {40000});
  EXPECT_EQ(encode_refusal(many, Dialect::kNpy, {.type = IntType::kInt16}).code, ErrorCode::kUnsupported);
  EXPECT_EQ(encode_refusal(many, Dialect::kTrtllm, {}).code, ErrorCode::kUnsupported);
  EXPECT_EQ(encoded(many, Dialect::kVerl), raw({40000}, 4));
}

TEST(WireType, FollowsTheExpertsButInSkyrl) {
  const auto head = [](int32_t num_experts, int64_t id, Dialect dialect) {
    const std::string text = encoded(make_routes(one_id_spec(num_experts), {id}), dialect);
    EXPECT_EQ(decode(text, dialect, one_id_spec(num_experts)).value(),
              make_routes(one_id_spec(num_experts), {id}));
    return text;
  };
  EXPECT_THAT(head(128, 3, Dialect::kNemoRl), HasSubstr(":int8:"));
  EXPECT_THAT(head(129, 3, Dialect::kNemoRl), HasSubstr(":int16:"));
  EXPECT_THAT(head(40000, 3, Dialect::kNemoRl), HasSubstr(":int32:"));
  EXPECT_THAT(head(257, 3, Dialect::kPrimeRl), HasSubstr("\"uint16\""));
  EXPECT_THAT(head(257, 255, Dialect::kSkyrl), HasSubstr("\"uint8\""));
  EXPECT_THAT(head(257, 256, Dialect::kSkyrl), HasSubstr("\"int16\""));
  EXPECT_THAT(head(40000, 32767, Dialect::kSkyrl), HasSubstr("\"int16\""));
  EXPECT_THAT(head(40000, 32768, Dialect::kSkyrl), HasSubstr("\"int32\""));
  EXPECT_THAT(
      encode_refusal(make_routes(one_id_spec(8), {0}), Dialect::kSkyrl, {.type = IntType::kUint8}).message,
      HasSubstr("skyrl: type: expected none, since it follows the largest id, got uint8"));
}

TEST(WireType, SkyrlIsCanonical) {
  const auto text = [](std::string_view dtype, std::string_view data) {
    return fmt::format(R"({{"data":"{}","shape":[1,1,1],"dtype":"{}"}})", base64(data), dtype);
  };
  const RouteSpec spec = one_id_spec(300);
  EXPECT_TRUE(decode(text("int16", raw({256}, 2)), Dialect::kSkyrl, spec));
  const Error wide = refusal(decode(text("int16", raw({255}, 2)), Dialect::kSkyrl, spec));
  EXPECT_EQ(wide.code, ErrorCode::kWrongType);
  EXPECT_EQ(wide.message,
            "skyrl: dtype: expected uint8, the narrowest that holds the largest id, 255, got int16");
  const Error negative = refusal(decode(text("int16", raw({-1}, 2)), Dialect::kSkyrl, spec));
  EXPECT_EQ(negative.code, ErrorCode::kOutOfRange);
}

// case D05
TEST(WireType, ChunksOfDifferentWidthJoin) {
  const RouteSpec spec = one_id_spec(512);
  const std::string first = encoded(make_routes(spec, {100}), Dialect::kSkyrl);
  const std::string second = encoded(make_routes(spec, {300}), Dialect::kSkyrl);
  EXPECT_THAT(first, HasSubstr("\"uint8\""));
  EXPECT_THAT(second, HasSubstr("\"int16\""));
  const Routes joined =
      *decode(first, Dialect::kSkyrl, spec)->extend(*decode(second, Dialect::kSkyrl, spec, {.start = 1}));
  EXPECT_EQ(joined, make_routes(spec, {100, 300}));
}

TEST(WireAxis, AllOrMoeLayersWhereTheDialectHasBoth) {
  const Routes routes = make_routes(dense_spec(), {1, 2, 3, 4});
  EXPECT_EQ(encoded(routes, Dialect::kNemoRl),
            "nrlre1:int8:2x2x2:" + base64(raw({0, 0, 1, 2, 0, 0, 3, 4}, 1)));
  const std::string moe = encoded(routes, Dialect::kNemoRl, {.layers = LayerAxis::kMoe});
  EXPECT_EQ(moe, "nrlre1:int8:2x1x2:" + base64(raw({1, 2, 3, 4}, 1)));
  EXPECT_EQ(decode(moe, Dialect::kNemoRl, dense_spec()).value(), routes);
  EXPECT_EQ(encoded(routes, Dialect::kMegatron, {.layers = LayerAxis::kAll}),
            "[[[0,0],[1,2]],[[0,0],[3,4]]]");
  EXPECT_EQ(decode("[[[0,0],[1,2]],[[0,0],[3,4]]]", Dialect::kMegatron, dense_spec()).value(), routes);
  EXPECT_THAT(refusal(decode("nrlre1:int8:1x3x2:AAAAAAAA", Dialect::kNemoRl, dense_spec())).message,
              HasSubstr("nemo-rl: shape: expected [rows, 2 (all) or 1 MoE layers, 2 ids], got [1, 3, 2]"));
  const Error other = encode_refusal(routes, Dialect::kLightllm, {.layers = LayerAxis::kAll});
  EXPECT_EQ(other.code, ErrorCode::kUnsupported);
  EXPECT_EQ(other.message, "lightllm: layers: expected MoE layers only, got all");
}

// case J04, case D04
TEST(WireNemoRl, SaysMissing) {
  const Routes routes = make_routes(dense_spec(), {1, 2, 9, 9, 3, 4}, {1, 0, 1}, 5);
  const std::string text = encoded(routes, Dialect::kNemoRl);
  EXPECT_EQ(text, "nrlre1:int8:3x2x2:" + base64(raw({0, 0, 1, 2, -1, -1, -1, -1, 0, 0, 3, 4}, 1)));
  const Routes back = *decode(text, Dialect::kNemoRl, dense_spec(), {.start = 5, .version = 3});
  EXPECT_THAT(back.reasons(), ElementsAre(Reason::kValid, Reason::kNotSent, Reason::kValid));
  EXPECT_EQ(back, *decode(text, Dialect::kNemoRl, dense_spec(), {.start = 5, .version = 3}));
  EXPECT_THAT(back.versions(), ElementsAre(VersionRun{5, 6, 3}, VersionRun{7, 8, 3}));
  // A fill that is named is taken all the same.
  EXPECT_EQ(encoded(routes, Dialect::kNemoRl, {.missing = MissingFill::kDistinct}),
            "nrlre1:int8:3x2x2:" + base64(raw({0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 3, 4}, 1)));
}

TEST(WireNemoRl, RefusesRowsThatAreMissingInPart) {
  const RouteSpec spec = vector_spec();
  const auto decoded = [&](const Ids& ids) {
    return decode("nrlre1:int16:1x2x2:" + base64(raw(ids, 2)), Dialect::kNemoRl, spec);
  };
  EXPECT_EQ(decoded({-1, -1, -1, -1})->num_missing(), 1);
  EXPECT_THAT(refusal(decoded({0, 1, -1, -1})).message,
              HasSubstr("row 0 (position 0), layer 1: expected ids of 0 to 7, got -1"));
  EXPECT_EQ(refusal(decoded({-1, 0, 1, 2})).code, ErrorCode::kOutOfRange);
  // 255 is no -1 where ids are unsigned, and never stands for "missing" elsewhere.
  const RouteSpec all = make_spec({.layers = {0}, .top_k = 1, .num_experts = 256});
  const std::string text = encoded(make_routes(all, {255}), Dialect::kNemoRl);
  EXPECT_TRUE(decode(text, Dialect::kNemoRl, all)->complete());
}

TEST(WireNemoRl, RefusesOtherHeads) {
  const auto error = [](std::string_view text) {
    return refusal(decode(text, Dialect::kNemoRl, vector_spec()));
  };
  EXPECT_EQ(error("nrlre2:int8:3x2x2:AAECAwQFBgABAgME").message,
            "nemo-rl: character 5: expected the magic nrlre1:, got '2'");
  EXPECT_EQ(error("nrlre1:uint8:3x2x2:AAECAwQFBgABAgME").code, ErrorCode::kWrongType);
  EXPECT_EQ(error("nrlre1:int7:3x2x2:").message,
            "nemo-rl: dtype: expected int8, int16 or int32, got \"int7\"");
  for (const std::string_view text :
       {"", "nrlre1", "nrlre1:int8:3x2:AAEC", "nrlre1:int8:3x2x2x1:AAEC", "nrlre1:int8:03x2x2:AAEC",
        "nrlre1:int8:-3x2x2:AAEC", "nrlre1:int8:3x2x2", "nrlre1:int8:4x2x2:AAECAwQFBgABAgME",
        "nrlre1:int8:3x2x2:AAECAwQFBgABAgM=", "nrlre1:int8:99999999999999999999x2x2:AAEC"}) {
    EXPECT_EQ(error(text).code, ErrorCode::kCorruptData) << text;
  }
}

TEST(WireMegatron, TakesSpacesAndRefusesOtherLists) {
  EXPECT_EQ(
      decode(" [ [[0, 1], [2, 3]],\n[[4, 5], [6, 0]], [[1, 2], [3, 4]] ] ", Dialect::kMegatron, vector_spec())
          .value(),
      vector_routes());
  EXPECT_EQ(decode("[]", Dialect::kMegatron, vector_spec())->num_rows(), 0);
  const auto error = [](std::string_view text) {
    return refusal(decode(text, Dialect::kMegatron, vector_spec()));
  };
  EXPECT_EQ(error("[[[0,1],[2,8]]]").code, ErrorCode::kOutOfRange);
  EXPECT_EQ(error("[[[0,1],[2,-3]]]").code, ErrorCode::kOutOfRange);
  EXPECT_EQ(error("[[[0,1],[2,3]]").message, "megatron: character 14: expected ']', got the end of the text");
  EXPECT_EQ(error("[[[0,1],[2,x]]]").message, "megatron: character 11: expected a 32-bit integer, got 'x'");
  EXPECT_EQ(error("[[[0,1],[2,3]],[[4,5],[6]]]").code, ErrorCode::kWrongShape);
  for (const std::string_view text :
       {"", " ", "0", "[[[0,1],[2,3]]]]", "[[[0,1],[2,3]]] x", "[[[0,1],[2,03]]]", "[[[0,1],[2,1.0]]]",
        "[[[0,1],[2,3000000000]]]", "[[[0,1],[2,+3]]]", "[[[0,1],[2,--3]]]", "[[[0,1],[2,-]]]",
        "[[0,[1],[2,3]]]", "[[[0 1],[2,3,]]]", "[[[0,1,[2,3]]]", "[[[0,1]][2,3]],", "{}", "null", "]",
        "[]]"}) {
    EXPECT_THAT(error(text).code, testing::AnyOf(ErrorCode::kCorruptData, ErrorCode::kWrongShape)) << text;
  }
}

TEST(WirePrimeRl, SaysWhereItStarts) {
  const Routes routes = make_routes(vector_spec(), vector_ids(), {}, 40);
  const std::string text = encoded(routes, Dialect::kPrimeRl);
  EXPECT_THAT(text, HasSubstr("\"start\":40"));
  EXPECT_EQ(decode(text, Dialect::kPrimeRl, vector_spec()).value(), routes);
  EXPECT_EQ(decode(text, Dialect::kPrimeRl, vector_spec(), {.start = 40}).value(), routes);
  const Error other = refusal(decode(text, Dialect::kPrimeRl, vector_spec(), {.start = 0}));
  EXPECT_EQ(other.code, ErrorCode::kWrongShape);
  EXPECT_EQ(other.message, "prime-rl: start: expected 0, got 40");
  EXPECT_THAT(refusal(decode(encoded(routes, Dialect::kSkyrl), Dialect::kPrimeRl, vector_spec())).message,
              HasSubstr("expected a \"start\", got none"));
  EXPECT_THAT(refusal(decode(text, Dialect::kSkyrl, vector_spec())).message, HasSubstr("got \"start\""));
}

// case B11, case J03
TEST(WireRows, NotKnownToTheSenderAreNotLookedAt) {
  // A decode worker sends zeros, or whatever stood there, for the prompt.
  const Ids ids = {0, 0, 0, 0, 200, 7, 7, 7, 1, 2, 3, 4};
  const Routes routes = *decode(base64(raw(ids, 4)), Dialect::kSglang, vector_spec(),
                                {.start = 10, .version = 2, .known_from = 12});
  EXPECT_THAT(routes.reasons(), ElementsAre(Reason::kNotSent, Reason::kNotSent, Reason::kValid));
  EXPECT_THAT(routes.versions(), ElementsAre(VersionRun{12, 13, 2}));
  EXPECT_THAT(routes.ids().first(8), Each(std::byte{0}));
  const auto known_from = [&](int64_t position) {
    return decode(base64(raw({0, 1, 2, 3}, 4)), Dialect::kSglang, vector_spec(),
                  {.start = 10, .known_from = position})
        ->num_missing();
  };
  EXPECT_EQ(known_from(-5), 0);
  EXPECT_EQ(known_from(10), 0);
  EXPECT_EQ(known_from(11), 1);
  EXPECT_EQ(known_from(std::numeric_limits<int64_t>::max()), 1);
}

// case C10
TEST(WireRows, SurplusOnesAreLeftOut) {
  const std::string text = base64(raw({0, 1, 2, 3, 9, 9, 9, 9}, 4));
  EXPECT_EQ(decode(text, Dialect::kSglang, vector_spec(), {.num_rows = 1, .surplus_rows = 1}).value(),
            make_routes(vector_spec(), {0, 1, 2, 3}));
  EXPECT_EQ(decode(text, Dialect::kSglang, vector_spec(), {.surplus_rows = 2})->num_rows(), 0);
  EXPECT_EQ(refusal(decode(text, Dialect::kSglang, vector_spec(), {.surplus_rows = 3})).code,
            ErrorCode::kWrongShape);
  EXPECT_EQ(refusal(decode(text, Dialect::kSglang, vector_spec(), {.surplus_rows = -1})).code,
            ErrorCode::kInvalidArgument);
}

TEST(WireArray, OfATrainerHasAShape) {
  const Routes routes = make_routes(dense_spec(), {1, 2, 3, 4});
  const ArrayForm form = *array_form(dense_spec(), 2, Dialect::kVerl);
  EXPECT_EQ(form.type, IntType::kInt16);
  EXPECT_THAT(form.shape, ElementsAre(2, 2, 2));
  const std::string bytes = encoded(routes, Dialect::kVerl);
  EXPECT_EQ(decode_array(bytes.data(), form.type, form.shape, Dialect::kVerl, dense_spec()).value(), routes);
  EXPECT_EQ(decode(bytes, Dialect::kVerl, dense_spec(), {.num_rows = 2}).value(), routes);
  EXPECT_EQ(refusal(decode(bytes, Dialect::kVerl, dense_spec(), {.num_rows = 3})).code,
            ErrorCode::kWrongShape);
  // Of a type that the dialect does not name, an array is taken all the same.
  const std::string wide = raw({0, 0, 1, 2, 0, 0, 3, 4}, 8);
  EXPECT_EQ(decode_array(wide.data(), IntType::kInt64, form.shape, Dialect::kMiles, dense_spec()).value(),
            routes);
}

// case I12
TEST(WireOrder, IsKept) {
  const Routes routes = make_routes(vector_spec(), {5, 2, 7, 0});
  for (const Dialect dialect : all_dialects()) {
    EXPECT_EQ(decode(encoded(routes, dialect), dialect, vector_spec()).value(), routes)
        << dialect_name(dialect);
  }
}

RC_GTEST_PROP(WireRandom, AllTypesAndAxesComeBack, ()) {
  const Dialect dialect = *rc::gen::elementOf(all_dialects());
  const DialectInfo& info = dialect_info(dialect);
  const int32_t num_experts = *rc::gen::element(4, 100, 200, 256, 500, 30000);
  const RouteSpec spec = make_spec(
      {.layers = {1, 2, 5}, .top_k = 3, .num_experts = num_experts, .num_layers = *rc::gen::inRange(6, 8)});
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const int64_t num_rows = *rc::gen::element<int64_t>(0, 1, 2, 50, 1000);
  std::vector<uint8_t> valid(static_cast<size_t>(num_rows), 1);
  if (info.says_missing) {
    for (uint8_t& row : valid) row = static_cast<uint8_t>(random() % 4 != 0);
  }
  const int64_t start = *rc::gen::inRange(0, 100);
  const Routes routes = make_routes(spec, random_ids(spec, num_rows, random), valid, start);
  EncodeOptions options = {.prompt_rows = num_rows / 2};
  if (*rc::gen::arbitrary<bool>()) options.type = *rc::gen::elementOf(info.types);
  if (*rc::gen::arbitrary<bool>()) options.layers = *rc::gen::elementOf(info.axes);
  const auto text = encode(routes, dialect, options);
  if (!text) {
    RC_ASSERT(text.error().code == ErrorCode::kUnsupported);
    return;
  }
  RC_ASSERT(text->size() <= *encoded_size(spec, num_rows, dialect, options, start));
  DecodeOptions back = {.start = start, .num_rows = num_rows};
  const bool plain = info.kind == FormKind::kArray || dialect == Dialect::kSglang;
  if (plain) back.type = options.type;
  RC_ASSERT(value_of(decode(*text, dialect, spec, back)) == routes);
}

}  // namespace
}  // namespace moetape::inline v0::wire
