// Where a plan's routes come from, as Plan's methods take it in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "moetape/replay.h"
#include "store.h"

namespace moetape::bindings {

struct SourcesArg : Arg {
  static constexpr auto kStubName =
      nb::detail::const_name("Tape | collections.abc.Iterable[Routes | RowSource]");
};

// Routes and RowSources may be mixed; RowSources are busy as long as this lives.
class PlanSources {
 public:
  // `sequences` is of a Tape only.
  PlanSources(SourcesArg sources, OptionalArrayArg sequences);

  const RouteSpec& spec() const;

  // call(sources...) with what stands before the other arguments of Plan's functions.
  template <class Call>
  auto with(Call call) const {
    if (tape_) return call(*tape_, std::span<const int64_t>(sequences_));
    if (!pulled_.empty()) return call(std::span<RowSource* const>(pulled_));
    return call(std::span<const Routes>(routes_));
  }
  // The same for functions that take no RowSources, which raise WrongTypeError.
  template <class Call>
  auto with_routes(Call call) const {
    if (!pulled_.empty()) raise(ErrorCode::kWrongType, "sources: expected Routes or a Tape, got a RowSource");
    if (tape_) return call(*tape_, std::span<const int64_t>(sequences_));
    return call(std::span<const Routes>(routes_));
  }

 private:
  void add(const nb::object& source, const char* name);

  std::optional<Tape> tape_;
  std::vector<int64_t> sequences_;
  std::vector<Routes> routes_;
  std::vector<nb::object> owners_;
  std::vector<std::unique_ptr<Busy>> busy_;
  std::vector<std::unique_ptr<RowSource>> wrapped_;
  std::vector<RowSource*> pulled_;  // all sources, where one is a RowSource
};

}  // namespace moetape::bindings
