// moetape_report_samples FOLDER: pages of made-up records, one for each thing that a page must cope with. For
// the tests in a browser and the pictures in the documents.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/test_util.h"
#include "moetape/report.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {
namespace {

void must(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

// Chooses experts as a router does that likes some more than others and goes on with those of the token
// before; one layer has an expert that is hot.
class Router {
 public:
  static constexpr double kReuse = 0.3;

  Router(const RouteSpec& spec, uint64_t seed, int32_t hot_column, double hot) : spec_(spec), random_(seed) {
    for (int32_t column = 0; column < spec.num_moe_layers(); ++column) {
      std::vector<double> weights(static_cast<size_t>(spec.num_experts()));
      for (double& weight : weights) weight = std::exp(1.2 * (share() - 0.5));
      if (column == hot_column) weights[static_cast<size_t>(spec.num_experts() / 3)] *= hot;
      if (spec.num_experts() > 2 * spec.top_k()) weights.back() = column % 4 == 0 ? 0 : weights.back();
      layers_.emplace_back(weights.begin(), weights.end());
    }
  }

  Ids ids(int64_t num_rows) {
    Ids ids;
    const int64_t row_ids = int64_t{spec_.num_moe_layers()} * spec_.top_k();
    for (int64_t list = 0; list < num_rows * spec_.num_moe_layers(); ++list) {
      const int64_t first = std::ssize(ids);
      auto& layer = layers_[static_cast<size_t>(list % spec_.num_moe_layers())];
      while (std::ssize(ids) < first + spec_.top_k()) {
        const bool again = first >= row_ids && share() < kReuse;
        const int64_t id = again ? ids[static_cast<size_t>(std::ssize(ids) - row_ids)] : layer(random_);
        if (std::find(ids.begin() + first, ids.end(), id) == ids.end()) ids.push_back(id);
      }
    }
    return ids;
  }

  double share() { return std::uniform_real_distribution<double>()(random_); }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }

 private:
  RouteSpec spec_;
  std::mt19937_64 random_;
  std::vector<std::discrete_distribution<int64_t>> layers_;
};

// The same routes as another program might compute them: of some lists the last expert is another one, of
// some the order. `drift(row, column)` is the share of the former.
template <class Drift>
Ids drifted(const RouteSpec& spec, Ids ids, Router& router, const Drift& drift) {
  const int64_t top_k = spec.top_k();
  for (int64_t list = 0; list < std::ssize(ids) / top_k; ++list) {
    const auto begin = ids.begin() + list * top_k;
    if (router.share() < drift(list / spec.num_moe_layers(), list % spec.num_moe_layers())) {
      int64_t other = begin[top_k - 1];
      while (std::find(begin, begin + top_k, other) != begin + top_k)
        other = router.below(spec.num_experts());
      begin[top_k - 1] = other;
    } else if (top_k > 1 && router.share() < 0.02) {
      std::swap(begin[0], begin[1]);
    }
  }
  return ids;
}

Routes routes_of(const RouteSpec& spec, const Ids& ids, const std::vector<uint8_t>& valid,
                 std::optional<uint32_t> version, const std::vector<int32_t>& tokens) {
  const int64_t num_rows = std::ssize(ids) / (spec.num_moe_layers() * spec.top_k());
  return value_of(Routes::from_ids(spec, 0,
                                   {.ids = ids.data(),
                                    .type = IntType::kInt64,
                                    .num_rows = num_rows,
                                    .valid = valid,
                                    .reason = Reason::kRefused,
                                    .version = version,
                                    .tokens = tokens}));
}

ReportRecord record_of(std::string name, const RouteSpec& spec, const std::vector<Routes>& sequences) {
  Stats stats = value_of(Stats::create(spec));
  for (const Routes& routes : sequences) must(stats.add(routes));
  const int64_t ids_bytes = stats.bytes().narrow;
  const int64_t valid_bytes = (stats.num_rows() + 7) / 8;
  return {.name = std::move(name),
          .stats = std::move(stats),
          .file_bytes = ids_bytes + valid_bytes + 4096,
          .parts = {{"ids", ids_bytes}, {"valid", valid_bytes}}};
}

ReportData data_of(const RouteSpec& spec, const std::vector<Routes>& first,
                   const std::vector<Routes>& second) {
  ReportData data{.records = {record_of("rollout.tape", spec, first)}};
  if (second.empty()) return data;
  data.records.push_back(record_of("training.tape", spec, second));
  data.comparison = value_of(Comparison::create(spec));
  for (size_t sequence = 0; sequence < first.size(); ++sequence) {
    must(data.comparison->add(first[sequence], second[sequence]));
    data.sequence_names[static_cast<int64_t>(sequence)] = "request-" + std::to_string(1000 + sequence);
  }
  return data;
}

const std::vector<std::string> kWords = {" the", " of", "\n", " expert", "ing", " \xE2\x82", "→", "\t"};

std::map<int32_t, std::string> words() {
  std::map<int32_t, std::string> text;
  for (const std::string& word : kWords) text[static_cast<int32_t>(text.size())] = word;
  return text;
}

// A rollout and its training pass over five policy versions. Layer 20 has a hot expert, layer 9 drifts most,
// drift grows along the sequence and with the version, and some rows of both are missing.
ReportData two_records() {
  std::vector<int32_t> moe_layers;
  for (int32_t layer = 1; layer < 26; ++layer) moe_layers.push_back(layer);
  const RouteSpec spec = make_spec({.layers = moe_layers,
                                    .top_k = 6,
                                    .num_experts = 64,
                                    .num_layers = 27,
                                    .excluded = {{26, "hash-routed"}},
                                    .model = "example/moe-16b"});
  Router router(spec, 1, 19, 6);
  std::vector<Routes> first;
  std::vector<Routes> second;
  for (uint32_t sequence = 0; sequence < 20; ++sequence) {
    const uint32_t version = 3 + sequence / 4;
    const int64_t num_rows = 300 + router.below(300);
    std::vector<uint8_t> valid(static_cast<size_t>(num_rows), 1);
    std::vector<int32_t> tokens;
    for (int64_t row = 0; row < num_rows; ++row) {
      tokens.push_back(static_cast<int32_t>(router.below(std::ssize(kWords) + 4)));
    }
    if (sequence == 9 || sequence == 10) std::fill(valid.begin(), valid.end(), 0);
    const Ids ids = router.ids(num_rows);
    first.push_back(routes_of(spec, ids, valid, version, tokens));
    const auto drift = [&](int64_t row, int64_t column) {
      const double token = tokens[static_cast<size_t>(row)] == 3 ? 3 : 1;
      return token * (column == 8 ? 0.15 : 0.02) * (1 + row / 300.0) * (version - 2) / 3;
    };
    std::fill(valid.begin(), valid.end(), 1);
    std::fill(valid.begin() + 50, valid.begin() + 53, 0);
    second.push_back(routes_of(spec, drifted(spec, ids, router, drift), valid, {}, tokens));
  }
  ReportData data = data_of(spec, first, second);
  data.token_text = words();
  return data;
}

ReportData one_record() {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2, 3}, .top_k = 2, .num_experts = 8});
  Router router(spec, 2, 2, 3);
  return data_of(spec, {routes_of(spec, router.ids(400), {}, {}, {})}, {});
}

ReportData no_rows() {
  const RouteSpec spec = make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8});
  return data_of(spec, {}, {});
}

ReportData one_layer() {
  const RouteSpec spec = make_spec({.layers = {5}, .top_k = 1, .num_experts = 4});
  Router router(spec, 3, 0, 2);
  const Ids ids = router.ids(64);
  const auto drift = [](int64_t, int64_t) { return 0.25; };
  return data_of(spec, {routes_of(spec, ids, {}, 1, {})},
                 {routes_of(spec, drifted(spec, ids, router, drift), {}, 1, {})});
}

ReportData all_missing() {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2}, .top_k = 2, .num_experts = 8});
  Router router(spec, 4, 0, 1);
  const Ids ids = router.ids(32);
  return data_of(spec, {routes_of(spec, ids, {}, 2, {})},
                 {routes_of(spec, ids, std::vector<uint8_t>(32, 0), {}, {})});
}

ReportData unrelated() {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2}, .top_k = 4, .num_experts = 32});
  Router router(spec, 5, 0, 1);
  return data_of(spec, {routes_of(spec, router.ids(500), {}, {}, {})},
                 {routes_of(spec, router.ids(500), {}, {}, {})});
}

ReportData big_model() {
  std::vector<int32_t> moe_layers;
  for (int32_t layer = 0; layer < 94; ++layer) moe_layers.push_back(layer);
  const RouteSpec spec = make_spec({.layers = moe_layers, .top_k = 16, .num_experts = 896});
  Router router(spec, 6, 50, 20);
  std::vector<Routes> first;
  std::vector<Routes> second;
  for (uint32_t version = 0; version < 100; ++version) {
    const Ids ids = router.ids(8);
    first.push_back(routes_of(spec, ids, {}, version, {}));
    second.push_back(
        routes_of(spec, drifted(spec, ids, router, [](int64_t, int64_t column) { return column / 940.0; }),
                  {}, version, {}));
  }
  return data_of(spec, first, second);
}

// Texts that would run, leave their place or turn the page if they were taken for more than text.
ReportData hostile() {
  const std::string run = "window.hit=1";
  const std::vector<std::string> texts = {"</script><script>" + run + "</script>",
                                          "<!--<script>",
                                          "<img src=x onerror=\"" + run + "\">",
                                          "\"'`${" + run + "}",
                                          "{{script}}{{data}}",
                                          "\u202Egnp.exe",
                                          std::string("a\0b\x7F\x1B[31m", 9),
                                          "\xFF\xC0\xAF\xED\xA0\x80",
                                          "__proto__",
                                          std::string(100000, 'x'),
                                          "https://example.invalid/picture.png"};
  RouteSpecFields fields{.stack = texts[0], .layers = {0, 2}, .top_k = 2, .num_experts = 8, .num_layers = 3};
  fields.excluded = {{1, texts[2]}};
  for (const std::string& text : texts) fields.model += text.substr(0, 60);
  const RouteSpec spec = make_spec(fields);
  Router router(spec, 7, 0, 1);
  std::vector<Routes> first;
  std::vector<Routes> second;
  for (const std::string& text : texts) {
    const auto token = static_cast<int32_t>(first.size());
    const Ids ids = router.ids(16);
    const std::vector<int32_t> tokens(16, token);
    first.push_back(routes_of(spec, ids, {}, {}, tokens));
    second.push_back(
        routes_of(spec, drifted(spec, ids, router, [](int64_t, int64_t) { return 0.5; }), {}, {}, tokens));
    static_cast<void>(text);
  }
  ReportData data = data_of(spec, first, second);
  for (size_t index = 0; index < texts.size(); ++index) {
    data.token_text[static_cast<int32_t>(index)] = texts[index];
    data.sequence_names[static_cast<int64_t>(index)] = texts[index];
    data.records[0].parts.emplace_back(texts[index], 1);
  }
  data.records[0].name = texts[0];
  data.records[1].name = texts[2];
  return data;
}

int write_pages(const std::filesystem::path& folder) {
  const std::vector<std::pair<std::string, ReportData (*)()>> samples = {
      {"two_records", two_records}, {"one_record", one_record},   {"no_rows", no_rows},
      {"one_layer", one_layer},     {"all_missing", all_missing}, {"unrelated", unrelated},
      {"big_model", big_model},     {"hostile", hostile}};
  for (const auto& [name, make] : samples) {
    std::ofstream(folder / (name + ".html"), std::ios::binary) << value_of(render_report(make()));
  }
  return 0;
}

}  // namespace
}  // namespace moetape::inline v0

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "moetape_report_samples FOLDER\n";
    return 2;
  }
  return moetape::write_pages(argv[1]);
}
