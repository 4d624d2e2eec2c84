// moetape stats: what records hold, and how evenly they load the experts.

#include "moetape/stats.h"

#include <fmt/format.h>

#include <memory>
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
  bool load = false;
  bool json = false;
};

// More lines than one reads.
constexpr size_t kMostVersions = 8;

std::string versions_text(const Stats& stats) {
  std::vector<std::string> parts;
  for (const auto& [version, rows] : stats.rows_by_version) {
    if (parts.size() == kMostVersions) {
      parts.push_back(fmt::format("{} more", stats.rows_by_version.size() - kMostVersions));
      break;
    }
    parts.push_back(
        fmt::format("{}: {}", version ? fmt::format("{}", *version) : "none", counted(rows, "row")));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string layers_table(const Stats& stats, const Console& console) {
  Table table("rrrrrrr", {"layer", "max/mean", "variation", "entropy", "gini", "unused", "same as before"});
  for (int32_t column = 0; column < stats.spec.num_moe_layers(); ++column) {
    const auto balance = balance_of(stats.layer_load(stats.load, column));
    const auto part = [&balance](double Balance::* member) {
      return decimal_text(balance ? std::optional(*balance.*member) : std::nullopt);
    };
    table.add({fmt::format("{}", stats.spec.layers()[column]), part(&Balance::max_over_mean),
               part(&Balance::variation), part(&Balance::entropy), part(&Balance::gini),
               balance ? count_text(balance->num_unused) : "-", rate_text(stats.reuse[column].overlap())});
  }
  return table.text(console);
}

void print_text(const Stats& stats, const std::string& file, Console& console) {
  const Stats::Bytes bytes = stats.bytes();
  const int64_t num_missing = stats.num_rows() - stats.num_valid_rows();
  console.print(facts_text(
      console,
      {{"file", file},
       {"sequences", count_text(stats.num_sequences)},
       {"rows", fmt::format("{}, {} missing", count_text(stats.num_rows()), count_text(num_missing))},
       {"versions", versions_text(stats)},
       {"bytes", fmt::format("{}; bit-packed {}; as int32 {}", bytes_text(bytes.narrow),
                             bytes_text(bytes.bitpacked), bytes_text(bytes.int32))}}));
  console.print(layers_table(stats, console));
}

int run(const Options& options, Console& console) {
  if (options.load && !options.json) refuse("--load: is for --json");
  Json all = Json::array();
  const int code = for_each_file(options.files, console, [&](const std::string& file) {
    const Stats stats = stats_of(open_tape(file), console);
    if (options.json) {
      Json record = {{"file", file}};
      record.update(json_of(stats, options.load));
      all.push_back(std::move(record));
    } else {
      print_text(stats, file, console);
    }
    return kFine;
  });
  if (options.json && !all.empty()) print_json(console, all);
  return code;
}

}  // namespace

void add_stats(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("stats", "What tapes hold, and how evenly they load the experts");
  command.files(options->files, "Tapes; - is standard input");
  command.flag("--load", options->load, "With --json: how often each expert was chosen");
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape stats run.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
