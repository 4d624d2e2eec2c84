// Tapes as commands take them: opened, and chosen from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "console.h"
#include "moetape/tape.h"

namespace moetape::cli {

// A file, or standard input for "-". Refuses what is no tape.
Tape open_tape(const std::string& path);
// The same, but a tape that is damaged is an error to be looked at.
Result<Tape> try_open_tape(const std::string& path);

// Refuses a tape of another spec than `first`, naming both files.
void check_same_spec(const Tape& tape, const std::string& path, const Tape& first,
                     const std::string& first_path);
// Where two specs of different fingerprints differ: "num_experts 8 and 9".
std::string spec_difference(const RouteSpec& a, const RouteSpec& b);

// Calls `look` with each file. What is refused of one is told on standard error, and the others are looked
// at; then the code is kRefused, else the highest that `look` gave.
int for_each_file(const std::vector<std::string>& files, Console& console,
                  const std::function<int(const std::string&)>& look);

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
