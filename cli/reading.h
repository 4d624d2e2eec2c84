// Reading: the files that convert takes, as tapes or as routes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "input.h"
#include "moetape/routes.h"
#include "moetape/wire.h"

namespace moetape::cli {

// What a file has to be read as, where it does not say so itself.
struct ReadFlags {
  std::string from;
  std::string spec;
  std::optional<int64_t> start;
  std::optional<int64_t> num_rows;
  std::optional<int64_t> version;
  std::optional<int64_t> known_from;
  std::optional<int64_t> surplus_rows;
  std::string dtype;
  bool skip_absent = false;

  void declare(Command& command);
  DecodeOptions options() const;
  // Refuses what a tape says itself.
  void check_unused(const std::string& tape) const;
};

struct NamedRoutes {
  std::string id;
  Routes routes;
};

// What a file that is no tape may be.
Result<Sniffed> sniff_input(const Input& input);

// The routes of a file that is no tape: a form, or an answer with its choices.
std::vector<NamedRoutes> read_routes(const Input& input, const std::string& id, const RouteSpec& spec,
                                     const ReadFlags& flags);

std::vector<std::string> dialect_names();
std::vector<std::string> int_type_names();
std::optional<IntType> int_type_of(const std::string& name);  // nothing for no name

}  // namespace moetape::cli
