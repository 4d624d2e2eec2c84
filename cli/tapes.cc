#include "tapes.h"

#include <algorithm>
#include <numeric>

#include "input.h"
#include "json.h"
#include "ranges.h"
#include "refusal.h"
#include "text.h"

namespace moetape::cli {

Tape open_tape(const std::string& path) { return need(try_open_tape(path)); }

Result<Tape> try_open_tape(const std::string& path) {
  const Input input(path);
  if (!input.is_tape() && !input.claims_to_be_tape()) {
    refuse("{}: expected a tape, got {}", input.name(), input.beginning());
  }
  Result<Tape> tape = input.tape();
  // A safetensors file of somebody else is no damaged tape.
  if (!tape && !input.claims_to_be_tape()) need(tape);
  return tape;
}

std::string spec_difference(const RouteSpec& a, const RouteSpec& b) {
  if (a.fields().stack != b.fields().stack) {
    return fmt::format("stack '{}' and '{}'", a.fields().stack, b.fields().stack);
  }
  if (!std::ranges::equal(a.layers(), b.layers())) {
    return fmt::format("layers {} and {}", layers_text(a.layers()), layers_text(b.layers()));
  }
  if (a.num_layers() != b.num_layers()) {
    return fmt::format("num_layers {} and {}", a.num_layers(), b.num_layers());
  }
  if (a.top_k() != b.top_k()) return fmt::format("top_k {} and {}", a.top_k(), b.top_k());
  return fmt::format("num_experts {} and {}", a.num_experts(), b.num_experts());
}

void check_same_spec(const Tape& tape, const std::string& path, const Tape& first,
                     const std::string& first_path) {
  if (tape.spec().fingerprint() == first.spec().fingerprint()) return;
  refuse("{}: expected a tape of the spec of {}, {}, got {}: {}", path, first_path,
         fingerprint_text(first.spec()), fingerprint_text(tape.spec()),
         spec_difference(first.spec(), tape.spec()));
}

int for_each_file(const std::vector<std::string>& files, Console& console,
                  const std::function<int(const std::string&)>& look) {
  int code = kFine;
  for (const std::string& file : files) {
    try {
      code = std::max(code, look(file));
    } catch (const Refusal& refusal) {
      console.complain(refusal.what());
      code = kRefused;
    }
  }
  return code;
}

void SelectionFlags::declare(Command& command) {
  command.text("--sequences", sequences, "LIST", "Sequences by number, as 0-5,7");
  command.texts("--id", ids, "ID", "Sequences by id; repeat for several");
  command.text("--positions", positions, "START:END", "Positions of each sequence, END excluded");
  command.text("--layers", layers, "LAYERS", "Layers, as 3-10,12");
}

TapeSelection SelectionFlags::selection(const Tape& tape) const {
  TapeSelection selection;
  if (!sequences.empty() || !ids.empty()) {
    selection.sequences.emplace();
    if (!sequences.empty()) {
      if (tape.num_sequences() == 0) refuse("--sequences: the tape has none");
      selection.sequences = parse_numbers(sequences, "--sequences", tape.num_sequences() - 1);
    }
    for (const std::string& id : ids) {
      const std::vector<int64_t> found = need(tape.find(id));
      if (found.empty()) refuse("--id: the tape has no sequence '{}'", id);
      selection.sequences->insert(selection.sequences->end(), found.begin(), found.end());
    }
  }
  if (!positions.empty()) {
    const auto [start, end] = parse_positions(positions, "--positions");
    selection.start = start;
    if (end != INT64_MAX) selection.end = end;
  }
  if (!layers.empty()) selection.layers = parse_layers(layers, "--layers");
  return selection;
}

std::vector<int64_t> chosen_sequences(const Tape& tape, const TapeSelection& selection) {
  if (selection.sequences) return *selection.sequences;
  std::vector<int64_t> all(static_cast<size_t>(tape.num_sequences()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void for_each_chosen(const Tape& tape, const TapeSelection& selection,
                     const std::function<void(const Part&)>& take) {
  for (const int64_t sequence : chosen_sequences(tape, selection)) {
    const TapeEntry entry = need(tape.entry(sequence));
    const int64_t start = std::clamp(selection.start, entry.start, entry.end);
    take({sequence, start, std::clamp(selection.end.value_or(entry.end), start, entry.end)});
  }
}

}  // namespace moetape::cli
