// Where the rows of a plan come from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moetape/replay.h"

namespace moetape::inline v0 {

struct Plan::Sources {
  RouteSpec spec;
  std::vector<int32_t> columns;         // of the plan's layers
  std::vector<int64_t> of_run;          // the source of each run, in `routes` or in `pulled`
  std::vector<Routes> owned = {};       // routes that were read
  std::span<const Routes> routes = {};  // these or the caller's
  std::vector<std::unique_ptr<RowSource>> owned_rows = {};  // the plan's layers of the caller's
  std::vector<RowSource*> pulled = {};                      // these or the caller's
};

}  // namespace moetape::inline v0
