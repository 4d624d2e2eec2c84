// Sinks: where convert puts sequences, one after another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.h"
#include "console.h"
#include "json.h"
#include "moetape/routes.h"
#include "moetape/spec.h"
#include "moetape/tape.h"
#include "moetape/wire.h"
#include "output.h"

namespace moetape::cli {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void add(const Routes& routes, const std::string& id) = 0;
  // Positions [start, end) of a sequence of a tape.
  virtual void add(const Tape& tape, int64_t sequence, int64_t start, int64_t end) = 0;
  // Makes the output appear, and tells.
  virtual void finish(Console& console) = 0;
};

// How routes are written that do not go to a tape.
struct FormFlags {
  std::string to;
  std::string missing;
  std::string dtype;
  std::string layers;
  std::optional<int64_t> prompt_rows;

  void declare(Command& command);
  // What the flag or the name of the output says; nothing for a tape.
  std::optional<Dialect> dialect(const OutputOptions& output) const;
  // Refuses flags that mean nothing to what is written (nothing: a tape).
  void check_unused(std::string_view output, std::optional<Dialect> dialect) const;
  EncodeOptions options() const;
};

// Whether a name is that of a folder with a file for each sequence: it ends in / or stands there as one.
bool names_folder(const std::string& path);

// A tape.
std::unique_ptr<Sink> tape_sink(const OutputOptions& output, const RouteSpec& spec,
                                const TapeOptions& options);

// A file with one sequence, or a folder with a file for each: named after its id where that is a plain name
// that no other has, else after its number.
std::unique_ptr<Sink> form_sink(const OutputOptions& output, const RouteSpec& spec, Dialect dialect,
                                const EncodeOptions& options);

}  // namespace moetape::cli
