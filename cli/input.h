// Input: files as commands are given them. "-" is standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "json.h"
#include "moetape/spec.h"
#include "moetape/tape.h"

namespace moetape::cli {

// One file that may be a tape or something else. Refuses with the system's words: "run.tape: No such file or
// directory". Standard input can be read once; it is refused where it is named again.
class Input {
 public:
  explicit Input(const std::string& path);

  const std::string& name() const { return name_; }
  // Begins as a tape does, or as the index of one.
  bool is_tape() const;
  bool is_index() const;
  // Says near its beginning that it is a tape, however damaged.
  bool claims_to_be_tape() const;
  // "what begins with 'hello'", for messages.
  std::string beginning() const;
  // Mapped where that can be; what is no regular file is read whole.
  Result<Tape> tape() const;
  // All of it.
  std::string_view bytes() const;

 private:
  class File;
  std::string path_;
  std::string name_;
  mutable std::shared_ptr<File> file_;  // until everything is read
  std::shared_ptr<std::string> bytes_;
};

// Refuses what is no JSON, and an object that has a key twice; NaN and Infinity, which Python writes, become
// numbers that are no integers.
ParsedJson parse_json(std::string_view text, const std::string& place);

// Nothing for what is no integer of 32 bits.
std::optional<int32_t> int32_in(const ParsedJson& json);

// A number of 0 or more as the key of an object, written in one way only: "12".
std::optional<int32_t> index_of_key(std::string_view key);

// A spec out of JSON: of moetape's own (what info --json shows), or of a model's configuration.
RouteSpec spec_from_json(const ParsedJson& json, const std::string& place);

// --spec: a file of either kind, a tape, or the folder of a model.
RouteSpec read_spec(const std::string& path);

}  // namespace moetape::cli
