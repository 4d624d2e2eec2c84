#include "moetape/answer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::HasSubstr;

// Layer 0 is dense.
RouteSpec dense_spec() { return make_spec({.layers = {1}, .top_k = 2, .num_experts = 8, .num_layers = 2}); }
Routes some_routes() { return make_routes(dense_spec(), {0, 1, 2, 3, 4, 5}); }
Routes other_routes() { return make_routes(dense_spec(), {7, 6, 5, 4}); }

std::string text_of(const Routes& routes, Dialect dialect, const EncodeOptions& options = {}) {
  return value_of(encode(routes, dialect, options));
}
std::string quoted(const Routes& routes, Dialect dialect, const EncodeOptions& options = {}) {
  return '"' + text_of(routes, dialect, options) + '"';
}

std::vector<AnswerChoice> read(std::string_view json, const AnswerOptions& options = {}) {
  return value_of(read_answer(json, dense_spec(), options));
}

Error refusal(std::string_view json, const AnswerOptions& options = {}) {
  const auto choices = read_answer(json, dense_spec(), options);
  EXPECT_FALSE(choices) << json;
  return choices ? Error{ErrorCode::kClosed, "no error"} : choices.error();
}

void expect_one(std::string_view json, Dialect dialect) {
  const std::vector<AnswerChoice> choices = read(json);
  ASSERT_EQ(choices.size(), 1u) << json;
  EXPECT_EQ(choices[0].index, 0);
  EXPECT_EQ(choices[0].dialect, dialect) << json;
  ASSERT_TRUE(choices[0].routes.has_value());
  EXPECT_EQ(*choices[0].routes, some_routes()) << json;
}

TEST(Answer, OfVllmHasRoutesInEveryChoice) {
  const std::string json = fmt::format(
      R"({{"id":"cmpl-1","choices":[{{"index":0,"text":"say \"[[1]]\" {{","routed_experts":{},"logprobs":null}},
          {{"routed_experts":{},"index":1,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":3}}}})",
      quoted(some_routes(), Dialect::kVllm), quoted(other_routes(), Dialect::kVllm));
  const std::vector<AnswerChoice> choices = read(json);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(*choices[0].routes, some_routes());
  EXPECT_EQ(*choices[1].routes, other_routes());
  EXPECT_EQ(choices[1].index, 1);
  EXPECT_EQ(choices[1].dialect, Dialect::kVllm);
}

TEST(Answer, OfVllmSplitHasThePromptOnce) {
  const std::string split = text_of(some_routes(), Dialect::kVllmSplit, {.prompt_rows = 2});
  const std::string prompt = split.substr(1, split.find(',') - 1);
  const std::string others = split.substr(split.find(',') + 1, split.size() - split.find(',') - 2);
  expect_one(fmt::format(R"({{"choices":[{{"index":0,{}}}],{}}})", others, prompt), Dialect::kVllmSplit);
  expect_one(fmt::format(R"({{{},"choices":[{{{},"index":0}}]}})", prompt, others), Dialect::kVllmSplit);
  expect_one(fmt::format(R"({{"choices":[{{{},{}}}]}})", prompt, others), Dialect::kVllmSplit);
  expect_one(fmt::format(R"({{"prompt_routed_experts":null,"choices":[{{"routed_experts":{}}}]}})",
                         quoted(some_routes(), Dialect::kVllm)),
             Dialect::kVllm);
}

// case E12: one request on three endpoints.
TEST(Answer, OfSglangIsTheSameOnEveryEndpoint) {
  const std::string text = quoted(some_routes(), Dialect::kSglang);
  const std::string generate =
      fmt::format(R"({{"text":"a","meta_info":{{"id":"1","routed_experts":{}}}}})", text);
  expect_one(generate, Dialect::kSglang);
  expect_one(
      fmt::format(
          R"({{"choices":[{{"index":0,"message":{{"content":"a"}}}}],"sglext":{{"routed_experts":{}}}}})",
          text),
      Dialect::kSglang);
  expect_one(
      fmt::format(R"({{"sglext":{{"routed_experts":{}}},"choices":[{{"index":0,"text":"a"}}]}})", text),
      Dialect::kSglang);
  // The chunk that ends a stream; a gateway's name; a fork that has it in the choice.
  expect_one(fmt::format(R"({{"choices":[],"sglext":{{"routed_experts":{}}}}})", text), Dialect::kSglang);
  expect_one(fmt::format(R"({{"choices":[{{}}],"nvext":{{"routed_experts":{}}}}})", text), Dialect::kSglang);
  expect_one(fmt::format(R"({{"choices":[{{"meta_info":{{"routed_experts":{}}}}}]}})", text),
             Dialect::kSglang);
  const std::vector<AnswerChoice> list = read(fmt::format(
      "[{},{}]", generate,
      fmt::format(R"({{"meta_info":{{"routed_experts":{}}}}})", quoted(other_routes(), Dialect::kSglang))));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(*list[0].routes, some_routes());
  EXPECT_EQ(*list[1].routes, other_routes());
  EXPECT_EQ(list[1].index, 1);
}

TEST(Answer, OfSglangMaySayTheType) {
  const std::string narrow = quoted(some_routes(), Dialect::kSglang, {.type = IntType::kUint8});
  expect_one(fmt::format(R"({{"meta_info":{{"routed_experts":{},"routed_experts_dtype":"uint8"}}}})", narrow),
             Dialect::kSglang);
  expect_one(fmt::format(R"({{"meta_info":{{"routed_experts_dtype":null,"routed_experts":{}}}}})",
                         quoted(some_routes(), Dialect::kSglang)),
             Dialect::kSglang);
  EXPECT_EQ(
      refusal(fmt::format(R"({{"meta_info":{{"routed_experts":{},"routed_experts_dtype":"u8"}}}})", narrow))
          .code,
      ErrorCode::kWrongType);
}

TEST(Answer, OfTheOthers) {
  expect_one(fmt::format(R"({{"generated_text":["a"],"routed_experts":{}}})",
                         text_of(some_routes(), Dialect::kLightllm)),
             Dialect::kLightllm);
  for (const Dialect dialect : {Dialect::kPrimeRl, Dialect::kSkyrl, Dialect::kMegatron}) {
    expect_one(fmt::format(R"({{"choices":[{{"routed_experts":{}}}]}})", text_of(some_routes(), dialect)),
               dialect);
  }
  expect_one(
      fmt::format(R"({{"choices":[{{"routed_experts":{}}}]}})", quoted(some_routes(), Dialect::kNemoRl)),
      Dialect::kNemoRl);
  // Megatron's prompt is a part of the whole.
  expect_one(fmt::format(R"({{"choices":[{{"prompt_moe_topk_indices":{},"moe_topk_indices":{}}}]}})",
                         text_of(*some_routes().slice(0, 2), Dialect::kMegatron),
                         text_of(some_routes(), Dialect::kMegatron)),
             Dialect::kMegatron);
  expect_one(fmt::format(R"({{"choices":[{{"routed_experts":{}}}]}})",
                         text_of(some_routes(), Dialect::kMegatron, {.layers = LayerAxis::kAll})),
             Dialect::kMegatron);
}

// case J04
TEST(Answer, AbsentEmptyAndMissingAreThreeThings) {
  const Routes empty = *Routes::empty(dense_spec(), 0);
  const Routes missing = make_routes(dense_spec(), {0, 1, 0, 0}, {1, 0});
  const std::string json = fmt::format(
      R"({{"choices":[{{"routed_experts":null}},{{}},{{"routed_experts":{}}},{{"routed_experts":{}}},
                  {{"routed_experts":""}}]}})",
      quoted(empty, Dialect::kVllm), quoted(missing, Dialect::kNemoRl));
  const std::vector<AnswerChoice> choices = read(json, {.asked = false});
  ASSERT_EQ(choices.size(), 5u);
  EXPECT_FALSE(choices[0].routes);
  EXPECT_FALSE(choices[0].dialect);
  EXPECT_FALSE(choices[1].routes);
  EXPECT_EQ(choices[2].routes->num_rows(), 0);
  EXPECT_TRUE(choices[2].routes->complete());
  EXPECT_EQ(choices[3].routes->num_rows(), 2);
  EXPECT_EQ(choices[3].routes->num_missing(), 1);
  EXPECT_EQ(choices[4].routes->num_rows(), 0);
}

// case E01
TEST(Answer, ThatLacksWhatWasAskedForNamesTheHop) {
  const Error lost = refusal(R"({"choices":[{"index":0,"text":"a"}]})", {.hop = "router-2"});
  EXPECT_EQ(lost.code, ErrorCode::kMissingRows);
  EXPECT_EQ(lost.message,
            "router-2: choice 0: expected routes, since they were asked for, in routed_experts (also of "
            "meta_info, sglext and nvext) or moe_topk_indices, got none");
  EXPECT_EQ(refusal(R"({"text":"a","meta_info":{"routed_experts":null}})").code, ErrorCode::kMissingRows);
  EXPECT_EQ(refusal(R"({"error":"overloaded"})").code, ErrorCode::kMissingRows);
  EXPECT_THAT(refusal(R"({"choices":[]})").message, HasSubstr("got no choices"));
  // SGLang sends those of the first choice only.
  EXPECT_THAT(
      refusal(fmt::format(R"({{"choices":[{{"index":0}},{{"index":1}}],"sglext":{{"routed_experts":{}}}}})",
                          quoted(some_routes(), Dialect::kSglang)))
          .message,
      HasSubstr("answer: choice 1: expected routes"));
  EXPECT_EQ(read(R"({"choices":[{"index":0,"text":"a"}]})", {.asked = false}).size(), 1u);
}

TEST(Answer, OfMoreChoicesThanAnybodySendsIsRefused) {
  std::string json = "[{}";
  for (int i = 1; i < 65'536; ++i) json += ",{}";
  EXPECT_EQ(read(json + "]", {.asked = false}).size(), 65'536u);
  const Error many = refusal(json + ",{}]", {.asked = false});
  EXPECT_EQ(many.code, ErrorCode::kUnsupported);
  EXPECT_EQ(many.message, "answer: expected at most 65536 choices, got more");
}

// case C06, case C20
TEST(Answer, OptionsAreThoseOfEveryChoice) {
  const std::string json =
      fmt::format(R"({{"meta_info":{{"routed_experts":{}}}}})", quoted(some_routes(), Dialect::kSglang));
  const AnswerOptions options = {.decode = {.start = 4, .num_rows = 3, .version = 2, .known_from = 5}};
  const Routes routes = *read(json, options)[0].routes;
  EXPECT_EQ(routes.start(), 4);
  EXPECT_EQ(routes.num_missing(), 1);
  const Error rows = refusal(json, {.decode = {.num_rows = 6}, .hop = "sglang-0"});
  EXPECT_EQ(rows.code, ErrorCode::kWrongShape);
  EXPECT_EQ(rows.message, "sglang-0: choice 0: meta_info.routed_experts: sglang: rows: expected 6, got 3");
  EXPECT_EQ(refusal(json, {.dialect = Dialect::kVllm}).code, ErrorCode::kCorruptData);
}

TEST(Answer, OfManyMegabytesIsReadInPlace) {
  Ids ids;
  for (int64_t row = 0; row < 5000; ++row) ids.insert(ids.end(), {row % 7, 7});
  const Routes routes = make_routes(dense_spec(), ids);
  const std::string long_text(100'000, 'x');
  for (const Dialect dialect : {Dialect::kSglang, Dialect::kMegatron}) {
    const std::string value =
        dialect == Dialect::kSglang ? quoted(routes, dialect) : text_of(routes, dialect);
    const std::string json = fmt::format(
        R"({{"choices":[{{"text":"{0}\\\"{0}","routed_experts":{1} , "logprobs":[{2}]}}],"x":"{0}"}})",
        long_text, value, fmt::join(std::vector<double>(1000, -0.5), ","));
    const std::vector<AnswerChoice> choices = read(json);
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(*choices[0].routes, routes);
  }
}

// Long lists of integers are not walked, and are no empty lists for it.
TEST(Answer, OfIntegersInPlaceOfChoicesIsRefused) {
  const std::string many = fmt::format("[{}]", fmt::join(std::vector<int>(600, 3), ","));
  for (const std::string& json : {many, "[" + many + "]", R"({"choices":)" + many + "}"}) {
    const Error error = refusal(json, {.asked = false});
    EXPECT_EQ(error.code, ErrorCode::kCorruptData) << json.substr(0, 20);
    EXPECT_THAT(error.message, HasSubstr("answer: character ")) << json.substr(0, 20);
  }
  const std::string spaces(2000, ' ');
  EXPECT_EQ(read(R"({"choices":[)" + spaces + "]}", {.asked = false}).size(), 0u);
  EXPECT_EQ(read(R"({"choices":[{}],"tokens":)" + many + "}", {.asked = false}).size(), 1u);
}

TEST(Answer, ChoicesThatSayNothingStandInOrder) {
  const std::vector<AnswerChoice> choices =
      read(fmt::format(R"({{"choices":[{{}},{{}},{{"routed_experts":{}}},{{}},{{"index":9}},{{}}]}})",
                       quoted(some_routes(), Dialect::kVllm)),
           {.asked = false});
  ASSERT_EQ(choices.size(), 6u);
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i].index, i == 4 ? 9 : static_cast<int64_t>(i));
    EXPECT_EQ(choices[i].routes.has_value(), i == 2) << i;
  }
}

TEST(Answer, RefusesWhatIsNoAnswer) {
  for (const std::string_view text : {"",
                                      "{",
                                      "[",
                                      "7",
                                      "\"AAAA\"",
                                      "null",
                                      "[7]",
                                      "[[1]]",
                                      R"({"choices":7})",
                                      R"({"choices":[7]})",
                                      R"({"choices":[{"index":"0"}]})",
                                      R"({"choices":[{"routed_experts":7}]})",
                                      R"({"choices":[{"routed_experts":true}]})",
                                      R"({"choices":[{"routed_experts":"AA})",
                                      R"({"choices":[{"routed_experts":"AA=="}]} x)",
                                      R"({"choices":[],"choices":[]})",
                                      R"({"choices":[{"routed_experts":"","routed_experts":""}]})",
                                      R"({"choices":[{"routed_experts":""}],"sglext":{"routed_experts":""}})",
                                      R"({"routed_experts":{"start":0)",
                                      R"({"choices":[{"routed_experts":[[[0,1]]}]})"}) {
    const Error error = refusal(text);
    EXPECT_THAT(error.code, testing::AnyOf(ErrorCode::kCorruptData, ErrorCode::kWrongShape)) << text;
    EXPECT_THAT(error.message, HasSubstr("answer: ")) << text;
  }
  EXPECT_THAT(refusal(R"({"choices":[{"routed_experts":"deadbeef00"}]})").message,
              HasSubstr("answer: choice 0: routed_experts: sglang: "));
}

// Answers with random changes are refused, or hold rows that could have been recorded.
RC_GTEST_PROP(AnswerRandom, ChangedAnswersNeverGiveBadRows, ()) {
  const Dialect dialect = *rc::gen::element(Dialect::kPrimeRl, Dialect::kMegatron, Dialect::kSkyrl);
  std::string text =
      fmt::format(R"({{"choices":[{{"index":0,"routed_experts":{}}}],"sglext":{{"routed_experts":null}}}})",
                  text_of(some_routes(), dialect));
  const auto changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    const std::string some = *rc::gen::container<std::string>(
        *rc::gen::inRange(0, 3), rc::gen::elementOf(std::string("AB/+=0\"\\{}[],: x\n\xff")));
    text.replace(at, *rc::gen::inRange<size_t>(0, 3), some);
  }
  const auto choices = read_answer(text, dense_spec());
  if (!choices) RC_SUCCEED("refused");
  for (const AnswerChoice& choice : *choices) {
    for (int64_t row = 0; row < choice.routes->num_rows(); ++row) {
      const auto ids = choice.routes->row(row);
      RC_ASSERT(ids[0] < std::byte{8});
      RC_ASSERT(ids[0] != ids[1]);
    }
  }
}

}  // namespace
}  // namespace moetape::inline v0::wire
