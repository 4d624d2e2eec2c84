// moetape verify: whether tapes are sound, to the last byte.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
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

// Damage and another spec are faults of the file; what the system or a newer format keeps from being read is
// not.
std::vector<TapeFault> faults_of(const std::string& file, const std::optional<RouteSpec>& spec,
                                 int64_t& num_sequences) {
  const Result<Tape> tape = file == "-" ? Input(file).tape() : Tape::open(file);
  if (!tape && tape.error().code != ErrorCode::kCorruptData) need(tape);
  if (!tape) return {{-1, tape.error()}};
  num_sequences = tape->num_sequences();
  std::vector<TapeFault> faults = tape->verify();
  if (spec && spec->fingerprint() != tape->spec().fingerprint()) {
    std::string message = fmt::format("{}: expected the spec of fingerprint {}, got {}", file,
                                      fingerprint_text(*spec), fingerprint_text(tape->spec()));
    faults.insert(faults.begin(), {-1, {ErrorCode::kSpecMismatch, std::move(message)}});
  }
  return faults;
}

int run(const Options& options, Console& console) {
  std::optional<RouteSpec> spec;
  if (!options.spec.empty()) spec = read_spec(options.spec);
  int code = kFine;
  Json all = Json::array();
  for (const std::string& file : options.files) {
    int64_t num_sequences = 0;
    const std::vector<TapeFault> faults = faults_of(file, spec, num_sequences);
    if (!faults.empty()) code = kCheckFailed;
    if (options.json) {
      Json list = Json::array();
      for (const TapeFault& fault : faults) list.push_back(json_of(fault));
      all.push_back({{"file", file},
                     {"sound", faults.empty()},
                     {"num_sequences", num_sequences},
                     {"faults", std::move(list)}});
    } else if (faults.empty()) {
      console.print(fmt::format("{}: {}, {} sequences\n", printable(file),
                                console.styled(Style::kGood, "sound"), count_text(num_sequences)));
    }
    for (const TapeFault& fault : faults) {
      if (options.json) break;
      console.print(
          fmt::format("{} {}\n", console.styled(Style::kBad, "fault:"), printable(fault.error.message)));
    }
  }
  if (options.json) print_json(console, all);
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
