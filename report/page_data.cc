#include "page_data.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <span>

#include "json.h"

namespace moetape::inline v0::report {
namespace {

constexpr int64_t kFewestChoices = 16;
constexpr int64_t kMostTokens = 40;
constexpr size_t kMostRows = 40;
constexpr size_t kMostParts = 64;
constexpr size_t kMostVersions = 8;

void write_numbers(JsonWriter& json, std::span<const int64_t> values) {
  json.open('[');
  for (const int64_t value : values) json.number(value);
  json.close(']');
}

void write_agreement(JsonWriter& json, const Agreement& sums) {
  const int64_t values[] = {sums.num_rows,    sums.num_unequal_rows,    sums.num_rerouted_rows,
                            sums.num_routers, sums.num_unequal_routers, sums.num_rerouted_routers,
                            sums.num_ids,     sums.num_shared_ids};
  write_numbers(json, values);
}

void write_optional_version(JsonWriter& json, std::optional<uint32_t> version) {
  json.number(version ? std::optional<int64_t>(*version) : std::nullopt);
}

void write_spec(JsonWriter& json, const RouteSpec& spec) {
  json.open('{').key("model").text(spec.fields().model).key("stack").text(spec.fields().stack);
  json.key("layers").open('[');
  for (const int32_t layer : spec.layers()) json.number(int64_t{layer});
  json.close(']').key("excluded").open('[');
  for (const auto& [layer, reason] : spec.fields().excluded) {
    json.open('[').number(int64_t{layer}).text(reason).close(']');
  }
  json.close(']').key("num_layers").number(int64_t{spec.num_layers()});
  json.key("num_experts").number(int64_t{spec.num_experts()}).key("top_k").number(int64_t{spec.top_k()});
  json.close('}');
}

// Rows by reason, valid ones left out.
void write_missing(JsonWriter& json, const std::array<int64_t, kNumReasons>& rows) {
  json.open('[');
  for (int reason = 1; reason < kNumReasons; ++reason) {
    if (rows[reason] == 0) continue;
    json.open('[').text(reason_name(static_cast<Reason>(reason))).number(rows[reason]).close(']');
  }
  json.close(']');
}

void write_load(JsonWriter& json, const Stats& stats) {
  json.open('[');
  for (int32_t column = 0; column < stats.spec.num_moe_layers(); ++column) {
    if (stats.num_valid_rows() == 0) {
      json.null();
    } else {
      write_numbers(json, stats.layer_load(stats.load, column));
    }
  }
  json.close(']');
}

// A valid row chooses top_k experts in every layer, so that one layer's load gives the rows.
int64_t rows_of(const Stats& stats, const Load& load) {
  int64_t chosen = 0;
  for (const int64_t times : stats.layer_load(load, 0)) chosen += times;
  return chosen / stats.spec.top_k();
}

// Windows taken together until an average expert is chosen kFewestChoices times in each: below that, chance
// alone looks like imbalance.
Series<Load> steady_windows(const Stats& stats) {
  const Series<Load>& series = stats.load_by_row;
  const int64_t fewest_rows = kFewestChoices * stats.spec.num_experts() / stats.spec.top_k();
  Series<Load> steady{.start = series.start, .width = series.width, .windows = {}};
  while (steady.width < fewest_rows && steady.width < stats.num_rows()) steady.width *= 2;
  steady.start = series.start / steady.width * steady.width;
  for (size_t index = 0; index < series.windows.size(); ++index) {
    const int64_t row = series.start + static_cast<int64_t>(index) * series.width;
    const auto window = static_cast<size_t>((row - steady.start) / steady.width);
    steady.windows.resize(std::max(steady.windows.size(), window + 1));
    const Load& from = series.windows[index];
    Load& to = steady.windows[window];
    to.resize(std::max(to.size(), from.size()));
    std::ranges::transform(from, to, to.begin(), std::plus<>());
  }
  return steady;
}

void write_balance(JsonWriter& json, const Stats& stats, const Series<Load>& series) {
  json.open('{').key("start").number(series.start).key("width").number(series.width);
  json.key("rows").open('[');
  for (const Load& load : series.windows) json.number(load.empty() ? 0 : rows_of(stats, load));
  json.close(']').key("imbalance").open('[');
  for (const Load& load : series.windows) {
    json.open('[');
    for (int32_t column = 0; column < stats.spec.num_moe_layers(); ++column) {
      const auto balance = load.empty() ? std::nullopt : balance_of(stats.layer_load(load, column));
      json.rounded(balance ? std::optional<double>(balance->max_over_mean) : std::nullopt);
    }
    json.close(']');
  }
  json.close(']').close('}');
}

void write_sizes(JsonWriter& json, const ReportRecord& record) {
  const Stats::Bytes bytes = record.stats.bytes();
  json.key("file_bytes").number(record.file_bytes);
  json.key("parts").open('[');
  int64_t other_bytes = 0;
  for (size_t index = 0; index < record.parts.size(); ++index) {
    const auto& [name, part_bytes] = record.parts[index];
    if (index < kMostParts) {
      json.open('[').text(name).number(part_bytes).close(']');
    } else {
      other_bytes += part_bytes;
    }
  }
  if (other_bytes > 0) json.open('[').text("all others").number(other_bytes).close(']');
  json.close(']').key("bytes").open('{').key("narrow").number(bytes.narrow);
  json.key("bitpacked").number(bytes.bitpacked).key("int32").number(bytes.int32).close('}');
}

// How many versions, the first and the last, and the rows of as many as one can read.
void write_versions(JsonWriter& json, const std::map<std::optional<uint32_t>, int64_t>& rows_by_version) {
  const bool some_carry_none = rows_by_version.contains(std::nullopt);
  const auto num_versions = static_cast<int64_t>(rows_by_version.size()) - (some_carry_none ? 1 : 0);
  json.key("num_versions").number(num_versions);
  if (num_versions > 0) {
    json.key("first_version")
        .number(int64_t{*std::next(rows_by_version.begin(), some_carry_none ? 1 : 0)->first});
    json.key("last_version").number(int64_t{*rows_by_version.rbegin()->first});
  }
  json.key("versions").open('[');
  size_t num_written = 0;
  for (const auto& [version, rows] : rows_by_version) {
    if (++num_written > kMostVersions) break;
    json.open('[');
    write_optional_version(json, version);
    json.number(rows).close(']');
  }
  json.close(']');
}

void write_record(JsonWriter& json, const ReportRecord& record) {
  const Stats& stats = record.stats;
  json.open('{').key("name").text(record.name).key("sequences").number(stats.num_sequences);
  json.key("rows").number(stats.num_rows()).key("valid").number(stats.num_valid_rows());
  json.key("missing");
  write_missing(json, stats.rows_by_reason);
  write_versions(json, stats.rows_by_version);
  json.key("load");
  write_load(json, stats);
  json.key("windows");
  write_balance(json, stats, steady_windows(stats));
  json.key("version_windows");
  write_balance(json, stats, stats.load_by_version);
  json.key("reuse").open('[');
  for (const Agreement& neighbours : stats.reuse) json.rounded(neighbours.overlap());
  json.close(']');
  write_sizes(json, record);
  json.close('}');
}

struct VersionSpan {
  std::optional<uint32_t> first;
  std::optional<uint32_t> last;
  Agreement sums;
};

// By the version of the first record, else of the second; at most kMostWindows spans of one width, and
// before them what carries no version in either.
std::vector<VersionSpan> version_spans(const Comparison& comparison) {
  std::map<std::optional<uint32_t>, Agreement> by_version;
  for (const auto& [pair, sums] : comparison.by_version) by_version[pair.a ? pair.a : pair.b] += sums;
  const auto first =
      std::ranges::find_if(by_version, [](const auto& entry) { return entry.first.has_value(); });
  if (first == by_version.end()) return {};
  uint32_t width = 1;
  // Spans begin at multiples of their width.
  while (*by_version.rbegin()->first / width - *first->first / width >= kMostWindows) width *= 2;
  std::vector<VersionSpan> spans;
  for (const auto& [version, sums] : by_version) {
    const auto start = version ? std::optional<uint32_t>(*version / width * width) : std::nullopt;
    if (spans.empty() || spans.back().first != start) {
      const auto last = start ? std::optional<uint32_t>(*start + width - 1) : std::nullopt;
      spans.push_back({start, last, {}});
    }
    spans.back().sums += sums;
  }
  return spans;
}

class ComparisonWriter {
 public:
  ComparisonWriter(JsonWriter& json, const ReportData& data)
      : json_(json), data_(data), comparison_(*data.comparison) {}

  void write() {
    json_.open('{').key("only_a").number(comparison_.num_rows_only_in_a);
    json_.key("only_b").number(comparison_.num_rows_only_in_b);
    json_.key("neither").number(comparison_.num_rows_in_neither).key("total");
    write_agreement(json_, comparison_.total);
    json_.key("by_layer");
    write_agreements(comparison_.by_layer);
    const auto& positions = comparison_.by_position;
    json_.key("by_position").open('{').key("start").number(positions.start);
    json_.key("width").number(positions.width).key("windows");
    write_agreements(positions.windows);
    json_.close('}').key("histogram");
    write_numbers(json_, comparison_.rows_by_rerouted_routers);
    write_versions();
    write_tokens();
    write_rows();
    json_.close('}');
  }

 private:
  void write_agreements(std::span<const Agreement> agreements) {
    json_.open('[');
    for (const Agreement& sums : agreements) write_agreement(json_, sums);
    json_.close(']');
  }

  void write_versions() {
    json_.key("by_version").open('[');
    for (const VersionSpan& span : version_spans(comparison_)) {
      json_.open('[');
      write_optional_version(json_, span.first);
      write_optional_version(json_, span.last);
      write_agreement(json_, span.sums);
      json_.close(']');
    }
    json_.close(']');
  }

  void write_token_text(std::optional<int32_t> token) {
    const auto found = token ? data_.token_text.find(*token) : data_.token_text.end();
    if (found == data_.token_text.end()) {
      json_.null();
    } else {
      json_.text(found->second);
    }
  }

  void write_tokens() {
    json_.key("tokens").open('[');
    for (const auto& [token, sums] : comparison_.most_rerouted_tokens(kMostTokens)) {
      json_.open('[').number(int64_t{token});
      write_token_text(token);
      write_agreement(json_, sums);
      json_.close(']');
    }
    json_.close(']');
  }

  void write_rows() {
    const auto& rows = comparison_.rerouted_rows;
    json_.key("rows").open('[');
    for (const ReroutedRow& row : std::span(rows).first(std::min(rows.size(), kMostRows))) {
      const auto name = data_.sequence_names.find(row.sequence);
      json_.open('{').key("sequence");
      const bool is_named = name != data_.sequence_names.end() && !name->second.empty();
      json_.text(is_named ? name->second : std::to_string(row.sequence));
      json_.key("position").number(row.position);
      json_.key("token").number(row.token ? std::optional<int64_t>(*row.token) : std::nullopt).key("text");
      write_token_text(row.token);
      json_.key("rerouted").number(int64_t{row.num_rerouted_routers}).close('}');
    }
    json_.close(']');
  }

  JsonWriter& json_;
  const ReportData& data_;
  const Comparison& comparison_;
};

}  // namespace

std::string page_json(const ReportData& data, const std::string& title) {
  JsonWriter json;
  json.open('{').key("title").text(title).key("spec");
  write_spec(json, data.records[0].stats.spec);
  json.key("records").open('[');
  for (const ReportRecord& record : data.records) write_record(json, record);
  json.close(']').key("comparison");
  if (data.comparison) {
    ComparisonWriter(json, data).write();
  } else {
    json.null();
  }
  json.close('}');
  return std::move(json).take();
}

}  // namespace moetape::inline v0::report
