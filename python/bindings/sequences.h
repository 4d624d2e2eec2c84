// Iterables of objects as arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "args.h"
#include "moetape/routes.h"
#include "moetape/row_ids.h"

namespace moetape::bindings {

// The items of an iterable, one after the other; errors call them "routes[3]".
class Items {
 public:
  Items(nb::handle iterable, const char* name, std::string_view expected);
  nb::object next();  // null at the end
  const char* name() const { return name_; }
  int64_t count() const { return count_; }  // given so far
  std::string item_name() const;            // of the one given last

 private:
  const char* name_;
  nb::object iterator_;
  int64_t count_ = 0;
};

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
