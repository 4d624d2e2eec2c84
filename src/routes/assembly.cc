#include "routes/assembly.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"

namespace moetape::inline v0 {

std::vector<uint32_t> row_versions(const Routes& routes) {
  std::vector<uint32_t> versions(static_cast<size_t>(routes.num_rows()), kNoVersion);
  for (const VersionRun& run : routes.versions()) {
    std::fill(versions.begin() + (run.start - routes.start()), versions.begin() + (run.end - routes.start()),
              run.version);
  }
  return versions;
}

Result<Assembly> Assembly::create(const RouteSpec& spec, int64_t start, int64_t num_rows) {
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, start, num_rows));
  return Assembly(std::move(builder), spec, start, num_rows);
}

void Assembly::copy(const Routes& from, std::span<const uint32_t> from_versions, int64_t first, int64_t end) {
  const int64_t index = first - from.start();
  const int64_t count = end - first;
  std::memcpy(row(first), from.ids().data() + index * row_bytes_, static_cast<size_t>(count * row_bytes_));
  std::fill_n(reasons(first), count, Reason::kValid);
  std::copy_n(from_versions.begin() + index, count, versions_.begin() + (first - start_));
}

Routes Assembly::finish() && {
  const auto num_rows = static_cast<int64_t>(versions_.size());
  for (int64_t first = 0, end = 0; first < num_rows; first = end) {
    const uint32_t version = versions_[static_cast<size_t>(first)];
    end = std::find_if(versions_.begin() + first, versions_.end(), [&](uint32_t v) { return v != version; }) -
          versions_.begin();
    if (version != kNoVersion) builder_.add_version(first, end - first, version);
  }
  return std::move(builder_).finish();
}

}  // namespace moetape::inline v0
