// Records: whole tapes summed up, and paired with each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "console.h"
#include "moetape/compare.h"
#include "moetape/stats.h"
#include "moetape/tape.h"

namespace moetape::cli {

// Sequence by sequence, with a bar.
Stats stats_of(const Tape& tape, const Console& console);

// Which sequences of two tapes are records of the same tokens.
struct Pairing {
  bool by_id = false;  // else by their numbers
  std::vector<std::pair<int64_t, int64_t>> pairs;
  std::vector<int64_t> only_in_a;
  std::vector<int64_t> only_in_b;
};

// By id where every sequence of both has one and none stands twice in a tape, else by number.
Pairing pair_tapes(const Tape& a, const Tape& b);

Comparison compare_tapes(const Tape& a, const Tape& b, const Pairing& pairing, const CompareOptions& options,
                         const Console& console);

}  // namespace moetape::cli
