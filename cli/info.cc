// moetape info: what a file holds.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "input.h"
#include "json.h"
#include "moetape/wire.h"
#include "reading.h"
#include "refusal.h"
#include "tapes.h"
#include "text.h"

namespace moetape::cli {
namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

struct Options {
  std::vector<std::string> files;
  bool sequences = false;
  bool json = false;
};

Facts spec_facts(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  Facts facts;
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

// What is said of all sequences of a tape.
struct Entries {
  std::vector<TapeEntry> list;  // only if they are to be shown
  int64_t num_missing = 0;
  int64_t num_with_tokens = 0;
  std::set<uint32_t> versions;
};

Entries entries_of(const Tape& tape, bool keep) {
  Entries entries;
  for (int64_t sequence = 0; sequence < tape.num_sequences(); ++sequence) {
    TapeEntry entry = need(tape.entry(sequence));
    entries.num_missing += entry.num_missing;
    entries.num_with_tokens += entry.has_tokens ? 1 : 0;
    for (const VersionRun& run : entry.versions) entries.versions.insert(run.version);
    if (keep) entries.list.push_back(std::move(entry));
  }
  return entries;
}

std::string versions_text(const std::set<uint32_t>& versions) {
  if (versions.empty()) return "-";
  return versions.size() == 1
             ? fmt::format("{}", *versions.begin())
             : fmt::format("{} from {} to {}", count_text(static_cast<int64_t>(versions.size())),
                           *versions.begin(), *versions.rbegin());
}

std::string sequences_table(const std::vector<TapeEntry>& entries, const Console& console) {
  Table table("rlrrrll", {"number", "id", "start", "end", "missing", "tokens", "versions"});
  for (size_t number = 0; number < entries.size(); ++number) {
    const TapeEntry& entry = entries[number];
    std::set<uint32_t> versions;
    for (const VersionRun& run : entry.versions) versions.insert(run.version);
    table.add({fmt::format("{}", number), entry.id, count_text(entry.start), count_text(entry.end),
               count_text(entry.num_missing), entry.has_tokens ? "yes" : "no", versions_text(versions)});
  }
  return table.text(console);
}

int64_t file_bytes(const Tape& tape) {
  int64_t bytes = 0;
  for (const TapeFile& file : tape.files()) bytes += file.num_bytes;
  return bytes;
}

Json tape_json(const std::string& file, const Tape& tape, const Options& options) {
  const Entries entries = entries_of(tape, options.sequences);
  Json json = {{"file", file}, {"kind", "tape"}};
  json.update(json_of(tape));
  json["num_missing"] = entries.num_missing;
  json["num_sequences_with_tokens"] = entries.num_with_tokens;
  json["versions"] = entries.versions;
  if (options.sequences) {
    Json list = Json::array();
    for (const TapeEntry& entry : entries.list) list.push_back(json_of(entry));
    json["sequences"] = std::move(list);
  }
  return json;
}

std::string tape_text(const std::string& file, const Tape& tape, const Options& options,
                      const Console& console) {
  const Entries entries = entries_of(tape, options.sequences);
  const auto num_files = static_cast<int64_t>(tape.files().size());
  Facts facts = {
      {"file", file},
      {"kind", num_files > 1 ? "tape in " + counted(num_files, "file") : "tape"},
      {"size", bytes_text(file_bytes(tape))},
      {"sequences", count_text(tape.num_sequences())},
      {"rows", fmt::format("{}, {} missing", count_text(tape.num_rows()), count_text(entries.num_missing))},
      {"tokens", "known of " + counted(entries.num_with_tokens, "sequence")},
      {"versions", versions_text(entries.versions)},
      {"codec", std::string(codec_name(tape.options().codec))}};
  for (const auto& group : tape.options().layer_groups) facts.emplace_back("layer group", layers_text(group));
  const Facts spec = spec_facts(tape.spec());
  facts.insert(facts.end(), spec.begin(), spec.end());
  return facts_text(console, facts) + (options.sequences ? sequences_table(entries.list, console) : "");
}

Json wire_json(const std::string& file, const Sniffed& sniffed) {
  Json dialects = Json::array();
  for (const Dialect dialect : sniffed.dialects) dialects.push_back(dialect_name(dialect));
  return {{"file", file}, {"kind", sniffed.answer ? "answer" : "wire"}, {"dialects", std::move(dialects)}};
}

std::string wire_text(const Json& json, const Console& console) {
  Facts facts = {{"file", json["file"]}, {"kind", json["kind"] == "answer" ? "HTTP answer" : "wire form"}};
  for (const Json& dialect : json["dialects"]) facts.emplace_back("may be", dialect);
  return facts_text(console, facts);
}

void add_spec(const std::string& file, const RouteSpec& spec, const Options& options, Json& all,
              Console& console) {
  if (options.json) return all.push_back({{"file", file}, {"kind", "spec"}, {"spec", json_of(spec)}});
  Facts facts = spec_facts(spec);
  facts.insert(facts.begin(), {{"file", file}, {"kind", "spec"}});
  console.print(facts_text(console, facts));
}

// What info --json printed of a spec is a list with an object, as some answers are.
bool is_printed_spec(const Input& input, const Sniffed& sniffed) {
  if (!sniffed.answer || input.bytes()[input.bytes().find_first_not_of(" \t\r\n")] != '[') return false;
  const ParsedJson json = ParsedJson::parse(input.bytes(), nullptr, false);
  return json.is_array() && json.size() == 1 && json[0].contains("spec");
}

// What is no tape: a form, an answer or a spec.
void add_other(const std::string& file, const Input& input, const Options& options, Json& all,
               Console& console) {
  if (options.sequences) refuse("--sequences: is for tapes; {} is none", input.name());
  const Result<Sniffed> sniffed = sniff_input(input);
  if (!sniffed || is_printed_spec(input, *sniffed)) {
    const size_t first = input.bytes().find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos || (input.bytes()[first] != '{' && input.bytes()[first] != '[')) {
      refuse("{}: expected a tape, a form, an answer or the configuration of a model, got {}", input.name(),
             input.beginning());
    }
    const ParsedJson json = parse_json(input.bytes(), input.name());
    return add_spec(file, spec_from_json(json, input.name()), options, all, console);
  }
  Json json = wire_json(file, *sniffed);
  if (options.json) return all.push_back(std::move(json));
  console.print(wire_text(json, console));
}

int add_file(const std::string& file, const Options& options, Json& all, Console& console) {
  std::error_code error;
  if (file != "-" && std::filesystem::is_directory(file, error)) {
    if (options.sequences) refuse("--sequences: is for tapes; {} is a folder", file);
    add_spec(file, read_spec(file), options, all, console);
    return kFine;
  }
  const Input input(file);
  if (!input.is_tape()) {
    add_other(file, input, options, all, console);
    return kFine;
  }
  const Tape tape = need(input.tape());
  if (options.json) {
    all.push_back(tape_json(file, tape, options));
  } else {
    console.print(tape_text(file, tape, options, console));
  }
  return kFine;
}

int run(const Options& options, Console& console) {
  Json all = Json::array();
  const int code = for_each_file(
      options.files, console, [&](const std::string& file) { return add_file(file, options, all, console); });
  if (options.json && !all.empty()) print_json(console, all);
  return code;
}

}  // namespace

void add_info(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("info", "What files hold");
  command.files(options->files, "Tapes, answers, the config.json or folder of a model; - is standard input");
  command.flag("--sequences", options->sequences, "List the sequences of tapes");
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape info run.tape --sequences");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
