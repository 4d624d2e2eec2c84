// What the decoders refuse, and how they say so.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <initializer_list>
#include <string>

#include "moetape/wire.h"
#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::HasSubstr;

const std::vector<Dialect> kDialects = all_dialects();

RouteSpec plain_spec() { return make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}); }
// Layer 0 is dense.
RouteSpec dense_spec() { return make_spec({.layers = {1}, .top_k = 2, .num_experts = 8, .num_layers = 2}); }

std::string little_endian(const Ids& ids, int id_bytes) {
  std::string raw;
  for (const int64_t id : ids) raw.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(id_bytes));
  return raw;
}

std::string sglang_text(const Ids& ids) { return base64(little_endian(ids, 4)); }

std::string lightllm_text(std::string_view shape, std::string_view dtype, std::string_view data) {
  return fmt::format(R"({{"shape":{},"dtype":"{}","data":"{}"}})", shape, dtype, base64(data));
}

std::string npy_text(std::string_view dict, std::string_view data,
                     std::string_view version = {"\x01\x00", 2}) {
  const auto length = static_cast<uint16_t>(dict.size());
  std::string file = "\x93NUMPY" + std::string(version);
  file.append(reinterpret_cast<const char*>(&length), 2);
  return base64(file + std::string(dict) + std::string(data));
}

std::string npy_dict(std::string_view descr, std::string_view shape, std::string_view order = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }} \n", descr, order, shape);
}

// The error of a text that must be refused.
Error refusal(std::string_view text, Dialect dialect, const RouteSpec& spec,
              const DecodeOptions& options = {}) {
  const auto routes = decode(text, dialect, spec, options);
  EXPECT_FALSE(routes) << text;
  return routes ? Error{ErrorCode::kClosed, "no error"} : routes.error();
}

void expect_refusal(const Error& error, ErrorCode code, std::string_view message) {
  EXPECT_EQ(error_name(error.code), error_name(code)) << error.message;
  EXPECT_THAT(error.message, HasSubstr(message));
}

std::string good_text(Dialect dialect) {
  return encode(make_routes(dense_spec(), {0, 1, 2, 3, 4, 5}), dialect).value();
}

// case E03
TEST(WireStrict, ATextCutAnywhereIsRefused) {
  for (const Dialect dialect : kDialects) {
    const std::string text = good_text(dialect);
    const DecodeOptions options{.num_rows = 3};
    ASSERT_TRUE(decode(text, dialect, dense_spec(), options));
    for (size_t size = 0; size < text.size(); ++size) {
      const Error error = refusal(text.substr(0, size), dialect, dense_spec(), options);
      EXPECT_THAT(error.message, HasSubstr(dialect_name(dialect))) << size;
    }
  }
}

TEST(WireStrict, EveryIllegalCharacterIsRefusedAtItsPlace) {
  for (const Dialect dialect : kDialects) {
    if (dialect_info(dialect).kind != FormKind::kText) continue;
    const bool only_base64 = dialect == Dialect::kSglang || dialect == Dialect::kVllm;
    const std::string text = good_text(dialect);
    for (size_t at = 0; at < text.size(); ++at) {
      for (const char bad : {'?', '=', ' ', '\n', '\0', '\xff', '-', '\\'}) {
        if (text[at] == bad) continue;
        std::string changed = text;
        changed[at] = bad;
        const auto routes = decode(changed, dialect, dense_spec(), {.num_rows = 3});
        ASSERT_FALSE(routes) << dialect_name(dialect) << " " << at << " " << int{bad};
        // A "=" may also be taken for the end, and JSON says what it expects in its own words.
        if (bad == '=' || !only_base64) continue;
        EXPECT_THAT(routes.error().message, HasSubstr(fmt::format("character {}:", at)));
      }
    }
  }
}

TEST(WireStrict, BadCharactersAreNamed) {
  std::string text = sglang_text({0, 1, 2, 3});
  text[5] = '?';
  expect_refusal(refusal(text, Dialect::kSglang, plain_spec()), ErrorCode::kCorruptData,
                 "sglang: character 5: expected base64, got '?'");
  text[5] = '\x07';
  expect_refusal(refusal(text, Dialect::kSglang, plain_spec()), ErrorCode::kCorruptData, "got byte 0x07");
  expect_refusal(refusal(text.substr(0, 13), Dialect::kSglang, plain_spec()), ErrorCode::kCorruptData,
                 "character 13: expected base64, got the end of the text");
  std::string json = lightllm_text("[1,2,2]", "uint8", little_endian({0, 1, 2, 3}, 1));
  json[json.find("AAEC") + 2] = '!';
  expect_refusal(refusal(json, Dialect::kLightllm, plain_spec()), ErrorCode::kCorruptData,
                 fmt::format("lightllm: character {}: expected base64, got '!'", json.find('!')));
}

TEST(WireStrict, PaddingStandsAtTheEndOnly) {
  const std::string two = sglang_text({0, 1, 2, 3, 4});  // 20 bytes: the text ends with one "="
  expect_refusal(
      refusal(two + two, Dialect::kSglang, make_spec({.layers = {0}, .top_k = 1, .num_experts = 8})),
      ErrorCode::kWrongShape, "");
  // 39 bytes in all by length and last padding, so only the character itself is wrong.
  std::string text = sglang_text({0, 1, 2, 3, 4, 5, 6, 7, 0});
  text[7] = '=';
  expect_refusal(refusal(text, Dialect::kSglang, make_spec({.layers = {0}, .top_k = 1, .num_experts = 8})),
                 ErrorCode::kCorruptData, "character 7: expected base64, got '='");
}

TEST(WireStrict, MoreOrFewerBytesThanRowsAreRefused) {
  const std::string raw = little_endian({0, 1, 2, 3}, 4);
  for (const size_t bytes : {size_t{1}, size_t{12}, size_t{15}}) {
    expect_refusal(refusal(base64(raw.substr(0, bytes)), Dialect::kSglang, plain_spec()),
                   ErrorCode::kWrongShape, "expected rows of 16 bytes (2 layers of 2 int32 ids)");
  }
  expect_refusal(refusal(base64(raw + "x"), Dialect::kSglang, plain_spec()), ErrorCode::kWrongShape,
                 "got 17 bytes");
  const std::string narrow = little_endian({0, 1, 2, 3}, 1);
  for (const std::string& data : {narrow + "x", narrow.substr(1), std::string()}) {
    expect_refusal(refusal(lightllm_text("[1,2,2]", "uint8", data), Dialect::kLightllm, plain_spec()),
                   ErrorCode::kCorruptData,
                   fmt::format("expected 1 rows of 4 bytes, as the form says, got {}", data.size()));
    expect_refusal(refusal(npy_text(npy_dict("|u1", "(1, 2, 2)"), data), Dialect::kVllm, plain_spec()),
                   ErrorCode::kCorruptData,
                   fmt::format("expected 1 rows of 4 bytes, as the form says, got {}", data.size()));
  }
}

// case C06, case C10
TEST(WireStrict, AnotherNumberOfRowsIsRefused) {
  Ids ids;
  for (int i = 0; i < 9; ++i) ids.insert(ids.end(), {0, 1, 2, 3});
  for (const Dialect dialect : kDialects) {
    const std::string text = encode(make_routes(plain_spec(), ids), dialect).value();
    for (const int64_t rows : {int64_t{6}, int64_t{8}, int64_t{10}}) {
      expect_refusal(refusal(text, dialect, plain_spec(), {.num_rows = rows}), ErrorCode::kWrongShape,
                     fmt::format("rows: expected {}, got 9", rows));
    }
    EXPECT_TRUE(decode(text, dialect, plain_spec(), {.num_rows = 9}));
  }
}

TEST(WireStrict, OtherShapesAreRefused) {
  const std::string data = little_endian({0, 1, 2, 3}, 1);
  for (const std::string_view shape : {"[1,4,1]", "[1,1,4]", "[4,1,1]", "[-1,2,2]", "[1,-2,-2]", "[0,2,3]"}) {
    expect_refusal(refusal(lightllm_text(shape, "uint8", data), Dialect::kLightllm, plain_spec()),
                   ErrorCode::kWrongShape, "shape: expected [rows, 2 MoE layers, 2 ids]");
  }
  for (const std::string_view shape : {"[]", "[4]", "[1,2,2,1]"}) {
    expect_refusal(refusal(lightllm_text(shape, "uint8", data), Dialect::kLightllm, plain_spec()),
                   ErrorCode::kWrongShape, "shape: expected 3 dimensions");
  }
  expect_refusal(refusal(npy_text(npy_dict("|u1", "(1, 1, 4)"), data), Dialect::kVllm, plain_spec()),
                 ErrorCode::kWrongShape, "expected [rows, 2 (all) layers, 2 ids], got [1, 1, 4]");
  for (const std::string_view shape : {"()", "(4,)", "(1, 2, 2, 1)"}) {
    expect_refusal(refusal(npy_text(npy_dict("|u1", shape), data), Dialect::kVllm, plain_spec()),
                   ErrorCode::kWrongShape, "npy header: shape");
  }
}

TEST(WireStrict, ShapesBeyondAllNumbersAllocateNothing) {
  const std::string data = little_endian({0, 1, 2, 3}, 1);
  const std::string_view largest = "9223372036854775807";
  for (const std::string_view rows :
       {"4611686018427387905", "2305843009213693952", "1000000000000", "9223372036854775807"}) {
    expect_refusal(refusal(lightllm_text(fmt::format("[{},2,2]", rows), "uint8", data), Dialect::kLightllm,
                           plain_spec()),
                   ErrorCode::kCorruptData, "rows of 4 bytes");
    expect_refusal(refusal(npy_text(npy_dict("|u1", fmt::format("({}, 2, 2)", rows)), data), Dialect::kVllm,
                           plain_spec()),
                   ErrorCode::kCorruptData, "rows of 4 bytes");
  }
  const std::string beyond = fmt::format("{}0", largest);
  EXPECT_EQ(
      refusal(lightllm_text(fmt::format("[{},2,2]", beyond), "uint8", data), Dialect::kLightllm, plain_spec())
          .code,
      ErrorCode::kCorruptData);
  expect_refusal(refusal(npy_text(npy_dict("|u1", fmt::format("({}, 2, 2)", beyond)), data), Dialect::kVllm,
                         plain_spec()),
                 ErrorCode::kCorruptData, "expected a dimension below 2^63, got '9'");
}

// case D07
TEST(WireStrict, IdsOutOfRangeAreNamed) {
  expect_refusal(
      refusal(sglang_text({0, 1, 2, 3, 4, 8, 5, 6}), Dialect::kSglang, plain_spec(), {.start = 10}),
      ErrorCode::kOutOfRange, "sglang: row 1 (position 11), layer 0: expected ids of 0 to 7, got 8");
  expect_refusal(refusal(sglang_text({0, 1, -1, 3}), Dialect::kSglang, plain_spec()), ErrorCode::kOutOfRange,
                 "row 0 (position 0), layer 1: expected ids of 0 to 7, got -1");
  expect_refusal(refusal(sglang_text({0, 1, 256, 3}), Dialect::kSglang, plain_spec()), ErrorCode::kOutOfRange,
                 "got 256");

  const auto one = [](int32_t num_experts) {
    return make_spec({.layers = {0}, .top_k = 1, .num_experts = num_experts});
  };
  const std::string text = lightllm_text("[1,1,1]", "uint8", little_endian({255}, 1));
  EXPECT_TRUE(decode(text, Dialect::kLightllm, one(256)));
  expect_refusal(refusal(text, Dialect::kLightllm, one(255)), ErrorCode::kOutOfRange,
                 "layer 0: expected ids of 0 to 254, got 255");
  // The older signed byte.
  expect_refusal(
      refusal(lightllm_text("[1,1,1]", "int8", little_endian({255}, 1)), Dialect::kLightllm, one(256)),
      ErrorCode::kOutOfRange, "got -1");
}

// case B12, case G11: an MoE layer cannot be all zeros where ids must differ.
TEST(WireStrict, RepeatedIdsAreNamed) {
  expect_refusal(refusal(sglang_text({0, 1, 2, 3, 5, 5, 1, 0}), Dialect::kSglang, plain_spec()),
                 ErrorCode::kInvalidArgument,
                 "row 1 (position 1), layer 0: expected 2 different ids, got 5 twice");
  const RouteSpec eight = make_spec({.layers = {3}, .top_k = 8, .num_experts = 256});
  expect_refusal(refusal(lightllm_text("[1,1,8]", "uint8", std::string(8, '\0')), Dialect::kLightllm, eight),
                 ErrorCode::kInvalidArgument,
                 "row 0 (position 0), layer 3: expected 8 different ids, got 0 twice");
  const RouteSpec repeating = make_spec({.layers = {3}, .top_k = 8, .num_experts = 256, .distinct = false});
  EXPECT_TRUE(decode(lightllm_text("[1,1,8]", "uint8", std::string(8, '\0')), Dialect::kLightllm, repeating));
}

// case G11
TEST(WireStrict, ADenseLayerIsAllZero) {
  expect_refusal(refusal(sglang_text({0, 0, 1, 2, 0, 3, 1, 2}), Dialect::kSglang, dense_spec()),
                 ErrorCode::kCorruptData, "sglang: row 1 (position 1), layer 0: expected zeros");
  expect_refusal(refusal(sglang_text({0, 0, 1, 2, 256, 0, 1, 2}), Dialect::kSglang, dense_spec()),
                 ErrorCode::kCorruptData, "row 1 (position 1), layer 0: expected zeros");
  expect_refusal(refusal(npy_text(npy_dict("<i2", "(1, 2, 2)"), little_endian({-1, 0, 1, 2}, 2)),
                         Dialect::kVllm, dense_spec()),
                 ErrorCode::kCorruptData, "row 0 (position 0), layer 0: expected zeros");
}

TEST(WireNpy, TakesTheWidthsThatVllmEverSent) {
  const Routes routes = make_routes(plain_spec(), {0, 1, 2, 7});
  for (const auto& [descr, bytes] :
       {std::pair{"|u1", 1}, std::pair{"<u2", 2}, std::pair{"<i2", 2}, std::pair{"<i4", 4}}) {
    const std::string text = npy_text(npy_dict(descr, "(1, 2, 2)"), little_endian({0, 1, 2, 7}, bytes));
    EXPECT_EQ(decode(text, Dialect::kVllm, plain_spec()).value(), routes) << descr;
  }
  for (const std::string_view descr : {">i2", "<f4", "|u1 ", "u1", ""}) {
    expect_refusal(refusal(npy_text(npy_dict(descr, "(1, 2, 2)"), "1234"), Dialect::kVllm, plain_spec()),
                   ErrorCode::kWrongType,
                   fmt::format("descr: expected a little-endian integer, got \"{}\"", descr));
  }
  for (const auto& [descr, type] : {std::pair{"|i1", "int8"}, {"<i8", "int64"}, {"<u4", "uint32"}}) {
    expect_refusal(refusal(npy_text(npy_dict(descr, "(1, 2, 2)"), "1234"), Dialect::kVllm, plain_spec()),
                   ErrorCode::kWrongType,
                   fmt::format("vllm: type: expected uint8, uint16, int16 or int32, got {}", type));
  }
}

TEST(WireNpy, TakesAnyOrderAndQuotes) {
  const Routes routes = make_routes(plain_spec(), {0, 1, 2, 3});
  const std::string data = little_endian({0, 1, 2, 3}, 1);
  for (const std::string_view dict :
       {"{\"shape\":(1,2,2,),\"fortran_order\":False,\"descr\":\"|u1\"}\n",
        "{ 'fortran_order' : False , 'descr' : '|u1' , 'shape' : ( 1 , 2 , 2 ) }        \n"}) {
    EXPECT_EQ(decode(npy_text(dict, data), Dialect::kVllm, plain_spec()).value(), routes) << dict;
  }
}

TEST(WireNpy, RefusesOtherFiles) {
  const std::string data = little_endian({0, 1, 2, 3}, 1);
  const std::string good = npy_dict("|u1", "(1, 2, 2)");
  const auto error = [](std::string_view text) { return refusal(text, Dialect::kVllm, plain_spec()); };
  expect_refusal(error(npy_text(good, data, {"\x02\x00", 2})), ErrorCode::kUnsupported,
                 "npy version: expected 1.0, got 2.0");
  expect_refusal(error(npy_text(npy_dict("|u1", "(1, 2, 2)", "True"), data)), ErrorCode::kUnsupported,
                 "fortran_order: expected False, got True");
  expect_refusal(error(base64("\x93NUMPX\x01")), ErrorCode::kCorruptData,
                 "npy header: expected 10 bytes, got 7");
  expect_refusal(error(base64("\x93NUMPX\x01zzzzzzzzz")), ErrorCode::kCorruptData,
                 "byte 5: expected the magic \\x93NUMPY, got 'X'");
  expect_refusal(error(base64({"\x93NUMPY\x01\x00\xff\xff{}", 12})), ErrorCode::kCorruptData,
                 "npy dict: expected 65535 bytes, got 2");
  for (const auto& [dict, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {"\n", "byte 10: expected '{', got byte 0x0a"},
           {"", "byte 10: expected '{', got the end of the text"},
           {"{}\n", "expected a 'descr', got none"},
           {"{'descr': '|u1', 'fortran_order': False}\n", "expected a 'shape', got none"},
           {"{'descr': '|u1', 'shape': (1, 2, 2)}\n", "expected a 'fortran_order', got none"},
           {"{'descr': '|u1', 'descr': '|u1'}\n", "once each, got \"descr\""},
           {"{'extra': 1}\n", "once each, got \"extra\""},
           {"{'descr: '|u1'}\n", "expected ':', got '|'"},
           {"{'descr\n", "expected the end of the string, got the end of the text"},
           {"{'shape': (1, 2, -2)}\n", "expected a dimension below 2^63, got '-'"},
           {"{'shape': (1, 2, x)}\n", "expected a dimension below 2^63, got 'x'"},
           {"{'shape': (1 2, 2)}\n", "expected ')', got '2'"},
           {"{'fortran_order': 0}\n", "expected False, got '0'"},
           {good + "x", "a line end behind the dict"},
           {good.substr(0, good.size() - 1) + "x\n", "expected spaces up to the line end, got 'x'"},
           {good.substr(0, good.size() - 1), "a line end behind the dict"}}) {
    expect_refusal(error(npy_text(dict, data)), ErrorCode::kCorruptData, message);
  }
}

TEST(WireJson, TakesAnyOrderSpacesAndTheOlderWidth) {
  const Routes routes = make_routes(plain_spec(), {0, 1, 2, 3});
  for (const std::string_view text :
       {R"({"data":"AAECAw==","dtype":"uint8","shape":[1,2,2]})",
        " {\n\t\"shape\" : [ 1 , 2 , 2 ] , \"data\" : \"AAECAw==\" , \"dtype\" : \"uint8\" } \r\n",
        R"({"shape":[1,2,2],"dtype":"int8","data":"AAECAw=="})",
        R"({"sh\u0061pe":[1,2,2],"dtype":"int16","data":"AAABAAIAAwA="})",
        R"({"shape":[1,2,2],"data":"AAECAw==","dtype":"\u0075\u0069\u006e\u0074\u0038"})"}) {
    EXPECT_EQ(decode(text, Dialect::kLightllm, plain_spec()).value(), routes) << text;
  }
}

TEST(WireJson, PlacesAreThoseOfTheWholeText) {
  Ids ids;
  for (int i = 0; i < 1000; ++i) ids.insert(ids.end(), {0, 1, 2, 3});
  const Routes routes = make_routes(plain_spec(), ids);
  const std::string good = encode(routes, Dialect::kLightllm).value();
  std::string text = good;
  text[text.size() - 500] = '*';
  expect_refusal(refusal(text, Dialect::kLightllm, plain_spec()), ErrorCode::kCorruptData,
                 fmt::format("character {}: expected base64, got '*'", text.size() - 500));
  expect_refusal(refusal(good + "{}", Dialect::kLightllm, plain_spec()), ErrorCode::kCorruptData,
                 fmt::format("character {}: expected nothing more, got '{{'", good.size()));
  const std::string data = good.substr(good.find("\"data\""), good.size() - good.find("\"data\"") - 1);
  EXPECT_EQ(decode("{" + data + R"(,"dtype":"uint8","shape":[1000,2,2]})", Dialect::kLightllm, plain_spec())
                .value(),
            routes);
}

TEST(WireJson, RefusesOtherDocuments) {
  const auto error = [](std::string_view text) { return refusal(text, Dialect::kLightllm, plain_spec()); };
  for (const auto& [text, message] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {R"({"shape":[1,2,2],"dtype":"uint8","data":"AAECAw==","start":0})", R"(once each, got "start")"},
           {R"({"shape":[1,2,2],"shape":[1,2,2],"dtype":"uint8","data":"AAECAw=="})",
            R"(once each, got "shape")"},
           {R"({"shape":[1,2,2],"dtype":"uint8"})", R"(expected a "data", got none)"},
           {R"({"dtype":"uint8","data":"AAECAw=="})", R"(expected a "shape", got none)"},
           {R"({"shape":[1,2,2],"data":"AAECAw=="})", R"(expected a "dtype", got none)"},
           {"{}", R"(expected a "shape", got none)"},
           {R"({"shape":[1,2,2],"dtype":"uint8","data":"AAECAw=="}x)", "JSON document ended early"},
           {R"({"shape":[1,2,2],"dtype":"uint8","data":"AAECAw=="}{})", "expected nothing more, got '{'"},
           {R"({"data":7})", "character 8: expected a string, got '7'"},
           {R"({"data":["AAECAw=="]})", "character 8: expected a string, got '['"},
           {R"({"data":null})", "character 8: expected a string, got 'n'"},
           {R"({"shape":[1,2,2],"dtype":"uint8","data":"AAE\nw=="})", "expected base64, got '\\'"},
       }) {
    expect_refusal(error(text), ErrorCode::kCorruptData, message);
  }
  expect_refusal(error(R"({"dtype":"uint16"})"), ErrorCode::kWrongType,
                 R"(dtype: expected uint8, int16 or int8, got "uint16")");
  for (const std::string_view text : {"",
                                      " ",
                                      "null",
                                      "[]",
                                      "\"AAECAw==\"",
                                      "7",
                                      "{",
                                      "}",
                                      "{\"shape\"",
                                      "{\"shape\":",
                                      "{\"shape\":[",
                                      "{\"shape\":[1",
                                      R"({"shape":"1,2,2"})",
                                      R"({"shape":[1.5,2,2]})",
                                      R"({"shape":[1e0,2,2]})",
                                      R"({"shape":["1",2,2]})",
                                      R"({"shape":[[1],2,2]})",
                                      R"({"shape":[1,,2]})",
                                      R"({"shape":[1 2]})",
                                      R"({"shape":[1,2,2,]})",
                                      R"({"shape":[1,2,2] "dtype":"uint8"})",
                                      R"({"shape":[1,2,2],})",
                                      R"({"shape":[01,2,2]})",
                                      R"({"dtype":7})",
                                      R"({"data":"AAECAw=="x,"dtype":"uint8","shape":[1,2,2]})",
                                      R"({"data":"AAECAw==,"dtype":"uint8"})",
                                      R"({shape:[1,2,2]})",
                                      "{'shape':[1,2,2]}",
                                      "{\"shape\":[1,2,2],\"dtype\":\"uint8\",\"data\":\"\xff\xfe\"}"}) {
    EXPECT_EQ(error(text).code, ErrorCode::kCorruptData) << text;
  }
  // Quotes that an escape hides from the search for the longest string.
  const std::string much(5000, 'A');
  for (const std::string& text : {R"({"data\"":")" + much + R"(","dtype":"uint8","shape":[1,2,2]})",
                                  R"({"data":")" + much + R"(\"","dtype":"uint8","shape":[1,2,2]})",
                                  R"({"data":"\")" + much + R"(","dtype":"uint8","shape":[1,2,2]})",
                                  R"({"dtype":"uint8)" + much + R"(","data":"AAECAw==","shape":[1,2,2]})",
                                  R"({"data":"AAECAw==" )" + much + R"( ,"dtype":"uint8","shape":[1,2,2]})",
                                  R"({")" + much + R"(":"AAECAw==","dtype":"uint8","shape":[1,2,2]})"}) {
    EXPECT_THAT(error(text).code, testing::AnyOf(ErrorCode::kCorruptData, ErrorCode::kWrongType)) << text;
    EXPECT_LT(error(text).message.size(), 300u);
  }
  EXPECT_EQ(error(std::string(100'000, '[')).code, ErrorCode::kCorruptData);
  EXPECT_EQ(error("{\"shape\":" + std::string(100'000, '[')).code, ErrorCode::kCorruptData);
}

// Texts with random changes are refused, or hold rows that could have been recorded.
RC_GTEST_PROP(WireRandom, ChangedTextsNeverGiveBadRows, ()) {
  const Dialect dialect = *rc::gen::elementOf(kDialects);
  std::string text = good_text(dialect);
  const auto changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    const std::string some = *rc::gen::container<std::string>(
        *rc::gen::inRange(0, 3), rc::gen::elementOf(std::string("AB/+=0\"\\{}[],: x\n\xff")));
    text.replace(at, *rc::gen::inRange<size_t>(0, 3), some);
    if (text.empty()) break;
  }
  const auto routes = decode(text, dialect, dense_spec());
  if (!routes) {
    RC_ASSERT(!routes.error().message.empty());
    return;
  }
  for (int64_t row = 0; row < routes->num_rows(); ++row) {
    const auto ids = routes->row(row);
    RC_ASSERT(ids[0] < std::byte{8});
    RC_ASSERT(ids[1] < std::byte{8});
    RC_ASSERT(ids[0] != ids[1]);
  }
}

}  // namespace
}  // namespace moetape::inline v0::wire
