// moetape verify: whether tapes are sound, to the last byte.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "input.h"
#include "json.h"
#include "refusal.h"
#include "tapes.h"
#include "text.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string spec;
  bool json = false;
};

struct Verdict {
  std::vector<TapeFault> faults;
  int64_t num_sequences = 0;
};

// Damage and another spec are faults of the file; what the system or a newer format keeps from being read,
// and what is no tape, are not.
Verdict verdict_of(const std::string& file, const std::optional<RouteSpec>& spec) {
  const Result<Tape> tape = try_open_tape(file);
  if (!tape && tape.error().code != ErrorCode::kCorruptData) need(tape);
  if (!tape) return {{{-1, tape.error()}}};
  Verdict verdict{tape->verify(), tape->num_sequences()};
  if (spec && spec->fingerprint() != tape->spec().fingerprint()) {
    std::string message =
        fmt::format("{}: expected the spec of fingerprint {}, got {}: {}", file, fingerprint_text(*spec),
                    fingerprint_text(tape->spec()), spec_difference(*spec, tape->spec()));
    verdict.faults.insert(verdict.faults.begin(), {-1, {ErrorCode::kSpecMismatch, std::move(message)}});
  }
  return verdict;
}

Json verdict_json(const std::string& file, const Verdict& verdict) {
  Json faults = Json::array();
  for (const TapeFault& fault : verdict.faults) faults.push_back(json_of(fault));
  return {{"file", file},
          {"sound", verdict.faults.empty()},
          {"num_sequences", verdict.num_sequences},
          {"faults", std::move(faults)}};
}

void print_text(const std::string& file, const Verdict& verdict, Console& console) {
  if (verdict.faults.empty()) {
    console.print(fmt::format("{}: {}, {}\n", printable(file), console.styled(Style::kGood, "sound"),
                              counted(verdict.num_sequences, "sequence")));
  }
  for (const TapeFault& fault : verdict.faults) {
    console.print(
        fmt::format("{} {}\n", console.styled(Style::kBad, "fault:"), printable(fault.error.message)));
  }
}

int run(const Options& options, Console& console) {
  std::optional<RouteSpec> spec;
  if (!options.spec.empty()) spec = read_spec(options.spec);
  Json all = Json::array();
  const int code = for_each_file(options.files, console, [&](const std::string& file) {
    const Verdict verdict = verdict_of(file, spec);
    if (options.json) all.push_back(verdict_json(file, verdict));
    if (!options.json) print_text(file, verdict, console);
    return verdict.faults.empty() ? kFine : kCheckFailed;
  });
  if (options.json && !all.empty()) print_json(console, all);
  return code;
}

}  // namespace

void add_verify(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("verify", "Check every byte of tapes; exit code 1 if one is damaged");
  command.files(options->files, "Tapes; - is standard input");
  command.text("--spec", options->spec, "FILE", "Also check that they are of this spec or model",
               ValueKind::kFile);
  command.flag("--json", options->json, "Print JSON");
  command.example("moetape verify run.tape --spec model/config.json");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
