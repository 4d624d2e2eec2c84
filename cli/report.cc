// moetape report: one HTML page that shows what a tape holds, and where two differ.

#include "moetape/report.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "input.h"
#include "output.h"
#include "records.h"
#include "refusal.h"
#include "tapes.h"
#include "token_text.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  OutputOptions output;
  std::string title;
  std::string token_text;
};

ReportRecord record_of(const std::string& file, const Tape& tape, const Console& console) {
  ReportRecord record{.name = std::filesystem::path(file).filename().string(),
                      .stats = stats_of(tape, console)};
  std::map<std::string, int64_t> parts;
  int64_t bytes = 0;
  for (const TapeFile& one : tape.files()) {
    bytes += one.num_bytes;
    for (const TapeTensor& tensor : one.tensors) parts[tensor.name] += tensor.num_bytes;
  }
  record.file_bytes = bytes;
  record.parts.assign(parts.begin(), parts.end());
  return record;
}

int run(const Options& options, Console& console) {
  options.output.check(console, true);
  std::vector<Tape> tapes;
  for (const std::string& file : options.files) {
    tapes.push_back(open_tape(file));
    check_same_spec(tapes.back(), file, tapes.front(), options.files.front());
  }
  ReportData data;
  data.title = options.title;
  if (!options.token_text.empty()) data.token_text = read_token_text(options.token_text);
  for (size_t index = 0; index < tapes.size(); ++index) {
    data.records.push_back(record_of(options.files[index], tapes[index], console));
  }
  if (tapes.size() == 2) {
    const Pairing pairing = pair_tapes(tapes[0], tapes[1]);
    data.comparison = compare_tapes(tapes[0], tapes[1], pairing, {}, console);
    for (const ReroutedRow& row : data.comparison->rerouted_rows) {
      data.sequence_names[row.sequence] = need(tapes[0].entry(row.sequence)).id;
    }
  }
  const std::string page = need(render_report(data));
  write_output(options.output, console, page);
  options.output.tell(console, data.records[0].stats.num_sequences, data.records[0].stats.num_rows());
  return kFine;
}

}  // namespace

void add_report(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("report", "Write an HTML page about a tape, or about two records");
  command.files(options->files, "One or two tapes", 1, 2);
  options->output.declare(command, "The page to write; - is standard output");
  command.text("--title", options->title, "TEXT", "Title of the page");
  command.text("--token-text", options->token_text, "FILE",
               "Texts of token ids: a tokenizer.json, a vocab.json, or JSON of id to text", ValueKind::kFile);
  command.example("moetape report rollout.tape training.tape -o report.html");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
