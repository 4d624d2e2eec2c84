#include "moetape/report.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string_view>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "json.h"
#include "page.h"
#include "page_data.h"
#include "simd/base64.h"

namespace moetape::inline v0 {
namespace {

// A hash as a page's policy writes it.
std::string base64_of_hex(std::string_view hex) {
  const auto digit = [&](size_t index) {
    return hex[index] <= '9' ? hex[index] - '0' : hex[index] - 'a' + 10;
  };
  std::array<std::byte, 32> bytes;
  for (size_t index = 0; index < bytes.size(); ++index) {
    bytes[index] = static_cast<std::byte>(digit(2 * index) << 4 | digit(2 * index + 1));
  }
  std::string text(simd::base64_size(bytes.size()), '\0');
  simd::base64_encode(text.data(), bytes.data(), bytes.size());
  return text;
}

struct Filling {
  std::string_view place;
  std::string_view text;
};

// Only places of the template are filled, never those that a filling seems to hold.
std::string fill(std::string_view page, std::span<const Filling> fillings) {
  std::string out;
  while (true) {
    const size_t open = page.find("{{");
    out += page.substr(0, open);
    if (open == std::string_view::npos) return out;
    const size_t close = page.find("}}", open);
    const std::string_view place = page.substr(open + 2, close - open - 2);
    for (const Filling& filling : fillings) {
      if (filling.place == place) out += filling.text;
    }
    page.remove_prefix(close + 2);
  }
}

Status check_load(const std::string& name, const Stats& stats) {
  const size_t cells = static_cast<size_t>(stats.spec.num_moe_layers()) * stats.spec.num_experts();
  const auto check = [&](std::string_view table, const Load& load) -> Status {
    if (load.empty() || load.size() == cells) return {};
    return fail(ErrorCode::kWrongShape,
                "report: {} of record {}: expected {} counts ({} layers of {} experts), got {}", table, name,
                cells, stats.spec.num_moe_layers(), stats.spec.num_experts(), load.size());
  };
  MOETAPE_TRY(check("load", stats.load));
  for (const Load& load : stats.load_by_row.windows) MOETAPE_TRY(check("load_by_row", load));
  for (const Load& load : stats.load_by_version.windows) MOETAPE_TRY(check("load_by_version", load));
  if (stats.num_valid_rows() > 0 && stats.load.empty()) {
    return fail(ErrorCode::kWrongShape, "report: record {}: expected the load of {} valid rows, got none",
                name, stats.num_valid_rows());
  }
  return {};
}

Status check_comparison(const Comparison& comparison, const RouteSpec& spec) {
  if (comparison.spec.fingerprint() != spec.fingerprint()) {
    return fail(ErrorCode::kSpecMismatch,
                "report: the comparison: expected fingerprint {:016x}, as of the records, got {:016x}",
                spec.fingerprint(), comparison.spec.fingerprint());
  }
  const auto num_layers = static_cast<size_t>(spec.num_moe_layers());
  if (comparison.by_layer.size() != num_layers ||
      comparison.rows_by_rerouted_routers.size() != num_layers + 1) {
    return fail(ErrorCode::kWrongShape, "report: the comparison: expected sums of {} layers, got {}",
                num_layers, comparison.by_layer.size());
  }
  return {};
}

Status check(const ReportData& data) {
  if (data.records.empty() || data.records.size() > 2) {
    return fail(ErrorCode::kInvalidArgument, "report: expected one or two records, got {}",
                data.records.size());
  }
  const RouteSpec& spec = data.records[0].stats.spec;
  for (const ReportRecord& record : data.records) {
    if (record.stats.spec.fingerprint() != spec.fingerprint()) {
      return fail(ErrorCode::kSpecMismatch,
                  "report: record {}: expected fingerprint {:016x}, as of {}, got {:016x}", record.name,
                  spec.fingerprint(), data.records[0].name, record.stats.spec.fingerprint());
    }
    MOETAPE_TRY(check_load(record.name, record.stats));
  }
  if (!data.comparison) return {};
  if (data.records.size() != 2) {
    return fail(ErrorCode::kInvalidArgument, "report: a comparison: expected two records, got {}",
                data.records.size());
  }
  return check_comparison(*data.comparison, spec);
}

std::string title_of(const ReportData& data) {
  if (!data.title.empty()) return data.title;
  if (data.records.size() == 1) return data.records[0].name;
  return fmt::format("{} and {}", data.records[0].name, data.records[1].name);
}

}  // namespace

Result<std::string> render_report(const ReportData& data) {
  MOETAPE_TRY(check(data));
  return guard_memory("report", [&]() -> Result<std::string> {
    const std::string title = title_of(data);
    const std::string json = report::page_json(data, title);
    const std::string style_hash = base64_of_hex(report::kStyle.sha256);
    const std::string script_hash = base64_of_hex(report::kScript.sha256);
    const std::string html_title = report::html_text(title);
    const std::array<Filling, 6> fillings = {{{"title", html_title},
                                              {"style_hash", style_hash},
                                              {"script_hash", script_hash},
                                              {"style", report::kStyle.text},
                                              {"script", report::kScript.text},
                                              {"data", json}}};
    return fill(report::kPage.text, fillings);
  });
}

}  // namespace moetape::inline v0
