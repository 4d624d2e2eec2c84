// Input: files as commands are given them. "-" is standard input.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "json.h"
#include "moetape/spec.h"
#include "moetape/tape.h"

namespace moetape::cli {

// One file that may be a tape or something else: all else is read whole. Refuses with the system's words:
// "run.tape: No such file or directory".
class Input {
 public:
  explicit Input(const std::string& path);

  const std::string& name() const { return name_; }
  bool is_tape() const { return is_tape_; }
  Result<Tape> tape() const;
  // Of what is no tape, and of standard input.
  std::string_view bytes() const { return *bytes_; }

 private:
  std::string path_;
  std::string name_;
  bool is_tape_ = false;
  std::shared_ptr<std::string> bytes_;
};

// Refuses what is no JSON; NaN and Infinity, which Python writes, become numbers that are no integers.
ParsedJson parse_json(std::string_view text, const std::string& place);

// A spec out of JSON: of moetape's own (what info --json shows), or of a model's configuration.
RouteSpec spec_from_json(const ParsedJson& json, const std::string& place);

// --spec: a file of either kind, a tape, or the folder of a model.
RouteSpec read_spec(const std::string& path);

}  // namespace moetape::cli
