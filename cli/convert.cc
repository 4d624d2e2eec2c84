// moetape convert: wire forms and answers into tapes, tapes into wire forms, one sequence after another.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "commands.h"
#include "json.h"
#include "output.h"
#include "ranges.h"
#include "reading.h"
#include "refusal.h"
#include "sinks.h"
#include "sources.h"
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

// What forms are called after their files; what tapes call their sequences stays as it is.
class Names {
 public:
  // Refuses a name of a form that something else has already.
  void add(const std::string& id, const std::string& file, bool is_form) {
    const auto [found, is_new] = files_.try_emplace(id, file, is_form);
    const auto& [other, other_is_form] = found->second;
    if (is_new || (!is_form && !other_is_form)) return;
    refuse("{}: its sequence would be called '{}', and so is one of {}; rename or convert them apart", file,
           id, other);
  }

 private:
  std::unordered_map<std::string, std::pair<std::string, bool>> files_;
};

bool selects(const SelectionFlags& flags) {
  return !flags.sequences.empty() || !flags.ids.empty() || !flags.positions.empty() || !flags.layers.empty();
}

RouteSpec spec_for(const Options& options, const Input& first) {
  if (!options.read.spec.empty()) return read_spec(options.read.spec);
  if (!first.is_tape()) refuse("--spec: needed to read {}, which is no tape", first.name());
  return need(first.tape()).spec();
}

// What is written, before anything is read: nothing for a tape. Refuses what cannot be meant.
std::optional<Dialect> dialect_to_write(const Options& options, const Console& console) {
  const auto dialect = options.form.dialect(options.output);
  options.form.check_unused(options.output.path, dialect);
  if (dialect) options.tape.check_unused(options.output.path, dialect_name(*dialect));
  const bool is_text = dialect && dialect_info(*dialect).kind == FormKind::kText;
  if (!dialect || !names_folder(options.output.path)) options.output.check(console, is_text);
  return dialect;
}

std::unique_ptr<Sink> sink_for(const Options& options, std::optional<Dialect> dialect, const Input& first,
                               const RouteSpec& spec) {
  RouteSpec written = spec;
  if (!options.selection.layers.empty()) {
    written = need(spec.with_layers(parse_layers(options.selection.layers, "--layers")), "--layers");
  }
  if (dialect) return form_sink(options.output, written, *dialect, options.form.options());
  const TapeOptions like = first.is_tape() ? need(first.tape()).options() : TapeOptions();
  return tape_sink(options.output, written, options.tape.options(written, like));
}

class Conversion {
 public:
  Conversion(const Options& options, const RouteSpec& spec, Sink& sink)
      : options_(options), spec_(spec), sink_(sink) {}

  // `advance` is called after each sequence.
  void add_tape(const Input& input, const std::function<void()>& advance) {
    options_.read.check_unused(input.name());
    const Tape tape = need(input.tape());
    if (tape.spec().fingerprint() != spec_.fingerprint()) {
      refuse("{}: expected a tape of the spec {}, got {}: {}", input.name(), fingerprint_text(spec_),
             fingerprint_text(tape.spec()), spec_difference(spec_, tape.spec()));
    }
    for_each_chosen(tape, options_.selection.selection(tape), [&](const Part& part) {
      const std::string id = need(tape.entry(part.sequence)).id;
      if (!id.empty()) names_.add(id, input.name(), false);
      sink_.add(tape, part.sequence, part.start, part.end);
      advance();
    });
  }

  void add_forms(const Input& input, const std::string& id) {
    if (selects(options_.selection)) {
      refuse("--sequences, --id, --positions and --layers choose from tapes; {} is none", input.name());
    }
    for (const NamedRoutes& found : read_routes(input, id, spec_, options_.read)) {
      names_.add(found.id, input.name(), true);
      sink_.add(found.routes, found.id);
    }
  }

 private:
  const Options& options_;
  const RouteSpec& spec_;
  Sink& sink_;
  Names names_;
};

int run(const Options& options, Console& console) {
  const auto dialect = dialect_to_write(options, console);
  const std::vector<SourceFile> files = find_files(options.files, options.output.path);
  Input input(files.front().path);
  const RouteSpec spec = spec_for(options, input);
  const std::unique_ptr<Sink> sink = sink_for(options, dialect, input, spec);
  Conversion conversion(options, spec, *sink);
  // A bar of sequences where there is one tape, else of files.
  const bool by_sequence = files.size() == 1 && input.is_tape();
  Progress progress(console, "convert",
                    by_sequence ? need(input.tape()).num_sequences() : static_cast<int64_t>(files.size()));
  for (size_t index = 0; index < files.size(); ++index) {
    if (index > 0) input = Input(files[index].path);
    if (input.is_tape()) {
      conversion.add_tape(input, [&] { progress.advance(by_sequence ? 1 : 0); });
    } else {
      conversion.add_forms(input, files[index].id);
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
  command.files(options->files,
                "Tapes, wire forms, answers, and folders of them (dead links, links to folders, pipes and "
                "devices in them "
                "are refused); - is standard input");
  options->output.declare(command, "What to write; a folder, as out/, has a file for each sequence");
  options->form.declare(command);
  options->read.declare(command);
  options->selection.declare(command);
  options->tape.declare(command);
  command.example("moetape convert answers/ --spec model/config.json -o run.tape");
  command.run([options](Console& console) { return run(*options, console); });
}

}  // namespace moetape::cli
