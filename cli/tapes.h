// Tapes as commands take them: opened, and chosen from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "moetape/tape.h"

namespace moetape::cli {

// A file, or standard input for "-".
Tape open_tape(const std::string& path);

// Which part of a tape to take.
struct SelectionFlags {
  std::string sequences;
  std::vector<std::string> ids;
  std::string positions;
  std::string layers;

  void declare(Command& command);
  // Refuses sequences and ids that the tape has not.
  TapeSelection selection(const Tape& tape) const;
};

// The numbers of the sequences that a selection takes.
std::vector<int64_t> chosen_sequences(const Tape& tape, const TapeSelection& selection);

// One of them, cut to the selection's positions.
struct Part {
  int64_t sequence;
  int64_t start;
  int64_t end;
};
void for_each_chosen(const Tape& tape, const TapeSelection& selection,
                     const std::function<void(const Part&)>& take);

}  // namespace moetape::cli
