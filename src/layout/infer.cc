#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "moetape/layout.h"

namespace moetape::inline v0 {
namespace {

bool same_effect(const Placement& a, const Placement& b) {
  return (a.count == 0 && b.count == 0) || (a.src == b.src && a.dst == b.dst && a.count == b.count);
}

std::string figures(const InferArgs& args) {
  return fmt::format("counts {}, rank {}, shards {}, tp_size {}, tp_rank {}", args.counts, args.rank,
                     args.shard_sizes, args.tp_size, args.tp_rank);
}

// In the order in which vLLM tries them.
std::vector<Layout> candidates(const InferArgs& args, int64_t num_tokens) {
  std::vector<Layout> layouts = {Layout::dp_concat(args.counts, args.rank), Layout::whole()};
  if (!args.shard_sizes.empty())
    layouts.push_back(Layout::dp_shards(args.counts, args.shard_sizes, args.rank));
  if (args.tp_size > 1) layouts.push_back(Layout::tp_shard(num_tokens, args.tp_size, args.tp_rank));
  return layouts;
}

}  // namespace

Result<Layout> infer_layout(const InferArgs& args) {
  if (args.rank < 0 || args.rank >= std::ssize(args.counts)) {
    return fail(ErrorCode::kInvalidArgument, "rank: expected one of the ranks of counts {}, got {}",
                args.counts, args.rank);
  }
  if (args.tp_size < 1)
    return fail(ErrorCode::kInvalidArgument, "tp_size: expected 1 or more, got {}", args.tp_size);
  const int64_t num_tokens = args.counts[static_cast<size_t>(args.rank)];
  std::optional<Layout> chosen;
  Placement placement;
  for (Layout& layout : candidates(args, num_tokens)) {
    const Result<Placement> placed = layout.place(args.batch_rows, num_tokens);
    if (!placed && placed.error().code != ErrorCode::kWrongShape) return Failure(placed.error());
    if (!placed) continue;
    if (!chosen) {
      chosen = std::move(layout);
      placement = *placed;
    } else if (!same_effect(placement, *placed)) {
      return fail(ErrorCode::kWrongShape,
                  "batch of {} rows: {} and {} both fit and differ ({}): name the layout", args.batch_rows,
                  chosen->to_string(), layout.to_string(), figures(args));
    }
  }
  if (chosen) return *std::move(chosen);
  const int64_t total = std::accumulate(args.counts.begin(), args.counts.end(), int64_t{0});
  const int64_t gathered = std::accumulate(args.shard_sizes.begin(), args.shard_sizes.end(), int64_t{0});
  const int64_t shard = num_tokens / args.tp_size + (num_tokens % args.tp_size != 0 ? 1 : 0);
  return fail(ErrorCode::kWrongShape, "batch: expected {} (all ranks), {} (this rank){}{} rows, got {} ({})",
              total, num_tokens, args.shard_sizes.empty() ? "" : fmt::format(", {} (shards)", gathered),
              args.tp_size == 1 ? "" : fmt::format(", {} (one shard)", shard), args.batch_rows,
              figures(args));
}

}  // namespace moetape::inline v0
