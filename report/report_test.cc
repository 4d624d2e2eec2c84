#include "moetape/report.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/test_util.h"
#include "json.h"
#include "page.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

using report::JsonWriter;
using testing::HasSubstr;
using testing::Not;

RouteSpec small_spec() { return make_spec({.layers = {1, 3}, .top_k = 2, .num_experts = 4, .model = "m"}); }

ReportRecord record_of(const Routes& routes, std::string name) {
  Stats stats = value_of(Stats::create(routes.spec()));
  expect_ok(stats.add(routes));
  return {.name = std::move(name), .stats = std::move(stats)};
}

// Three rows; the last is missing in the first record, and row 1 is rerouted at layer 3.
ReportData two_records() {
  const RouteSpec spec = small_spec();
  const Routes first = make_routes(spec, {0, 1, 2, 3, 0, 2, 2, 3, 0, 0, 0, 0}, {1, 1, 0});
  const Routes second = make_routes(spec, {0, 1, 2, 3, 0, 2, 2, 1, 0, 1, 2, 3});
  ReportData data{.records = {record_of(first, "a.tape"), record_of(second, "b.tape")},
                  .comparison = value_of(Comparison::create(spec))};
  expect_ok(data.comparison->add(first, second));
  return data;
}

std::string page_of(const ReportData& data) { return value_of(render_report(data)); }

std::string json_of(const std::string& text) {
  JsonWriter json;
  json.text(text);
  return std::move(json).take();
}

std::string page_about(const Routes& rollout, const Routes& training) {
  // docs/report.md shows this.
  Stats first = value_of(Stats::create(rollout.spec()));
  Stats second = value_of(Stats::create(training.spec()));
  Comparison comparison = value_of(Comparison::create(rollout.spec()));
  expect_ok(first.add(rollout));  // and so on, sequence by sequence
  expect_ok(second.add(training));
  expect_ok(comparison.add(rollout, training));

  const ReportData data = {
      .records = {{.name = "rollout", .stats = first}, {.name = "training", .stats = second}},
      .comparison = comparison,
      .token_text = {{464, "The"}, {290, " and"}}};
  return value_of(render_report(data));  // to be written to report.html
}

TEST(Report, ComesFromStatsAndAComparison) {
  const RouteSpec spec = small_spec();
  const int32_t tokens[] = {464, 290};
  const Routes rollout = value_of(make_routes(spec, {0, 1, 2, 3, 0, 2, 2, 3}).with_tokens(tokens));
  const Routes training = value_of(make_routes(spec, {0, 1, 2, 3, 0, 2, 2, 1}).with_tokens(tokens));
  const std::string page = page_about(rollout, training);
  EXPECT_THAT(page, HasSubstr("<title>rollout and training</title>"));
  EXPECT_THAT(page, HasSubstr("\"tokens\":[[290,\" and\",[1,1,1,2,1,1,4,3]]]"));
}

TEST(Report, HoldsTheNumbersOfTheRecords) {
  const std::string page = page_of(two_records());
  EXPECT_THAT(page, HasSubstr("\"load\":[[2,1,1,0],[0,0,2,2]]"));
  EXPECT_THAT(page, HasSubstr("\"load\":[[3,2,1,0],[0,1,3,2]]"));
  EXPECT_THAT(page, HasSubstr("\"rows\":3,\"valid\":2,\"missing\":[[\"not_sent\",1]]"));
  EXPECT_THAT(page, HasSubstr("\"by_layer\":[[2,0,0,2,0,0,4,4],[2,1,1,2,1,1,4,3]]"));
  EXPECT_THAT(page, HasSubstr("\"only_a\":0,\"only_b\":1"));
  EXPECT_THAT(page, HasSubstr("\"position\":1,\"token\":null,\"text\":null,\"rerouted\":1"));
}

TEST(Report, FillsEveryPlaceOfItsTemplateAndNoOther) {
  ReportData data = two_records();
  data.title = "{{data}} {{nothing}}";
  const std::string page = page_of(data);
  EXPECT_THAT(page, HasSubstr("<title>{{data}} {{nothing}}</title>"));
  EXPECT_THAT(page, Not(HasSubstr("{{title}}")));
  EXPECT_THAT(page, HasSubstr(std::string(report::kScript.text)));
  EXPECT_THAT(page, HasSubstr(std::string(report::kStyle.text)));
}

TEST(Report, IsNamedAfterItsRecordsUnlessItHasATitle) {
  ReportData data = two_records();
  EXPECT_THAT(page_of(data), HasSubstr("<title>a.tape and b.tape</title>"));
  data.comparison.reset();
  data.records.pop_back();
  EXPECT_THAT(page_of(data), HasSubstr("<title>a.tape</title>"));
}

TEST(Report, GivesTheSameBytesForTheSameData) { EXPECT_EQ(page_of(two_records()), page_of(two_records())); }

TEST(Report, SaysNullForWhatIsNotKnown) {
  const RouteSpec spec = small_spec();
  const ReportData data{.records = {record_of(make_routes(spec, {}), "empty.tape")}};
  const std::string page = page_of(data);
  EXPECT_THAT(page, HasSubstr("\"load\":[null,null]"));
  EXPECT_THAT(page, HasSubstr("\"file_bytes\":null"));
  EXPECT_THAT(page, HasSubstr("\"reuse\":[null,null]"));
  EXPECT_THAT(page, HasSubstr("\"comparison\":null"));
}

TEST(Report, TakesVersionsTogetherWhenThereAreMany) {
  ReportData data = two_records();
  Comparison& comparison = *data.comparison;
  comparison.by_version.clear();
  comparison.by_version[{{}, {}}] = {.num_rows = 7};
  for (uint32_t version = 1000; version < 1200; ++version) {
    comparison.by_version[{version, {}}] = {.num_rows = 1};
    comparison.by_version[{{}, version}] = {.num_rows = 2};
  }
  const std::string page = page_of(data);
  EXPECT_THAT(page, HasSubstr("\"by_version\":[[null,null,[7,"));
  EXPECT_THAT(page, HasSubstr("[1000,1003,[12,"));
  EXPECT_THAT(page, HasSubstr("[1196,1199,[12,"));
}

// 128 versions from an odd one on would be 65 spans of two.
TEST(Report, ShowsNoMoreSpansOfVersionsThanWindows) {
  ReportData data = two_records();
  data.comparison->by_version.clear();
  for (uint32_t version = 1; version <= 128; ++version) {
    data.comparison->by_version[{version, {}}] = {.num_rows = 1};
  }
  std::string page = page_of(data);
  EXPECT_THAT(page, HasSubstr("\"by_version\":[[0,3,[3,"));
  EXPECT_THAT(page, HasSubstr("[128,131,[1,"));
  data.comparison->by_version.erase({128, {}});
  page = page_of(data);
  EXPECT_THAT(page, HasSubstr("\"by_version\":[[0,1,[1,"));
  EXPECT_THAT(page, HasSubstr("[126,127,[2,"));
}

// Markup in names, ids and texts.
TEST(Report, ShowsTextsFromOutsideAsText) {
  const std::string run = "</script><script>alert(1)</script><!--";
  ReportData data = two_records();
  data.records[0].name = run;
  data.records[1].parts = {{run, 1}};
  data.sequence_names[0] = run;
  const std::string page = page_of(data);
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script")));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("<title>&#60;/script&#62;&#60;script&#62;alert(1)"));
  EXPECT_THAT(page, HasSubstr("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"));
}

TEST(Report, RefusesRecordsThatDoNotBelongTogether) {
  const RouteSpec other = make_spec({.layers = {1, 2}, .top_k = 2, .num_experts = 4});
  ReportData data = two_records();
  data.records[1] = record_of(make_routes(other, {}), "other.tape");
  expect_error(render_report(data), ErrorCode::kSpecMismatch,
               "report: record other.tape: expected fingerprint");

  data = two_records();
  data.comparison = value_of(Comparison::create(other));
  expect_error(render_report(data), ErrorCode::kSpecMismatch, "report: the comparison: expected fingerprint");

  data = two_records();
  data.records.pop_back();
  expect_error(render_report(data), ErrorCode::kInvalidArgument, "a comparison: expected two records, got 1");
  data.records.clear();
  expect_error(render_report(data), ErrorCode::kInvalidArgument, "expected one or two records, got 0");
}

TEST(Report, RefusesTablesThatDoNotFitTheSpec) {
  ReportData data = two_records();
  data.records[0].stats.load.pop_back();
  expect_error(render_report(data), ErrorCode::kWrongShape,
               "load of record a.tape: expected 8 counts (2 layers of 4 experts), got 7");
  data.records[0].stats.load.clear();
  expect_error(render_report(data), ErrorCode::kWrongShape, "expected the load of 2 valid rows, got none");

  data = two_records();
  data.comparison->by_layer.pop_back();
  expect_error(render_report(data), ErrorCode::kWrongShape, "expected sums of 2 layers, got 1");
}

TEST(ReportText, EscapesWhatHtmlAndJsonKnow) {
  EXPECT_EQ(json_of("a\"\\<>&\n"), "\"a\\u0022\\u005c\\u003c\\u003e\\u0026\\u000a\"");
  EXPECT_EQ(report::html_text("<a href='x'>&\"\n"), "&#60;a href=&#39;x&#39;&#62;&#38;&#34; ");
  EXPECT_EQ(json_of("→ é 𝄞"), "\"→ é 𝄞\"");
}

TEST(ReportText, ShowsBytesThatAreNoUtf8) {
  // A lead byte alone, an overlong slash, a surrogate, beyond the last code point, a character cut short.
  const std::map<std::string, std::string> cases = {{"\xE2", "\\xE2"},
                                                    {"\xC0\xAF", "\\xC0\\xAF"},
                                                    {"\xED\xA0\x80", "\\xED\\xA0\\x80"},
                                                    {"\xF4\x90\x80\x80", "\\xF4\\x90\\x80\\x80"},
                                                    {"\xE0\x9F\x80", "\\xE0\\x9F\\x80"},
                                                    {"\xE2\x82", "\\xE2\\x82"},
                                                    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}};
  for (const auto& [bytes, shown] : cases) EXPECT_EQ(report::html_text(bytes), shown);
}

TEST(ReportText, CutsLongTextsBetweenCharacters) {
  std::string text;
  for (int character = 0; character < 1000; ++character) text += "é";
  const std::string shown = report::html_text(text);
  EXPECT_EQ(shown, text.substr(0, report::kMostTextBytes) + "…");
  EXPECT_EQ(report::html_text("a" + text), ("a" + text).substr(0, report::kMostTextBytes + 1) + "…");
}

RC_GTEST_PROP(ReportText, AnyBytesGiveOneJsonStringWithoutMarkup, (const std::string& bytes)) {
  const std::string json = json_of(bytes);
  RC_ASSERT(json.size() >= 2);
  const std::string inside = json.substr(1, json.size() - 2);
  RC_ASSERT(inside.find_first_of("<>&\"") == std::string::npos);
  for (const char c : inside) RC_ASSERT(static_cast<uint8_t>(c) >= 0x20);
}

}  // namespace
}  // namespace moetape::inline v0
