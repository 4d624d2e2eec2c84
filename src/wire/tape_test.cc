// moetape's own form on the wire: all that routes hold but reasons.
#include "moetape/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moetape/wire.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::array kDialects = {Dialect::kTape, Dialect::kTapeBase64};

RouteSpec small_spec() {
  return make_spec({.layers = {1, 2}, .top_k = 2, .num_experts = 300, .num_layers = 4});
}

Routes some_routes() {
  const std::vector<int16_t> ids = {0, 1, 2, 3, 9, 9, 9, 9, 299, 5, 6, 7};
  const std::vector<uint8_t> valid = {1, 0, 1};
  const std::vector<int32_t> tokens = {11, 12, 13};
  return value_of(Routes::from_ids(small_spec(), 40,
                                   {.ids = ids.data(),
                                    .type = IntType::kInt16,
                                    .num_rows = 3,
                                    .valid = valid,
                                    .version = 7,
                                    .tokens = tokens}));
}

Error refusal(std::string_view form, Dialect dialect, const DecodeOptions& options = {}) {
  const auto routes = decode(form, dialect, small_spec(), options);
  EXPECT_FALSE(routes);
  return routes ? Error{ErrorCode::kClosed, "no error"} : routes.error();
}

TEST(WireTape, HoldsAllButReasons) {
  for (const Dialect dialect : kDialects) {
    const std::string form = value_of(encode(some_routes(), dialect));
    const Routes back = value_of(decode(form, dialect, small_spec(), {.num_rows = 3}));
    EXPECT_EQ(back, some_routes());
    EXPECT_EQ(back.start(), 40);
    EXPECT_THAT(back.tokens(), ElementsAre(11, 12, 13));
    EXPECT_THAT(back.versions(), ElementsAre(VersionRun{40, 41, 7}, VersionRun{42, 43, 7}));
    EXPECT_EQ(back.reasons()[1], Reason::kNotSent);
    const Routes empty = value_of(Routes::empty(small_spec(), 3));
    EXPECT_EQ(value_of(decode(value_of(encode(empty, dialect)), dialect, small_spec())), empty);
  }
  const std::string file = value_of(encode(some_routes(), Dialect::kTape));
  EXPECT_EQ(value_of(encode(some_routes(), Dialect::kTapeBase64)), base64(file));
  // From any address.
  const std::string shifted = "x" + file;
  EXPECT_EQ(value_of(decode(std::string_view(shifted).substr(1), Dialect::kTape, small_spec())),
            some_routes());
}

TEST(WireTape, OptionsAreThoseOfEveryForm) {
  const std::string form = value_of(encode(some_routes(), Dialect::kTape));
  const Routes cut = value_of(
      decode(form, Dialect::kTape, small_spec(), {.num_rows = 2, .known_from = 41, .surplus_rows = 1}));
  EXPECT_THAT(cut.reasons(), ElementsAre(Reason::kNotSent, Reason::kNotSent));
  EXPECT_TRUE(cut.versions().empty());
  EXPECT_EQ(refusal(form, Dialect::kTape, {.start = 0}).message, "tape: start: expected 0, got 40");
  EXPECT_EQ(refusal(form, Dialect::kTape, {.num_rows = 4}).code, ErrorCode::kWrongShape);
  EXPECT_EQ(refusal(form, Dialect::kTape, {.version = 8}).code, ErrorCode::kConflict);
  const Routes plain = make_routes(small_spec(), {0, 1, 2, 3});
  const std::string unversioned = value_of(encode(plain, Dialect::kTape));
  EXPECT_THAT(value_of(decode(unversioned, Dialect::kTape, small_spec(), {.version = 8})).versions(),
              ElementsAre(VersionRun{0, 1, 8}));
  EXPECT_EQ(encoded_size(small_spec(), 3, Dialect::kTape).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(encode(plain, Dialect::kTape, {.type = IntType::kUint16}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(encode(some_routes(), Dialect::kTape, {.missing = MissingFill::kZeros}).error().code,
            ErrorCode::kUnsupported);
  // Rows of a source have neither tokens nor versions.
  RoutesSource source(some_routes());
  const Routes rows =
      value_of(decode(value_of(encode(source, Dialect::kTape)), Dialect::kTape, small_spec()));
  EXPECT_EQ(rows.num_missing(), 1);
  EXPECT_FALSE(rows.has_tokens());
}

TEST(WireTape, RefusesOthers) {
  const std::string form = value_of(encode(some_routes(), Dialect::kTape));
  const RouteSpec other = make_spec({.layers = {1, 3}, .top_k = 2, .num_experts = 300, .num_layers = 4});
  EXPECT_EQ(decode(form, Dialect::kTape, other).error().code, ErrorCode::kSpecMismatch);
  const RouteSpec repeating =
      make_spec({.layers = {1, 2}, .top_k = 2, .num_experts = 300, .distinct = false, .num_layers = 4});
  const std::string twice = value_of(encode(make_routes(repeating, {9, 9, 8, 8}), Dialect::kTape));
  EXPECT_TRUE(decode(twice, Dialect::kTape, repeating));
  EXPECT_EQ(refusal(twice, Dialect::kTape).code, ErrorCode::kSpecMismatch);
  const std::vector<Routes> two = {some_routes(), some_routes()};
  const Buffer bytes = value_of(tape_bytes(small_spec(), two));
  const std::string_view both(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(bytes.size()));
  EXPECT_EQ(refusal(both, Dialect::kTape).message, "tape: sequences: expected 1, got 2");
  const std::array<int64_t, 3> shape = {1, 2, 2};
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  EXPECT_EQ(decode_array(ids.data(), IntType::kInt32, shape, Dialect::kTape, small_spec()).error().code,
            ErrorCode::kUnsupported);
  std::string out(10, '\0');
  RoutesSource source(some_routes());
  EXPECT_EQ(encode_into(source, Dialect::kTape, out).error().code, ErrorCode::kCapacity);
}

// case E03
TEST(WireTape, CutOrChangedAnywhereIsRefused) {
  for (const Dialect dialect : kDialects) {
    const std::string form = value_of(encode(some_routes(), dialect));
    for (size_t size = 0; size < form.size(); ++size) refusal(form.substr(0, size), dialect);
    for (size_t at = 0; at < form.size(); ++at) {
      std::string changed = form;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      EXPECT_FALSE(decode(changed, dialect, small_spec())) << at;
    }
  }
}

}  // namespace
}  // namespace moetape::inline v0::wire
