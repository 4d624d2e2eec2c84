// moetape merge: the sequences of several tapes in one.

#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "output.h"
#include "refusal.h"
#include "tapes.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  OutputOptions output;
  TapeFlags tape;
};

int run(const Options& options, Console& console) {
  options.output.check(console);
  std::vector<Tape> tapes;
  int64_t num_sequences = 0;
  for (const std::string& file : options.files) {
    tapes.push_back(open_tape(file));
    check_same_spec(tapes.back(), file, tapes.front(), options.files.front());
    num_sequences += tapes.back().num_sequences();
  }
  const Tape& first = tapes.front();
  TapeOutput output(options.output, first.spec(), options.tape.options(first.spec(), first.options()));
  Progress progress(console, "merge", num_sequences);
  for (const Tape& tape : tapes) {
    for_each_chosen(tape, {}, [&](const Part& part) {
      need(output.writer().append(tape, part.sequence, part.start, part.end));
      progress.advance();
    });
  }
  output.finish(console);
  return kFine;
}

}  // namespace

void add_merge(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("merge", "Put the sequences of several tapes into one");
  command.files(options->files, "Tapes of one spec; - is standard input");
  options->output.declare(command, "The tape to write; - is standard output");
  options->tape.declare(command);
  command.example("moetape merge rank0.tape rank1.tape -o run.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
