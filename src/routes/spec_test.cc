#include "moetape/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "base/fail.h"
#include "base/test_util.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

RouteSpecFields deepseek() {
  std::vector<int32_t> layers(58);
  std::iota(layers.begin(), layers.end(), 3);
  return {.layers = layers, .top_k = 8, .num_experts = 256};
}

void expect_refused(const RouteSpecFields& fields, const std::string& words) {
  expect_error(RouteSpec::create(fields), ErrorCode::kInvalidArgument, words);
}

TEST(RouteSpec, SaysSizes) {
  const RouteSpec spec = *RouteSpec::create(deepseek());
  EXPECT_EQ(spec.num_moe_layers(), 58);
  EXPECT_EQ(spec.num_layers(), 61);
  EXPECT_EQ(spec.row_bytes(), 464);
  EXPECT_EQ(spec.row_stride(), 464);
  EXPECT_EQ((*spec.with_layers({3, 4, 5})).row_stride(), 32);
}

// case D01: the width follows the number of experts, never the data.
// case K05: 48 layers of 8 ids are 384 bytes a token.
TEST(RouteSpec, WidthFollowsTheNumberOfExperts) {
  const auto id_bytes = [](int32_t num_experts) {
    return (*RouteSpec::create({.layers = {0}, .top_k = 1, .num_experts = num_experts})).id_bytes();
  };
  EXPECT_EQ(id_bytes(1), 1);
  EXPECT_EQ(id_bytes(256), 1);
  EXPECT_EQ(id_bytes(257), 2);
  EXPECT_EQ(id_bytes(65'536), 2);
  expect_refused({.layers = {0}, .top_k = 1, .num_experts = 65'537},
                 "num_experts: expected 1 to 65536, got 65537");
  std::vector<int32_t> layers(48);
  std::iota(layers.begin(), layers.end(), 0);
  EXPECT_EQ((*RouteSpec::create({.layers = layers, .top_k = 8, .num_experts = 128})).row_bytes(), 384);
}

// case J01: a dense model has no spec.
TEST(RouteSpec, RefusesWhatIsNoSpec) {
  expect_refused({.layers = {}, .top_k = 2, .num_experts = 8}, "layers: expected at least one");
  expect_refused({.layers = {0}, .top_k = 2, .num_experts = 0}, "num_experts: expected 1 to 65536, got 0");
  expect_refused({.layers = {0}, .top_k = 0, .num_experts = 8}, "top_k: expected 1 to 8");
  expect_refused({.layers = {0}, .top_k = 9, .num_experts = 8}, "got 9");
  expect_refused({.layers = {1, 1}, .top_k = 2, .num_experts = 8}, "got 1 after 1");
  expect_refused({.layers = {4, 2}, .top_k = 2, .num_experts = 8}, "got 2 after 4");
  expect_refused({.layers = {-1}, .top_k = 2, .num_experts = 8}, "got -1 after the beginning");
  expect_refused({.layers = {kMost}, .top_k = 2, .num_experts = 8}, "layers");
  expect_refused({.layers = {0, 5}, .top_k = 2, .num_experts = 8, .num_layers = 5},
                 "num_layers: expected at least 6");
  expect_refused({.layers = {0}, .top_k = 2, .num_experts = 8, .num_layers = -1}, "num_layers");
  expect_refused({.layers = {0}, .top_k = 2, .num_experts = 8, .shared_columns = -1}, "shared_columns");
  expect_refused({.stack = "", .layers = {0}, .top_k = 2, .num_experts = 8}, "stack");
  expect_refused({.layers = {0}, .top_k = kMost, .num_experts = 8, .distinct = false},
                 "top_k: expected 1 to 65536");
  EXPECT_TRUE(RouteSpec::create({.layers = {0}, .top_k = 9, .num_experts = 8, .distinct = false}));
  EXPECT_TRUE(RouteSpec::create({.layers = {kMost - 1}, .top_k = 2, .num_experts = 8}));
}

// case G01: three dense layers; layer 4 is column 1 of a row of MoE layers.
// case G02
// case G11: a layer that is not in the spec has no column, so no zeros can stand for it.
// case G16: the spec lists decoder indices; columns are indices into that list.
TEST(RouteSpec, FindsColumnsByGlobalLayer) {
  const RouteSpec spec = *RouteSpec::create({.layers = {3, 4, 5}, .top_k = 2, .num_experts = 8});
  EXPECT_EQ(spec.num_layers(), 6);
  for (int32_t column = 0; column < spec.num_moe_layers(); ++column) {
    EXPECT_EQ(*spec.column_of(spec.layers()[static_cast<size_t>(column)]), column);
  }
  EXPECT_EQ(*spec.column_of(4), 1);
  for (const int32_t layer : {0, 2, 6, -1, kMost}) {
    const Result<int32_t> column = spec.column_of(layer);
    ASSERT_FALSE(column);
    EXPECT_EQ(column.error().code, ErrorCode::kOutOfRange);
    EXPECT_EQ(column.error().message, fmt::format("layer: expected one of [3, 4, 5], got {}", layer));
  }
  const RouteSpec hybrid =
      *RouteSpec::create({.layers = {1, 2}, .top_k = 2, .num_experts = 8, .num_layers = 3});
  EXPECT_EQ(hybrid.num_moe_layers(), 2);
}

TEST(RouteSpec, TakesSomeLayersForAStage) {
  RouteSpecFields fields = deepseek();
  fields.model = "a model";
  const RouteSpec whole = *RouteSpec::create(fields);
  const RouteSpec stage = *whole.with_layers({3, 60});
  EXPECT_THAT(stage.layers(), ElementsAre(3, 60));
  EXPECT_EQ(stage.num_layers(), 61);
  EXPECT_EQ(stage.fields().model, "a model");
  EXPECT_NE(stage.fingerprint(), whole.fingerprint());
  EXPECT_EQ(whole.with_layers({2}).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(whole.with_layers({5, 4}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(whole.with_layers({}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(*whole.with_layers(fields.layers), whole);
}

// case G12: a hash-routed layer is left out on purpose and says why.
TEST(RouteSpec, NamesExcludedLayers) {
  const RouteSpecFields fields = {.layers = {1, 2}, .top_k = 2, .num_experts = 8, .excluded = {{0, "hash"}}};
  EXPECT_EQ((*RouteSpec::create(fields)).fields().excluded.at(0), "hash");
  RouteSpecFields recorded = fields;
  recorded.excluded = {{1, "hash"}};
  expect_refused(recorded, "excluded: expected layers that are not recorded, got 1 (hash)");
  RouteSpecFields outside = fields;
  outside.excluded = {{3, "hash"}};
  expect_refused(outside, "excluded: expected layers in [0, 3), got 3 (hash)");
}

TEST(RouteSpec, FingerprintStandsForWhatRowsMean) {
  const RouteSpec base = *RouteSpec::create(deepseek());
  const auto changed = [](auto change) {
    RouteSpecFields fields = deepseek();
    change(fields);
    return *RouteSpec::create(fields);
  };
  for (const RouteSpec& other : {changed([](RouteSpecFields& f) { f.stack = "mtp"; }),
                                 changed([](RouteSpecFields& f) { f.layers.pop_back(), f.num_layers = 61; }),
                                 changed([](RouteSpecFields& f) { f.top_k = 7; }),
                                 changed([](RouteSpecFields& f) { f.num_experts = 255; }),
                                 changed([](RouteSpecFields& f) { f.num_layers = 62; })}) {
    EXPECT_NE(other.fingerprint(), base.fingerprint());
    EXPECT_NE(other, base);
  }
  for (const RouteSpec& other : {changed([](RouteSpecFields& f) { f.model = "x"; }),
                                 changed([](RouteSpecFields& f) { f.distinct = false; }),
                                 changed([](RouteSpecFields& f) { f.shared_columns = 1; }),
                                 changed([](RouteSpecFields& f) { f.excluded[0] = "hash"; })}) {
    EXPECT_EQ(other.fingerprint(), base.fingerprint());
    EXPECT_NE(other, base);
  }
  EXPECT_EQ(changed([](RouteSpecFields&) {}), base);
}

// It travels, so it may never change: XXH3_64bits as Python's xxhash gives it for the same bytes.
TEST(RouteSpec, FingerprintNeverChanges) {
  EXPECT_EQ((*RouteSpec::create(deepseek())).fingerprint(), 0x2f42b55347b4a45du);
  EXPECT_EQ(
      (*RouteSpec::create({.stack = "mtp", .layers = {0}, .top_k = 2, .num_experts = 512, .num_layers = 9}))
          .fingerprint(),
      0x0df2ce953eae4afdu);
}

// case G09: the rows of a draft stack are not the target's, though their shape is the same.
TEST(CheckSameSpec, NamesWhatDiffersFirst) {
  const RouteSpec target = *RouteSpec::create({.layers = {0, 1}, .top_k = 2, .num_experts = 8});
  const auto message = [&](RouteSpecFields fields) {
    const Status same = check_same_spec("other", target, *RouteSpec::create(std::move(fields)));
    EXPECT_FALSE(same);
    if (same) return std::string();
    EXPECT_EQ(same.error().code, ErrorCode::kSpecMismatch);
    return same.error().message;
  };
  const RouteSpec draft =
      *RouteSpec::create({.stack = "draft", .layers = {0, 1}, .top_k = 2, .num_experts = 8});
  EXPECT_EQ(
      message(draft.fields()),
      fmt::format("other: expected routes of spec {:016x}, got spec {:016x}: stack \"target\" and \"draft\"",
                  target.fingerprint(), draft.fingerprint()));
  EXPECT_THAT(message({.layers = {0, 2}, .top_k = 2, .num_experts = 8}),
              HasSubstr("layers [0, 1] and [0, 2]"));
  EXPECT_THAT(message({.layers = {0, 1}, .top_k = 3, .num_experts = 9}), HasSubstr("top_k 2 and 3"));
  EXPECT_THAT(message({.layers = {0, 1}, .top_k = 2, .num_experts = 9}), HasSubstr("num_experts 8 and 9"));
  EXPECT_THAT(message({.layers = {0, 1}, .top_k = 2, .num_experts = 8, .num_layers = 3}),
              HasSubstr("num_layers 2 and 3"));
  EXPECT_TRUE(check_same_spec("other", target, target));
}

TEST(CommonSpec, PromisesOnlyWhatBothPromise) {
  const RouteSpecFields fields = {.layers = {0, 1}, .top_k = 2, .num_experts = 8, .model = "first"};
  RouteSpecFields loose_fields = fields;
  loose_fields.distinct = false;
  loose_fields.model = "second";
  const RouteSpec strict = *RouteSpec::create(fields);
  const RouteSpec loose = *RouteSpec::create(loose_fields);
  EXPECT_EQ(common_spec(strict, strict), strict);
  EXPECT_EQ(common_spec(loose, strict), loose);
  EXPECT_FALSE(common_spec(strict, loose).distinct());
  EXPECT_EQ(common_spec(strict, loose).fields().model, "first");
}

}  // namespace
}  // namespace moetape::inline v0
