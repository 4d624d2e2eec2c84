// Tape::Impl: the files of a tape as one row of sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "moetape/tape.h"
#include "tape/file_reader.h"

namespace moetape::inline v0 {

class Tape::Impl {
 public:
  // Files of one spec, codec, grouping and set of channels; at least one.
  Impl(std::string name, std::vector<std::shared_ptr<const tape::FileReader>> files);

  // A file, and the index of a sequence in it.
  struct Place {
    std::shared_ptr<const tape::FileReader> file;
    int64_t sequence;
  };
  Result<Place> place(int64_t sequence) const;
  // kOutOfRange unless positions [start, end) are the sequence's.
  Status check_positions(int64_t sequence, const tape::Facts& facts, int64_t start, int64_t end) const;
  const tape::FileReader& first() const { return *files_.front(); }

  std::string name_;
  std::vector<std::shared_ptr<const tape::FileReader>> files_;
  std::vector<int64_t> first_sequences_;  // of each file
  int64_t num_sequences_ = 0;
  int64_t num_rows_ = 0;
  TapeOptions options_;
  std::vector<TapeFile> file_list_;

  // Built by the first find().
  struct Names {
    std::vector<std::pair<uint64_t, int64_t>> by_hash;  // sorted
    int64_t num_damaged = 0;
    int64_t first_damaged = -1;
  };
  const Names& names() const;

 private:
  mutable std::once_flag names_once_;
  mutable Names names_;
};

}  // namespace moetape::inline v0
