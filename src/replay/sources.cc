#include "replay/sources.h"

#include "base/fail.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

Result<std::vector<int32_t>> columns_of(std::span<const int32_t> layers, const RouteSpec& spec) {
  std::vector<int32_t> columns;
  for (const int32_t layer : layers) {
    MOETAPE_ASSIGN(const int32_t column, spec.column_of(layer));
    columns.push_back(column);
  }
  return columns;
}

}  // namespace

Result<Plan::Sources> Plan::find_sources(std::span<const Routes> sources) const {
  if (sources.empty()) return fail(ErrorCode::kInvalidArgument, "sources: expected one or more, got none");
  const RouteSpec& spec = sources.front().spec();
  for (size_t i = 1; i < sources.size(); ++i) {
    MOETAPE_TRY(check_same_spec(fmt::format("sources[{}]", i), spec, sources[i].spec()));
  }
  MOETAPE_ASSIGN(std::vector<int32_t> columns,
                 columns_of(layers_ ? std::span<const int32_t>(*layers_) : spec.layers(), spec));
  std::vector<int64_t> of_run;
  of_run.reserve(runs_.size());
  for (const Run& run : runs_) {
    if (run.sequence >= std::ssize(sources)) {
      return fail(ErrorCode::kOutOfRange, "sources: row {} is of sequence {}, expected one of {} sources",
                  run.row, run.sequence, sources.size());
    }
    of_run.push_back(run.sequence);
  }
  return Sources{spec, std::move(columns), sources, std::move(of_run)};
}

}  // namespace moetape::inline v0
