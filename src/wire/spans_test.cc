#include "moetape/spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "moetape/wire.h"
#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RouteSpec small_spec() { return make_spec({.layers = {0}, .top_k = 2, .num_experts = 8}); }

// Row i of a request, made of its position.
Routes rows(int64_t start, int64_t end, int64_t salt = 0) {
  Ids ids;
  for (int64_t position = start; position < end; ++position) {
    ids.push_back((position + salt) % 8);
    ids.push_back((position + salt + 1) % 8);
  }
  return make_routes(small_spec(), ids, {}, start);
}

template <class T>
Error error_of(const Result<T>& result) {
  EXPECT_FALSE(result);
  return result ? Error{ErrorCode::kClosed, "no error"} : result.error();
}

// case B11
TEST(Splice, TakesThePromptFromThePrefillWorker) {
  // Prompt of 4, 3 generated: the decode worker sends 6 rows, of which it does not know the first 4.
  Ids ids(8, 0);
  for (const int64_t id : {1, 2, 3, 4}) ids.push_back(id);
  const std::string text = base64(raw_ids(small_spec(), ids, true, 4));
  const Routes decoded = *decode(text, Dialect::kSglang, small_spec(), {.num_rows = 6, .known_from = 4});
  // Widths differ: the prefill worker sends one byte an id.
  const std::string prompt = *encode(rows(0, 4), Dialect::kSglang, {.type = IntType::kUint8});
  const Routes prefill = *decode(prompt, Dialect::kSglang, small_spec(), {.type = IntType::kUint8});
  const Routes merged = *splice(prefill, decoded, 4);
  EXPECT_EQ(merged.num_rows(), 6);
  EXPECT_TRUE(merged.complete());
  EXPECT_EQ(*merged.slice(0, 4), rows(0, 4));
  EXPECT_EQ(*merged.slice(4, 6), make_routes(small_spec(), {1, 2, 3, 4}, {}, 4));
}

// case B11
TEST(Splice, RefusesRecordsThatDiffer) {
  EXPECT_EQ(*splice(rows(0, 4), rows(0, 6), 4), rows(0, 6));
  EXPECT_EQ(*splice(rows(0, 4), rows(4, 6), 4), rows(0, 6));
  const Error conflict = error_of(splice(rows(0, 4), rows(0, 6, 3), 4));
  EXPECT_EQ(conflict.code, ErrorCode::kConflict);
  EXPECT_THAT(conflict.message, HasSubstr("position 0, layer 0"));
}

TEST(Splice, RefusesAnswersThatDoNotMeet) {
  EXPECT_EQ(error_of(splice(rows(0, 3), rows(0, 6), 4)).message,
            "prefill: expected rows up to position 4, got up to 3");
  EXPECT_EQ(error_of(splice(rows(0, 4), rows(5, 6), 4)).code, ErrorCode::kWrongShape);
  EXPECT_EQ(error_of(splice(rows(0, 4), rows(0, 3), 4)).code, ErrorCode::kWrongShape);
  const Routes holes = make_routes(small_spec(), {0, 1, 2, 3}, {1, 0});
  EXPECT_EQ(error_of(splice(holes, rows(0, 4), 2)).code, ErrorCode::kMissingRows);
}

// case C15, case C08
TEST(Resume, AppendsWhatTheHistoryLacks) {
  // The continuation was computed under other weights: the history's rows stay.
  const Routes joined = *resume(rows(0, 6), rows(0, 9, 3));
  EXPECT_EQ(*joined.slice(0, 6), rows(0, 6));
  EXPECT_EQ(*joined.slice(6, 9), *rows(0, 9, 3).slice(6, 9));
  EXPECT_EQ(*resume(rows(0, 6), rows(0, 5)), rows(0, 6));
  EXPECT_EQ(error_of(resume(rows(0, 6), rows(0, 4))).message,
            "continuation: expected 5 rows or more, since the history has 6, got 4");
  EXPECT_EQ(error_of(resume(rows(0, 6), rows(1, 9))).code, ErrorCode::kWrongShape);
  EXPECT_EQ(resume(rows(0, 5), rows(0, 8))->num_rows(), 8);
}

// case C14
TEST(Align, CountsMissingAndSurplusRowsApart) {
  // Prompt rows and generated rows against 8 tokens; padding is no token.
  const Routes seven = *rows(0, 4).extend(rows(4, 7));
  EXPECT_EQ(*align(seven, 8), (Alignment{.expected = 7, .found = 7}));
  EXPECT_TRUE(align(seven, 8)->complete());
  EXPECT_EQ(*align(*rows(0, 4).extend(rows(4, 6)), 8), (Alignment{.expected = 7, .found = 6, .missing = 1}));
  EXPECT_EQ(*align(seven, 0), (Alignment{.surplus = 7}));
  EXPECT_EQ(*align(rows(0, 0), 0), Alignment{});
  EXPECT_EQ(*align(rows(2, 9), 8), (Alignment{.expected = 7, .found = 5, .missing = 2, .surplus = 2}));
  EXPECT_EQ(*align(rows(2, 9), 8, 5), (Alignment{.expected = 2, .found = 2, .surplus = 5}));
  const Routes holes = make_routes(small_spec(), {0, 1, 2, 3, 4, 5}, {1, 0, 1});
  EXPECT_EQ(*align(holes, 4), (Alignment{.expected = 3, .found = 2, .missing = 1}));
  EXPECT_EQ(error_of(align(seven, -1)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(align(seven, 8, -1)).code, ErrorCode::kInvalidArgument);
}

// case C17
TEST(Fit, TakesTheLengthFromTheTokens) {
  const Routes stored = *rows(0, 3).extend(rows(5, 6));
  const Routes fitted = *fit(stored, 7);
  EXPECT_EQ(fitted.num_rows(), 6);
  EXPECT_THAT(fitted.reasons(), ElementsAre(Reason::kValid, Reason::kValid, Reason::kValid, Reason::kGap,
                                            Reason::kGap, Reason::kValid));
  const Routes tail = *fit(rows(0, 4), 7);
  EXPECT_EQ(tail.num_rows(), 6);
  EXPECT_EQ(tail.num_missing(), 2);
  EXPECT_EQ(*fit(rows(0, 6), 7), rows(0, 6));
}

// case C04, case C20
TEST(Fit, RefusesRowsOfNoToken) {
  EXPECT_EQ(error_of(fit(rows(0, 7), 7)).message, "rows: expected some of [0, 6), got [0, 7)");
  EXPECT_EQ(error_of(fit(rows(0, 3), 7, 2)).code, ErrorCode::kWrongShape);
  EXPECT_EQ(fit(rows(3, 5), 7, 2)->num_missing(), 2);
  EXPECT_EQ(fit(rows(0, 0), 3)->num_missing(), 2);
  EXPECT_EQ(fit(rows(9, 9), 10, 9)->num_rows(), 0);
}

// case C12
TEST(RouteStream, TakesChunksOfAnyTokens) {
  RouteStream stream = *RouteStream::create(small_spec(), 1);
  ASSERT_TRUE(stream.add(2, rows(0, 2)));
  EXPECT_EQ(stream.next(), 2);
  ASSERT_TRUE(stream.add(1, rows(2, 3)));
  EXPECT_EQ(*stream.finish(), rows(0, 3));

  RouteStream coalesced = *RouteStream::create(small_spec(), 1);
  ASSERT_TRUE(coalesced.add(3, rows(0, 3)));
  EXPECT_EQ(*coalesced.finish(), rows(0, 3));
}

// case C12
TEST(RouteStream, RefusesAllRowsBesideNewTokensOnly) {
  RouteStream stream = *RouteStream::create(small_spec(), 1);
  ASSERT_TRUE(stream.add(2, rows(0, 2)));
  // As a form without a start is read: from where the rows go on.
  const auto cumulative = stream.add(1, rows(2, 5));
  ASSERT_FALSE(cumulative);
  EXPECT_EQ(cumulative.error().code, ErrorCode::kWrongShape);
  EXPECT_THAT(cumulative.error().message,
              HasSubstr("chunk: expected at most 1 rows, up to position 3 of 4 tokens, got 3"));
  // And where the form says the start.
  const auto again = stream.add(1, rows(0, 3));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, "chunk: expected rows from position 2 on, got from 0");
  // Nothing was taken: the stream goes on.
  ASSERT_TRUE(stream.add(1, rows(2, 3)));
  EXPECT_EQ(*stream.finish(), rows(0, 3));
}

// case E10
TEST(RouteStream, HoldsEveryRowOnce) {
  // Three chunks and a last one that brings the rows of tokens that came without.
  RouteStream stream = *RouteStream::create(small_spec(), 4);
  ASSERT_TRUE(stream.add(1, rows(0, 4)));
  ASSERT_TRUE(stream.add(2));
  ASSERT_TRUE(stream.add(1, rows(4, 5)));
  EXPECT_EQ(error_of(stream.finish()).message,
            "stream: expected rows up to position 7 of 8 tokens, got up to 5");
  EXPECT_FALSE(stream.add(0, rows(6, 7)));
  ASSERT_TRUE(stream.add(0, rows(5, 7)));
  EXPECT_EQ(*stream.finish(), rows(0, 7));
}

TEST(RouteStream, StartsWhereItWasAskedTo) {
  RouteStream stream = *RouteStream::create(small_spec(), 4, 3);
  EXPECT_EQ(stream.next(), 3);
  ASSERT_TRUE(stream.add(2, rows(3, 5)));
  EXPECT_EQ(*stream.finish(), rows(3, 5));
  RouteStream none = *RouteStream::create(small_spec(), 4, 4);
  ASSERT_TRUE(none.add(1));
  EXPECT_EQ(none.finish()->num_rows(), 0);
  EXPECT_EQ(none.finish()->start(), 4);
  EXPECT_EQ(error_of(RouteStream::create(small_spec(), 0)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(RouteStream::create(small_spec(), 4, 5)).code, ErrorCode::kOutOfRange);
  EXPECT_FALSE(stream.add(-1));
  const RouteSpec other = make_spec({.layers = {1}, .top_k = 2, .num_experts = 8});
  const auto mixed = stream.add(1, make_routes(other, {0, 1}, {}, 5));
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::kSpecMismatch);
}

// case E07
TEST(Pack, HasAnOffsetPerSequence) {
  const Packed packed = *pack(std::vector{rows(0, 3), rows(7, 7), rows(2, 7)});
  EXPECT_THAT(packed.offsets, ElementsAre(0, 3, 3, 8));
  EXPECT_EQ(packed.rows.num_rows(), 8);
  const Routes second = *packed.rows.slice(packed.offsets[1], packed.offsets[2]);
  EXPECT_EQ(second.num_rows(), 0);
  EXPECT_TRUE(second.complete());
  const Routes third = *packed.rows.slice(3, 8);
  EXPECT_TRUE(std::ranges::equal(third.ids(), rows(2, 7).ids()));
  EXPECT_EQ(error_of(pack({})).code, ErrorCode::kInvalidArgument);
}

TEST(Pack, KeepsMissingRowsAndVersions) {
  const std::vector<int64_t> ids = {0, 1, 2, 3};
  const std::vector<uint8_t> valid = {0, 1};
  const Routes routes = *Routes::from_ids(
      small_spec(), 5,
      {.ids = ids.data(), .type = IntType::kInt64, .num_rows = 2, .valid = valid, .version = 4});
  const Packed packed = *pack(std::vector{rows(0, 1), routes});
  EXPECT_THAT(packed.rows.reasons(), ElementsAre(Reason::kValid, Reason::kNotSent, Reason::kValid));
  EXPECT_THAT(packed.rows.versions(), ElementsAre(VersionRun{2, 3, 4}));
}

// Any grouping of a stream's rows into chunks gives the same rows.
RC_GTEST_PROP(RouteStreamRandom, ChunksJoinInAnyGrouping, ()) {
  const int64_t prompt = *rc::gen::inRange<int64_t>(1, 6);
  const int64_t start = *rc::gen::inRange<int64_t>(0, prompt + 1);
  const int64_t generated = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t end = std::max(start, prompt + generated - 1);
  RouteStream stream = value_of(RouteStream::create(small_spec(), prompt, start));
  int64_t sent = 0;
  while (sent < generated) {
    const int64_t tokens = *rc::gen::inRange<int64_t>(1, generated - sent + 1);
    sent += tokens;
    const int64_t known = std::max(start, prompt + sent - 1);
    const int64_t up_to = *rc::gen::inRange<int64_t>(stream.next(), known + 1);
    const bool last = sent == generated;
    expect_ok(stream.add(tokens, rows(stream.next(), last ? end : up_to)));
  }
  RC_ASSERT(value_of(stream.finish()) == rows(start, end));
}

}  // namespace
}  // namespace moetape::inline v0::wire
