// moetape compare: how far two records of the same tokens agree.

#include "moetape/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "json.h"
#include "records.h"
#include "refusal.h"
#include "tapes.h"
#include "text.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  std::optional<double> max_rerouted_rows;
  std::optional<double> max_rerouted_routers;
  std::optional<double> max_unequal_rows;
  std::optional<double> max_unequal_routers;
  std::optional<double> min_overlap;
  bool complete = false;
  std::optional<int64_t> rows;
  bool json = false;
};

// One thing that was asked to be so.
struct Check {
  std::string name;  // the option
  std::optional<double> bound;
  std::optional<double> found;
  bool passed = false;
  std::string reason = {};  // why it failed, where no number says it
};

// What keeps two records from being complete; empty if nothing does.
std::string incomplete_text(const Comparison& comparison, const Pairing& pairing) {
  const std::pair<int64_t, std::string_view> counts[] = {{std::ssize(pairing.only_in_a), "sequence"},
                                                         {std::ssize(pairing.only_in_b), "sequence"},
                                                         {comparison.num_rows_only_in_a, "row"},
                                                         {comparison.num_rows_only_in_b, "row"},
                                                         {comparison.num_rows_in_neither, "row"}};
  static constexpr std::string_view kWhere[] = {"only in a", "only in b", "only in a", "only in b",
                                                "in neither"};
  std::vector<std::string> parts;
  for (size_t index = 0; index < std::size(counts); ++index) {
    const auto& [number, what] = counts[index];
    if (number > 0) parts.push_back(fmt::format("{} {}", counted(number, what), kWhere[index]));
  }
  if (parts.empty() && comparison.total.num_rows == 0) parts.emplace_back("nothing was compared");
  return fmt::format("{}", fmt::join(parts, ", "));
}

// A bound on a rate of nothing fails: nothing was shown.
std::vector<Check> checks_of(const Options& options, const Comparison& comparison, const Pairing& pairing) {
  std::vector<Check> checks;
  const auto at_most = [&](std::string name, std::optional<double> bound, std::optional<double> found) {
    if (bound) checks.push_back({std::move(name), bound, found, found && *found <= *bound});
  };
  const Agreement& total = comparison.total;
  at_most("--max-rerouted-rows", options.max_rerouted_rows, total.rerouted_rows_rate());
  at_most("--max-rerouted-routers", options.max_rerouted_routers, total.rerouted_routers_rate());
  at_most("--max-unequal-rows", options.max_unequal_rows, total.unequal_rows_rate());
  at_most("--max-unequal-routers", options.max_unequal_routers, total.unequal_routers_rate());
  if (options.min_overlap) {
    const auto found = total.overlap();
    checks.push_back({"--min-overlap", options.min_overlap, found, found && *found >= *options.min_overlap});
  }
  if (options.complete) {
    const std::string reason = incomplete_text(comparison, pairing);
    checks.push_back({"--complete", {}, {}, reason.empty(), reason});
  }
  return checks;
}

Json json_of(const Check& check) {
  return {{"check", check.name},
          {"bound", cli::json_of(check.bound)},
          {"found", cli::json_of(check.found)},
          {"passed", check.passed}};
}

std::string check_text(const Check& check) {
  if (!check.bound)
    return check.reason.empty() ? check.name : fmt::format("{}: {}", check.name, check.reason);
  return fmt::format("{} {:g}: {}", check.name, *check.bound,
                     check.found ? fmt::format("{:.6g}", *check.found) : "nothing was compared");
}

Table agreement_table(std::string first) {
  return Table("lrrrrr", {std::move(first), "rows", "unequal", "rerouted", "routers rerouted", "overlap"});
}

void add_agreement(Table& table, std::string first, const Agreement& agreement) {
  table.add({std::move(first), count_text(agreement.num_rows), rate_text(agreement.unequal_rows_rate()),
             rate_text(agreement.rerouted_rows_rate()), rate_text(agreement.rerouted_routers_rate()),
             rate_text(agreement.overlap())});
}

void print_text(const Options& options, const Comparison& comparison, const Pairing& pairing,
                Console& console) {
  console.print(facts_text(
      console,
      {{"a", options.files[0]},
       {"b", options.files[1]},
       {"sequences", fmt::format("{} compared by {}, {} only in a, {} only in b",
                                 count_text(comparison.num_sequences), pairing.by_id ? "id" : "number",
                                 count_text(static_cast<int64_t>(pairing.only_in_a.size())),
                                 count_text(static_cast<int64_t>(pairing.only_in_b.size())))},
       {"rows", fmt::format("{} compared, {} only in a, {} only in b, {} in neither",
                            count_text(comparison.total.num_rows), count_text(comparison.num_rows_only_in_a),
                            count_text(comparison.num_rows_only_in_b),
                            count_text(comparison.num_rows_in_neither))}}));
  Table table = agreement_table("layer");
  for (int32_t column = 0; column < comparison.spec.num_moe_layers(); ++column) {
    add_agreement(table, fmt::format("{}", comparison.spec.layers()[column]), comparison.by_layer[column]);
  }
  add_agreement(table, "all", comparison.total);
  console.print(table.text(console));
  if (comparison.rerouted_rows.empty()) return;
  Table rows("rrrr", {"sequence", "position", "token", "layers rerouted"});
  for (const ReroutedRow& row : comparison.rerouted_rows) {
    rows.add({fmt::format("{}", row.sequence), fmt::format("{}", row.position),
              row.token ? fmt::format("{}", *row.token) : "-", fmt::format("{}", row.num_rerouted_routers)});
  }
  console.print(rows.text(console));
}

int run(const Options& options, Console& console) {
  const Tape a = open_tape(options.files[0]);
  const Tape b = open_tape(options.files[1]);
  check_same_spec(b, options.files[1], a, options.files[0]);
  const Pairing pairing = pair_tapes(a, b);
  const Comparison comparison =
      compare_tapes(a, b, pairing, {.max_rerouted_rows = options.rows.value_or(8)}, console);
  const std::vector<Check> checks = checks_of(options, comparison, pairing);
  int code = kFine;
  Json list = Json::array();
  for (const Check& check : checks) {
    if (!check.passed) code = kCheckFailed;
    list.push_back(json_of(check));
  }
  if (options.json) {
    Json json = {{"a", options.files[0]},
                 {"b", options.files[1]},
                 {"paired_by", pairing.by_id ? "id" : "number"},
                 {"sequences_only_in_a", pairing.only_in_a},
                 {"sequences_only_in_b", pairing.only_in_b}};
    json.update(cli::json_of(comparison));
    json["checks"] = std::move(list);
    print_json(console, json);
    return code;
  }
  print_text(options, comparison, pairing, console);
  for (const Check& check : checks) {
    console.print(fmt::format(
        "{} {}\n",
        console.styled(check.passed ? Style::kGood : Style::kBad, check.passed ? "passed:" : "failed:"),
        check_text(check)));
  }
  return code;
}

}  // namespace

void add_compare(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("compare", "How far two records of the same tokens agree");
  command.files(options->files, "Two tapes", 2, 2);
  command.rate("--max-rerouted-rows", options->max_rerouted_rows,
               "Fail above this share of rows with a layer whose experts differ");
  command.rate("--max-rerouted-routers", options->max_rerouted_routers,
               "Fail above this share of routers (row and layer) whose experts differ");
  command.rate("--max-unequal-rows", options->max_unequal_rows, "The same, where another order counts too");
  command.rate("--max-unequal-routers", options->max_unequal_routers,
               "The same, where another order counts too");
  command.rate("--min-overlap", options->min_overlap, "Fail below this share of experts in common");
  command.flag("--complete", options->complete, "Fail if a row or sequence is not in both");
  command.number("--rows", options->rows, "Most rerouted rows to list (8)", 0, 1'000'000);
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape compare rollout.tape training.tape --max-rerouted-rows 0.01");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
