// moetape info: what a file holds.

#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "input.h"
#include "json.h"
#include "refusal.h"
#include "text.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  bool json = false;
};

std::vector<std::pair<std::string, std::string>> spec_facts(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  std::vector<std::pair<std::string, std::string>> facts;
  if (!fields.model.empty()) facts.emplace_back("model", fields.model);
  if (fields.stack != "target") facts.emplace_back("stack", fields.stack);
  facts.emplace_back("layers", fmt::format("{} of {}: {}", spec.num_moe_layers(), spec.num_layers(),
                                           layers_text(spec.layers())));
  for (const auto& [layer, reason] : fields.excluded) {
    facts.emplace_back("excluded", fmt::format("{}: {}", layer, reason));
  }
  facts.emplace_back("experts", fmt::format("top {} of {}{}", spec.top_k(), count_text(spec.num_experts()),
                                            spec.distinct() ? "" : ", which may repeat"));
  if (spec.shared_columns() > 0) facts.emplace_back("shared", count_text(spec.shared_columns()));
  facts.emplace_back("row", bytes_text(spec.row_bytes()));
  facts.emplace_back("fingerprint", fingerprint_text(spec));
  return facts;
}

int run(const Options& options, Console& console) {
  Json all = Json::array();
  for (const std::string& file : options.files) {
    const RouteSpec spec = read_spec(file);
    if (options.json) {
      all.push_back({{"file", file}, {"kind", "spec"}, {"spec", json_of(spec)}});
    } else {
      auto facts = spec_facts(spec);
      facts.insert(facts.begin(), {"file", file});
      console.print(facts_text(console, facts));
    }
  }
  if (options.json) print_json(console, all);
  return kFine;
}

}  // namespace

void add_info(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("info", "What files hold");
  command.files(options->files, "Tapes, or the config.json of a model");
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape info run.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
