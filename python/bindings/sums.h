// Sums of the room compare as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "args.h"
#include "moetape/compare.h"
#include "moetape/routes.h"
#include "sequences.h"

namespace moetape::bindings {

// One Routes, or an iterable of them, taken one after another as they come.
struct RecordsArg : Arg {
  static constexpr auto kStubName =
      nb::detail::make_caster<Routes>::Name + nb::detail::const_name(" | collections.abc.Iterable[Routes]");
};

class Records {
 public:
  Records(RecordsArg records, const char* name);
  // The next one, or none.
  std::optional<Routes> next();

 private:
  std::optional<Items> items_;
  std::optional<Routes> one_;
};

inline int64_t work_of(const Routes& routes) { return std::ssize(routes.ids()); }

// {"unwritten": 3}: missing rows by reason, without zeros.
nb::dict reason_counts(const std::array<int64_t, kNumReasons>& counts);

// {layer: item}
template <class Item>
nb::dict by_layer(const RouteSpec& spec, const std::vector<Item>& items) {
  nb::dict result;
  for (size_t column = 0; column < items.size(); ++column)
    result[nb::cast(spec.layers()[column])] = items[column];
  return result;
}

// [(start, end, convert(sum))]; an end of more than 64 bits is the most they hold.
template <class Sum, class Convert>
nb::list windows_of(const Series<Sum>& series, Convert convert) {
  nb::list result;
  int64_t start = series.start;
  for (const Sum& sum : series.windows) {
    int64_t end = 0;
    if (__builtin_add_overflow(start, series.width, &end)) end = std::numeric_limits<int64_t>::max();
    result.append(nb::make_tuple(start, end, convert(sum)));
    start = end;
  }
  return result;
}

}  // namespace moetape::bindings
