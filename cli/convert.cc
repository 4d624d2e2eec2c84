// moetape convert: wire forms and answers into tapes, tapes into wire forms, one sequence after another.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "output.h"
#include "ranges.h"
#include "reading.h"
#include "refusal.h"
#include "sinks.h"
#include "tapes.h"

namespace moetape::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  ReadFlags read;
  SelectionFlags selection;
  OutputOptions output;
  FormFlags form;
  TapeFlags tape;
};

bool selects(const SelectionFlags& flags) {
  return !flags.sequences.empty() || !flags.ids.empty() || !flags.positions.empty() || !flags.layers.empty();
}

RouteSpec spec_for(const Options& options, const Input& first) {
  if (!options.read.spec.empty()) return read_spec(options.read.spec);
  if (!first.is_tape()) refuse("--spec: needed to read {}, which is no tape", first.name());
  return need(first.tape()).spec();
}

std::unique_ptr<Sink> sink_for(const Options& options, const Input& first, const RouteSpec& spec,
                               const Console& console) {
  RouteSpec written = spec;
  if (!options.selection.layers.empty()) {
    written = need(spec.with_layers(parse_layers(options.selection.layers, "--layers")), "--layers");
  }
  if (const auto dialect = options.form.dialect(options.output)) {
    return form_sink(options.output, written, *dialect, options.form.options(), console);
  }
  options.output.check(console);
  const TapeOptions like = first.is_tape() ? need(first.tape()).options() : TapeOptions();
  return tape_sink(options.output, written, options.tape.options(written, like));
}

// `progress` counts sequences or whole files.
void convert_tape(const Tape& tape, const Options& options, const RouteSpec& spec, const std::string& name,
                  Sink& sink, Progress& progress, bool by_sequence) {
  if (tape.spec().fingerprint() != spec.fingerprint()) {
    refuse("{}: expected a tape of the spec {}, got {}", name, fingerprint_text(spec),
           fingerprint_text(tape.spec()));
  }
  for_each_chosen(tape, options.selection.selection(tape), [&](const Part& part) {
    sink.add(tape, part.sequence, part.start, part.end);
    progress.advance(by_sequence ? 1 : 0);
  });
}

int run(const Options& options, Console& console) {
  const std::vector<SourceFile> files = find_files(options.files);
  Input input(files.front().path);
  const RouteSpec spec = spec_for(options, input);
  const std::unique_ptr<Sink> sink = sink_for(options, input, spec, console);
  const bool by_sequence = files.size() == 1 && input.is_tape();
  Progress progress(console, "convert",
                    by_sequence ? need(input.tape()).num_sequences() : static_cast<int64_t>(files.size()));
  for (size_t index = 0; index < files.size(); ++index) {
    if (index > 0) input = Input(files[index].path);
    if (input.is_tape()) {
      convert_tape(need(input.tape()), options, spec, input.name(), *sink, progress, by_sequence);
    } else if (selects(options.selection)) {
      refuse("--sequences, --id, --positions and --layers choose from tapes; {} is none", input.name());
    } else {
      for (const NamedRoutes& found : read_routes(input, files[index].id, spec, options.read)) {
        sink->add(found.routes, found.id);
      }
    }
    progress.advance(by_sequence ? 0 : 1);
  }
  sink->finish(console);
  return kFine;
}

}  // namespace

void add_convert(Program& program) {
  auto options = std::make_shared<Options>();
  Command& command =
      program.add("convert", "Turn wire forms and answers into tapes, and tapes into wire forms");
  command.files(options->files, "Tapes, wire forms, answers, and folders of them; - is standard input");
  options->output.declare(command, "What to write; a folder, as out/, has a file for each sequence");
  options->form.declare(command);
  options->read.declare(command);
  options->selection.declare(command);
  options->tape.declare(command);
  command.example("moetape convert answers/ --spec model/config.json -o run.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
