#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "moetape/wire.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

RouteSpec spec_of(int32_t num_experts) {
  return make_spec({.layers = {1, 2, 4}, .top_k = 3, .num_experts = num_experts, .num_layers = 5});
}

// Rows [first, first + count) as decode() gives them.
void expect_rows(RowSource& rows, const Routes& expected, int64_t first, int64_t count) {
  const auto row_bytes = static_cast<size_t>(rows.spec().row_bytes());
  std::vector<std::byte> ids(static_cast<size_t>(count) * row_bytes, std::byte{0xA5});
  std::vector<Reason> reasons(static_cast<size_t>(count), Reason::kTorn);
  expect_ok(rows.pull(first, count, ids.data(), reasons.data()));
  const auto from = static_cast<size_t>(first);
  EXPECT_TRUE(std::ranges::equal(reasons, expected.reasons().subspan(from, reasons.size())));
  EXPECT_TRUE(std::ranges::equal(ids, expected.ids().subspan(from * row_bytes, ids.size())));
}

RC_GTEST_PROP(WireRows, AreThoseOfDecodeInAnyOrder, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  };
  const auto dialect = static_cast<Dialect>(draw(kNumDialects));
  const RouteSpec spec = spec_of(draw(2) == 0 ? 100 : 300);
  const int64_t num_rows = draw(1500);
  std::vector<uint8_t> valid(static_cast<size_t>(num_rows), 1);
  const bool missing = dialect_info(dialect).says_missing;
  for (uint8_t& flag : valid) flag = !missing || draw(4) != 0;
  const Routes routes = make_routes(spec, random_ids(spec, num_rows, random), valid);
  const std::string text = value_of(encode(routes, dialect));

  DecodeOptions options{.start = 5, .known_from = draw(2) == 0 ? 0 : draw(num_rows + 10)};
  if (dialect_info(dialect).says_start) options.start.reset();
  if (dialect != Dialect::kVllmSplit) options.surplus_rows = std::min<int64_t>(draw(3), num_rows);
  const Routes expected = value_of(decode(text, dialect, spec, options));
  const auto rows = value_of(decode_rows(text, dialect, spec, options));
  RC_ASSERT(rows->start() == expected.start());
  RC_ASSERT(rows->num_rows() == expected.num_rows());
  RC_ASSERT(rows->spec() == spec);
  for (int pulls = 0; pulls < 8; ++pulls) {
    const int64_t first = draw(rows->num_rows() + 1);
    expect_rows(*rows, expected, first, draw(rows->num_rows() - first + 1));
  }
  expect_rows(*rows, expected, 0, rows->num_rows());
  std::vector<std::byte> ids(static_cast<size_t>(spec.row_bytes()));
  Reason reason;
  RC_ASSERT(!rows->pull(rows->num_rows(), 1, ids.data(), &reason));
}

RouteSpec wide_spec(int32_t num_experts) {
  return make_spec(
      {.layers = {1, 2, 4, 6, 7, 8, 11}, .top_k = 3, .num_experts = num_experts, .num_layers = 13});
}

RC_GTEST_PROP(WireRows, OfSomeLayersAreTheSameIds, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  };
  const auto dialect = static_cast<Dialect>(draw(kNumDialects));
  const RouteSpec spec = wide_spec(draw(2) == 0 ? 100 : 300);
  const int64_t num_rows = draw(300);
  std::vector<uint8_t> valid(static_cast<size_t>(num_rows), 1);
  const bool missing = dialect_info(dialect).says_missing;
  for (uint8_t& flag : valid) flag = !missing || draw(4) != 0;
  const Routes routes = make_routes(spec, random_ids(spec, num_rows, random), valid);
  const std::string text = value_of(encode(routes, dialect));
  const auto rows = value_of(decode_rows(text, dialect, spec));
  const std::vector<int32_t> layers = draw(2) == 0 ? std::vector<int32_t>{7, 4} : std::vector<int32_t>{11};
  const auto some = value_of(rows->of_layers(layers));
  RC_CLASSIFY(some != nullptr);
  if (some == nullptr) return;

  const RouteSpec& part = some->spec();
  for (int pulls = 0; pulls < 6; ++pulls) {
    const int64_t first = draw(num_rows + 1);
    const int64_t count = draw(num_rows - first + 1);
    std::vector<std::byte> ids(static_cast<size_t>(count * part.row_bytes()), std::byte{0xA5});
    std::vector<Reason> reasons(static_cast<size_t>(count), Reason::kTorn);
    expect_ok(some->pull(first, count, ids.data(), reasons.data()));
    const auto list_bytes = static_cast<size_t>(part.top_k() * part.id_bytes());
    for (int64_t row = 0; row < count; ++row) {
      const auto at = static_cast<size_t>(row);
      RC_ASSERT(reasons[at] == routes.reasons()[static_cast<size_t>(first) + at]);
      for (const int32_t layer : part.layers()) {
        const auto column = static_cast<size_t>(value_of(part.column_of(layer)));
        const auto whole_column = static_cast<size_t>(value_of(spec.column_of(layer)));
        const auto got = std::span(ids).subspan(
            at * static_cast<size_t>(part.row_bytes()) + column * list_bytes, list_bytes);
        RC_ASSERT(
            std::ranges::equal(got, routes.row(first + row).subspan(whole_column * list_bytes, list_bytes)));
      }
    }
  }
}

TEST(WireRows, OfSomeLayersLookAtThoseOnly) {
  const RouteSpec spec = wide_spec(100);
  std::mt19937_64 random(1);
  const Routes routes = make_routes(spec, random_ids(spec, 40, random));
  std::string text =
      value_of(encode(routes, Dialect::kSglang));  // 13 layers of 3 int32: 208 characters a row
  text[20 * 208 + 90] = '/';                       // layer 5 or so: a huge id
  const auto rows = value_of(decode_rows(text, Dialect::kSglang, spec));
  std::vector<std::byte> ids(static_cast<size_t>(40 * spec.row_bytes()));
  std::vector<Reason> reasons(40);
  const std::vector<int32_t> hit = {4, 6};
  const std::vector<int32_t> behind = {7, 8};
  const auto bad = value_of(rows->of_layers(hit));
  expect_error(bad->pull(0, 40, ids.data(), reasons.data()), ErrorCode::kCorruptData,
               "row 20 (position 20), layer 5");
  expect_ok(value_of(rows->of_layers(behind))->pull(0, 40, ids.data(), reasons.data()));
  const std::vector<int32_t> foreign = {5};
  expect_error(rows->of_layers(foreign), ErrorCode::kOutOfRange, "5");
}

TEST(WireRows, AfterAnErrorRowsAreWhereTheyWere) {
  const RouteSpec spec = spec_of(100);
  std::mt19937_64 random(1);
  Ids ids = random_ids(spec, 40, random);
  const Routes routes = make_routes(spec, ids);
  std::string text = value_of(encode(routes, Dialect::kVllm));
  const size_t row_chars = 5 * 3 * 4 / 3;                 // of 5 layers of 3 uint8
  text.replace(text.size() - 20 * row_chars, 4, "////");  // in a row of which other rows come behind
  const auto rows = value_of(decode_rows(text, Dialect::kVllm, spec));
  std::vector<std::byte> out(static_cast<size_t>(40 * spec.row_bytes()));
  std::vector<Reason> reasons(40);
  ASSERT_FALSE(rows->pull(0, 40, out.data(), reasons.data()).has_value());
  expect_rows(*rows, routes, 0, 10);
  ASSERT_FALSE(rows->pull(10, 30, out.data(), reasons.data()).has_value());
  expect_rows(*rows, routes, 30, 10);
}

TEST(WireRows, LooksAtNoRowsButThoseThatArePulled) {
  const RouteSpec spec = spec_of(100);
  std::mt19937_64 random(1);
  const Routes routes = make_routes(spec, random_ids(spec, 40, random));
  for (const Dialect dialect : {Dialect::kSglang, Dialect::kVllm}) {
    std::string text = value_of(encode(routes, dialect));
    const size_t middle = text.size() / 2;
    text[middle] = '!';
    const auto rows = value_of(decode_rows(text, dialect, spec));
    expect_rows(*rows, routes, 0, 10);
    expect_rows(*rows, routes, 30, 10);
    std::vector<std::byte> ids(static_cast<size_t>(20 * spec.row_bytes()));
    std::vector<Reason> reasons(20);
    expect_error(rows->pull(10, 20, ids.data(), reasons.data()), ErrorCode::kCorruptData,
                 "character " + std::to_string(middle));
  }
}

TEST(WireRows, TheHeadIsCheckedAtOnce) {
  const RouteSpec spec = spec_of(100);
  expect_error(decode_rows("AAA", Dialect::kSglang, spec), ErrorCode::kCorruptData, "sglang");
  expect_error(decode_rows("AAAA", Dialect::kSglang, spec), ErrorCode::kWrongShape, "sglang");
  expect_error(decode_rows("AAAA", Dialect::kVllm, spec), ErrorCode::kCorruptData, "vllm");
  expect_error(decode_rows("", Dialect::kSglang, spec, {.num_rows = 1}), ErrorCode::kWrongShape,
               "expected 1");
  expect_error(decode_rows("{}", Dialect::kLightllm, spec), ErrorCode::kCorruptData, "lightllm");
}

}  // namespace
}  // namespace moetape::inline v0
