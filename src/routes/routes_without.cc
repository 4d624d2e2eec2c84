// Routes::without: rows of old versions made missing.

#include <algorithm>

#include "base/fail.h"
#include "moetape/routes.h"
#include "routes/assembly.h"

namespace moetape::inline v0 {

Result<Routes> Routes::without(uint32_t version_below) const {
  constexpr uint32_t kAboveAll = kMaxVersion + 1;
  if (version_below > kAboveAll) {
    return fail(ErrorCode::kInvalidArgument, "version_below: expected 0 to {}, got {}", kAboveAll,
                version_below);
  }
  const std::vector<VersionRun> runs = versions();
  const auto outdated = [&](const VersionRun& run) { return run.version < version_below; };
  if (std::ranges::none_of(runs, outdated)) return *this;

  MOETAPE_ASSIGN(Assembly kept, Assembly::create(spec_, start_, num_rows_));
  kept.copy(*this, row_versions(*this), start_, end());
  std::ranges::copy(reasons(), kept.reasons(start_));
  for (const VersionRun& run : runs) {
    if (outdated(run)) std::fill_n(kept.reasons(run.start), run.end - run.start, Reason::kOutdated);
  }
  if (has_tokens()) kept.set_tokens({tokens().begin(), tokens().end()});
  return std::move(kept).finish();
}

}  // namespace moetape::inline v0
