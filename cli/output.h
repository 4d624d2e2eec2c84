// Output: where results go. What stands under a name already is replaced only when the user says so, and
// nothing half-written ever has the name that was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "console.h"
#include "json.h"
#include "moetape/spec.h"
#include "moetape/tape.h"

namespace moetape::cli {

struct OutputOptions {
  std::string path;  // "-" is standard output, and so is /dev/stdout
  bool force = false;
  bool json = false;  // tell what was written as JSON

  void declare(Command& command, std::string_view help);
  bool is_standard_output() const { return path == "-" || path == "/dev/stdout"; }
  // Refuses a file (unless it may be replaced) or folder that stands there, a path that cannot be one of a
  // file, and what standard output cannot take.
  void check(const Console& console, bool is_text = false) const;
  // Says on standard output what was written, unless that is where it went.
  void tell(Console& console, int64_t num_sequences, int64_t num_rows, Json more = Json::object()) const;
};

// Bytes to a file (whole or not at all), to a pipe or device as it is, or to standard output, as the options
// say.
void write_output(const OutputOptions& options, Console& console, std::string_view bytes);

// A folder that appears with all its files or not at all. It may stand there, if it is empty.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  void write(const std::string& name, std::string_view bytes);
  void finish();

 private:
  std::string path_;
  std::string hidden_;
};

// How tapes are written.
struct TapeFlags {
  std::string codec;
  std::vector<std::string> layer_groups;
  std::optional<int64_t> max_file_bytes;

  void declare(Command& command);
  // Refuses flags where the output is no tape.
  void check_unused(std::string_view output, std::string_view dialect) const;
  // What the flags say, and for all else what `like` does, as far as its layers are those of the spec.
  TapeOptions options(const RouteSpec& spec, const TapeOptions& like = {}) const;
};

// A tape in the making. For standard output, pipes and devices it is written to a temporary file first.
class TapeOutput {
 public:
  TapeOutput(const OutputOptions& options, const RouteSpec& spec, TapeOptions tape_options);
  ~TapeOutput();
  TapeOutput(const TapeOutput&) = delete;
  TapeOutput& operator=(const TapeOutput&) = delete;

  TapeWriter& writer() { return *writer_; }
  // Makes the tape appear, and tells.
  void finish(Console& console, Json more = Json::object());

 private:
  void pass_on(Console& console) const;

  const OutputOptions& options_;
  std::string folder_;  // temporary; empty where there is none
  std::optional<TapeWriter> writer_;
};

}  // namespace moetape::cli
