#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "moetape/layout.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMaxPhysical = 1 << 24;  // 256 times the most experts that a spec can have

}  // namespace

Result<IdMap> IdMap::create(std::vector<int32_t> to_logical) {
  if (to_logical.empty())
    return fail(ErrorCode::kInvalidArgument, "to_logical: expected at least one id, got none");
  const auto below = std::ranges::find_if(to_logical, [](int32_t logical) { return logical < kNoExpert; });
  if (below != to_logical.end()) {
    return fail(ErrorCode::kInvalidArgument, "to_logical[{}]: expected an expert or {}, got {}",
                below - to_logical.begin(), kNoExpert, *below);
  }
  return IdMap(std::move(to_logical));
}

Result<IdMap> IdMap::interleaved_shared(int32_t num_experts, int32_t num_ranks, int32_t shared_per_rank) {
  if (num_experts < 1 || num_ranks < 1 || num_experts % num_ranks != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "num_experts: expected a multiple of num_ranks, got {} experts on {}", num_experts,
                num_ranks);
  }
  const int64_t num_physical = num_experts + int64_t{num_ranks} * shared_per_rank;
  if (shared_per_rank < 0 || num_physical > kMaxPhysical) {
    return fail(ErrorCode::kInvalidArgument,
                "shared_per_rank: expected 0 or more and at most {} slots in all, got {} on each of {} ranks",
                kMaxPhysical, shared_per_rank, num_ranks);
  }
  const int32_t routed_per_rank = num_experts / num_ranks;
  std::vector<int32_t> to_logical(static_cast<size_t>(num_physical), static_cast<int32_t>(kNoExpert));
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    const int32_t physical = expert + expert / routed_per_rank * shared_per_rank;
    to_logical[static_cast<size_t>(physical)] = expert;
  }
  return IdMap(std::move(to_logical));
}

}  // namespace moetape::inline v0
