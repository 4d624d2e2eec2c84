// moetape diagnose: why two records that should agree do not.

#include "moetape/diagnose.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  std::optional<int64_t> max_rows;
  bool experts = false;
  bool json = false;
};

std::vector<Routes> read_sequences(const Tape& tape, const std::vector<int64_t>& sequences,
                                   const Console& console) {
  std::vector<Routes> routes;
  Progress progress(console, "read", static_cast<int64_t>(sequences.size()));
  for (const int64_t sequence : sequences) {
    routes.push_back(need(tape.read(sequence)));
    progress.advance();
  }
  return routes;
}

// Sequences by their numbers in the tapes.
void number_sequences(const Pairing& pairing, Diagnosis& diagnosis) {
  for (Cause& cause : diagnosis.causes) {
    for (RowMove& move : cause.moves) {
      move.sequence = pairing.pairs[static_cast<size_t>(move.sequence)].second;
      move.from_sequence = pairing.pairs[static_cast<size_t>(move.from_sequence)].first;
    }
  }
}

Json json_of(const RowMove& move) {
  return {{"sequence", move.sequence},
          {"position", move.position},
          {"from_sequence", move.from_sequence},
          {"from_position", move.from_position},
          {"num_rows", move.num_rows}};
}

Json json_of(const Cause& cause, bool with_experts) {
  Json json = {{"kind", cause_name(cause.kind)},
               {"text", cause.text},
               {"num_rows", cause.num_rows},
               {"num_explained", cause.num_explained},
               {"share", cause.share()},
               {"shift", cause.shift},
               {"size", cause.size}};
  json["moves"] = Json::array();
  for (const RowMove& move : cause.moves) json["moves"].push_back(json_of(move));
  json["layers"] = Json::array();
  for (const auto& [of_b, of_a] : cause.layers) json["layers"].push_back({of_b, of_a});
  if (!with_experts) return json;
  json["experts"] = Json::object();
  for (const auto& [layer, experts] : cause.experts) json["experts"][fmt::format("{}", layer)] = experts;
  return json;
}

Json json_of(const Diagnosis& diagnosis, bool with_experts) {
  Json json = {{"num_rows", diagnosis.num_rows},
               {"num_in_place", diagnosis.num_in_place},
               {"num_rows_only_in_a", diagnosis.num_rows_only_in_a},
               {"num_rows_only_in_b", diagnosis.num_rows_only_in_b},
               {"num_rows_left_out", diagnosis.num_rows_left_out},
               {"num_unexplained", diagnosis.num_unexplained},
               {"unexplained_layers", diagnosis.unexplained_layers}};
  json["causes"] = Json::array();
  for (const Cause& cause : diagnosis.causes) json["causes"].push_back(json_of(cause, with_experts));
  return json;
}

int run(const Options& options, Console& console) {
  const Tape a = open_tape(options.files[0]);
  const Tape b = open_tape(options.files[1]);
  const Pairing pairing = pair_tapes(a, b);
  std::vector<int64_t> in_a;
  std::vector<int64_t> in_b;
  for (const auto& [of_a, of_b] : pairing.pairs) {
    in_a.push_back(of_a);
    in_b.push_back(of_b);
  }
  const DiagnoseOptions defaults;
  Diagnosis diagnosis = need(diagnose(read_sequences(a, in_a, console), read_sequences(b, in_b, console),
                                      {.max_rows = options.max_rows.value_or(defaults.max_rows)}),
                             fmt::format("a is {}, b is {}", options.files[0], options.files[1]));
  const bool same_spec = a.spec().fingerprint() == b.spec().fingerprint();
  const std::string difference = same_spec ? "" : spec_difference(a.spec(), b.spec());
  number_sequences(pairing, diagnosis);
  if (options.json) {
    Json json = {{"a", options.files[0]},
                 {"b", options.files[1]},
                 {"spec_difference", same_spec ? Json() : Json(difference)},
                 {"paired_by", pairing.by_id ? "id" : "number"},
                 {"sequences_only_in_a", pairing.only_in_a},
                 {"sequences_only_in_b", pairing.only_in_b}};
    json.update(json_of(diagnosis, options.experts));
    print_json(console, json);
  } else {
    console.print(facts_text(
        console, {{"a", options.files[0]},
                  {"b", options.files[1]},
                  {"specs", same_spec ? "the same" : "differ: " + difference},
                  {"sequences", fmt::format("{} compared by {}, {} only in a, {} only in b",
                                            count_text(static_cast<int64_t>(pairing.pairs.size())),
                                            pairing.by_id ? "id" : "number",
                                            count_text(static_cast<int64_t>(pairing.only_in_a.size())),
                                            count_text(static_cast<int64_t>(pairing.only_in_b.size())))}}));
    console.print(diagnosis.text());
  }
  return diagnosis.in_place() ? kFine : kCheckFailed;
}

}  // namespace

void add_diagnose(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("diagnose", "Why two records that should agree do not");
  command.files(options->files, "Two tapes", 2, 2);
  command.number("--max-rows", options->max_rows, "Rows to look at, from the first sequence on (131072)", 1,
                 int64_t{1} << 32);
  command.flag("--experts", options->experts, "With --json: the whole map of experts, too");
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape diagnose rollout.tape training.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
