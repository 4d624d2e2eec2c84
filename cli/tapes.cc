#include "tapes.h"

#include <algorithm>
#include <numeric>

#include "input.h"
#include "ranges.h"
#include "refusal.h"

namespace moetape::cli {

Tape open_tape(const std::string& path) { return need(path == "-" ? Input(path).tape() : Tape::open(path)); }

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
