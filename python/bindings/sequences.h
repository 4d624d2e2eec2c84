// Iterables of objects as arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <vector>

#include "args.h"
#include "moetape/routes.h"
#include "moetape/row_ids.h"

namespace moetape::bindings {

struct RoutesListArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[Routes]");
  std::vector<Routes> get(const char* name) const;
};

struct RowSpansArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[tuple[int, int, int]]");
  std::vector<RowSpan> get(const char* name) const;
};

struct CapturesArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[tuple[Routes, int]]");
  std::vector<Capture> get(const char* name) const;
};

}  // namespace moetape::bindings
