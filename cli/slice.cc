// moetape slice: a part of a tape, as a tape.

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
  SelectionFlags selection;
  OutputOptions output;
  TapeFlags tape;
};

int run(const Options& options, Console& console) {
  options.output.check(console);
  const Tape tape = open_tape(options.files.front());
  const TapeSelection selection = options.selection.selection(tape);
  const RouteSpec spec =
      selection.layers.empty() ? tape.spec() : need(tape.spec().with_layers(selection.layers), "--layers");
  TapeOutput output(options.output, spec, options.tape.options(spec, tape.options()));
  Progress progress(console, "slice", static_cast<int64_t>(chosen_sequences(tape, selection).size()));
  for_each_chosen(tape, selection, [&](const Part& part) {
    need(output.writer().append(tape, part.sequence, part.start, part.end));
    progress.advance();
  });
  output.finish(console);
  return kFine;
}

}  // namespace

void add_slice(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command = program.add("slice", "Take a part of a tape: sequences, positions, layers");
  command.files(options->files, "A tape; - is standard input", 1, 1);
  options->selection.declare(command);
  options->output.declare(command, "The tape to write; - is standard output");
  options->tape.declare(command);
  command.example("moetape slice run.tape --sequences 0-9 --layers 3-10 -o part.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
