#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moetape/wire.h"
#include "routes/test_routes.h"
#include "wire/test_bytes.h"

namespace moetape::inline v0::wire {
namespace {

using testing::Contains;
using testing::HasSubstr;

Routes some_routes() {
  Ids ids;
  for (int i = 0; i < 500; ++i) ids.insert(ids.end(), {1, 2, 3, 4});
  return make_routes(make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}), ids);
}

TEST(Sniff, TellsEveryFormThatCanBeTold) {
  std::vector<Dialect> dialects = all_dialects();
  dialects.insert(dialects.end(), {Dialect::kTape, Dialect::kTapeBase64});
  for (const Dialect dialect : dialects) {
    if (dialect_info(dialect).kind == FormKind::kArray) continue;
    const std::string form = value_of(encode(some_routes(), dialect, {.prompt_rows = 3}));
    const Sniffed sniffed = value_of(sniff(form));
    EXPECT_THAT(sniffed.dialects, Contains(dialect)) << dialect_name(dialect);
    EXPECT_FALSE(sniffed.answer);
    bool reads_it = false;
    for (const Dialect may : sniffed.dialects) {
      const auto back = decode(form, may, some_routes().spec());
      reads_it = reads_it || (back && *back == some_routes());
    }
    EXPECT_TRUE(reads_it) << dialect_name(dialect);
  }
}

TEST(Sniff, TellsAnswers) {
  for (const std::string_view text :
       {R"({"id":"x","choices":[]})", R"({"text":"a","meta_info":{}})", R"( [ {"meta_info":{}} ])",
        R"({"routed_experts":null,"count":3})", R"({"moe_topk_indices":[]})"}) {
    EXPECT_TRUE(value_of(sniff(text)).answer) << text;
  }
}

TEST(Sniff, SaysWhatElseItSaw) {
  const auto seen = [](std::string_view bytes) {
    const auto sniffed = sniff(bytes);
    EXPECT_FALSE(sniffed) << bytes;
    return sniffed ? std::string() : sniffed.error().message;
  };
  EXPECT_EQ(seen(""), "sniff: expected a form or an answer, got nothing");
  EXPECT_THAT(seen(" \n"), HasSubstr("got white space only"));
  EXPECT_THAT(seen({"\x1f\x8b\x08\x00", 4}), HasSubstr("got a gzip file"));
  EXPECT_THAT(seen({"\x28\xb5\x2f\xfd", 4}), HasSubstr("got a zstd file"));
  EXPECT_THAT(seen(R"({"error":"no","code":5})"),
              HasSubstr(R"(got a JSON object of the keys "error, code")"));
  EXPECT_THAT(seen("[1,2]"), HasSubstr("got a JSON list that begins with '1'"));
  EXPECT_THAT(seen("["), HasSubstr("the end of the text"));
  EXPECT_THAT(seen({"\0\1\2", 3}), HasSubstr("got 3 bytes that begin with byte 0x00"));
  EXPECT_THAT(seen("hello, world"), HasSubstr("got 12 bytes that begin with 'h'"));
  EXPECT_THAT(seen("{\"a\":"), HasSubstr("sniff: "));
  EXPECT_THAT(seen("===="), HasSubstr("begin with '='"));
}

}  // namespace
}  // namespace moetape::inline v0::wire
