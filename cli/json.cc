#include "json.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace moetape::cli {
namespace {

Json json_by_reason(const std::array<int64_t, kNumReasons>& rows) {
  Json json = Json::object();
  for (int reason = 0; reason < kNumReasons; ++reason) {
    json[std::string(reason_name(static_cast<Reason>(reason)))] = rows[reason];
  }
  return json;
}

}  // namespace

std::string fingerprint_text(const RouteSpec& spec) { return fmt::format("{:016x}", spec.fingerprint()); }

Json json_of(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  Json excluded = Json::object();
  for (const auto& [layer, reason] : fields.excluded) excluded[fmt::format("{}", layer)] = reason;
  return {{"stack", fields.stack},
          {"layers", fields.layers},
          {"top_k", fields.top_k},
          {"num_experts", fields.num_experts},
          {"shared_columns", fields.shared_columns},
          {"distinct", fields.distinct},
          {"num_layers", fields.num_layers},
          {"excluded", std::move(excluded)},
          {"model", fields.model},
          {"fingerprint", fingerprint_text(spec)}};
}

Json json_of(const VersionRun& run) {
  return {{"start", run.start}, {"end", run.end}, {"version", run.version}};
}

Json json_of(const TapeEntry& entry) {
  Json versions = Json::array();
  for (const VersionRun& run : entry.versions) versions.push_back(json_of(run));
  return {{"id", entry.id},
          {"meta", entry.meta},
          {"start", entry.start},
          {"end", entry.end},
          {"num_missing", entry.num_missing},
          {"has_tokens", entry.has_tokens},
          {"versions", std::move(versions)}};
}

Json json_of(const Tape& tape) {
  Json files = Json::array();
  for (const TapeFile& file : tape.files()) {
    Json tensors = Json::array();
    for (const TapeTensor& tensor : file.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor.dtype},
                         {"shape", tensor.shape},
                         {"offset", tensor.offset},
                         {"num_bytes", tensor.num_bytes}});
    }
    files.push_back({{"path", file.path},
                     {"num_bytes", file.num_bytes},
                     {"num_sequences", file.num_sequences},
                     {"num_rows", file.num_rows},
                     {"tensors", std::move(tensors)}});
  }
  return {{"spec", json_of(tape.spec())},
          {"num_sequences", tape.num_sequences()},
          {"num_rows", tape.num_rows()},
          {"codec", codec_name(tape.options().codec)},
          {"layer_groups", tape.options().layer_groups},
          {"files", std::move(files)}};
}

Json json_of(const TapeFault& fault) {
  return {{"sequence", fault.sequence < 0 ? Json(nullptr) : Json(fault.sequence)},
          {"error", error_name(fault.error.code)},
          {"message", fault.error.message}};
}

Json json_of(const Agreement& agreement) {
  return {{"num_rows", agreement.num_rows},
          {"num_unequal_rows", agreement.num_unequal_rows},
          {"num_rerouted_rows", agreement.num_rerouted_rows},
          {"num_routers", agreement.num_routers},
          {"num_unequal_routers", agreement.num_unequal_routers},
          {"num_rerouted_routers", agreement.num_rerouted_routers},
          {"num_ids", agreement.num_ids},
          {"num_shared_ids", agreement.num_shared_ids},
          {"unequal_rows_rate", json_of(agreement.unequal_rows_rate())},
          {"rerouted_rows_rate", json_of(agreement.rerouted_rows_rate())},
          {"unequal_routers_rate", json_of(agreement.unequal_routers_rate())},
          {"rerouted_routers_rate", json_of(agreement.rerouted_routers_rate())},
          {"overlap", json_of(agreement.overlap())}};
}

Json json_of(const Balance& balance) {
  return {{"max_over_mean", balance.max_over_mean},
          {"variation", balance.variation},
          {"entropy", balance.entropy},
          {"gini", balance.gini},
          {"num_unused", balance.num_unused}};
}

Json json_of(const Stats& stats, bool with_load) {
  Json versions = Json::array();
  for (const auto& [version, rows] : stats.rows_by_version) {
    versions.push_back({{"version", json_of(version)}, {"num_rows", rows}});
  }
  Json layers = Json::array();
  for (int32_t column = 0; column < stats.spec.num_moe_layers(); ++column) {
    const auto load = stats.layer_load(stats.load, column);
    Json layer = {{"layer", stats.spec.layers()[column]},
                  {"balance", json_of(balance_of(load))},
                  {"overlap_with_previous_row", json_of(stats.reuse[column].overlap())}};
    if (with_load) layer["load"] = load;
    layers.push_back(std::move(layer));
  }
  const Stats::Bytes bytes = stats.bytes();
  return {{"spec", json_of(stats.spec)},
          {"num_sequences", stats.num_sequences},
          {"num_rows", stats.num_rows()},
          {"rows_by_reason", json_by_reason(stats.rows_by_reason)},
          {"rows_by_version", std::move(versions)},
          {"bytes", {{"narrow", bytes.narrow}, {"bitpacked", bytes.bitpacked}, {"int32", bytes.int32}}},
          {"layers", std::move(layers)}};
}

Json json_of(const ReroutedRow& row) {
  return {{"sequence", row.sequence},
          {"position", row.position},
          {"token", json_of(row.token)},
          {"num_rerouted_routers", row.num_rerouted_routers},
          {"num_unequal_routers", row.num_unequal_routers}};
}

Json json_of(const Comparison& comparison) {
  Json layers = Json::array();
  for (int32_t column = 0; column < comparison.spec.num_moe_layers(); ++column) {
    Json layer = {{"layer", comparison.spec.layers()[column]}};
    layer.update(json_of(comparison.by_layer[column]));
    layers.push_back(std::move(layer));
  }
  Json positions = Json::array();
  const auto& series = comparison.by_position;
  for (size_t index = 0; index < series.windows.size(); ++index) {
    const int64_t start = series.start + static_cast<int64_t>(index) * series.width;
    Json window = {{"start", start}, {"end", start + series.width}};
    window.update(json_of(series.windows[index]));
    positions.push_back(std::move(window));
  }
  Json versions = Json::array();
  for (const auto& [pair, agreement] : comparison.by_version) {
    Json version = {{"version_a", json_of(pair.a)}, {"version_b", json_of(pair.b)}};
    version.update(json_of(agreement));
    versions.push_back(std::move(version));
  }
  Json rows = Json::array();
  for (const ReroutedRow& row : comparison.rerouted_rows) rows.push_back(json_of(row));
  return {{"spec", json_of(comparison.spec)},
          {"num_sequences", comparison.num_sequences},
          {"num_rows_only_in_a", comparison.num_rows_only_in_a},
          {"num_rows_only_in_b", comparison.num_rows_only_in_b},
          {"num_rows_in_neither", comparison.num_rows_in_neither},
          {"missing_in_a", json_by_reason(comparison.missing_in_a)},
          {"missing_in_b", json_by_reason(comparison.missing_in_b)},
          {"total", json_of(comparison.total)},
          {"by_layer", std::move(layers)},
          {"by_position", std::move(positions)},
          {"by_version", std::move(versions)},
          {"rows_by_rerouted_routers", comparison.rows_by_rerouted_routers},
          {"rerouted_rows", std::move(rows)}};
}

std::string shown(const ParsedJson& json) {
  constexpr size_t kMostShown = 80;
  std::string text = json.dump(-1, ' ', false, ParsedJson::error_handler_t::replace);
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

void print_json(Console& console, const Json& json) {
  console.print(printable_json(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n");
}

}  // namespace moetape::cli
