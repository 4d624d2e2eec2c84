#include <algorithm>

#include "base/fail.h"
#include "replay/sources.h"

namespace moetape::inline v0 {

Result<int64_t> Plan::verify(std::span<const Routes> sources, std::span<const int32_t> tokens) const {
  MOETAPE_ASSIGN(const Sources found, find_sources(sources));
  return verify_from(found, tokens);
}

Result<int64_t> Plan::verify(const Tape& tape, std::span<const int64_t> sequences,
                             std::span<const int32_t> tokens) const {
  MOETAPE_ASSIGN(const Sources found, read_sources(tape, sequences));
  return verify_from(found, tokens);
}

Result<int64_t> Plan::verify_from(const Sources& sources, std::span<const int32_t> tokens) const {
  if (std::ssize(tokens) != num_rows_) {
    return fail(ErrorCode::kWrongShape, "tokens: expected one for each of {} rows, got {}", num_rows_,
                tokens.size());
  }
  int64_t proven = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    const Routes& source = sources.routes[static_cast<size_t>(sources.of_run[i])];
    if (!source.has_tokens()) continue;
    const int64_t first = std::max(run.start, source.start());
    const int64_t end = std::min(run.start + run.count, source.end());
    for (int64_t position = first; position < end; ++position) {
      const int64_t row = run.row + position - run.start;
      const int32_t recorded = source.tokens()[static_cast<size_t>(position - source.start())];
      const int32_t local = tokens[static_cast<size_t>(row)];
      if (recorded != local) {
        return fail(ErrorCode::kConflict,
                    "tokens: row {} (sequence {}, position {}): expected the recorded token {}, got {}", row,
                    run.sequence, position, recorded, local);
      }
      ++proven;
    }
  }
  return proven;
}

}  // namespace moetape::inline v0
