#include "moetape/pipeline.h"

#include <algorithm>
#include <numeric>

#include "base/fail.h"

namespace moetape::inline v0 {
namespace {

Status check_split(int32_t num_layers, const PipelineSplit& split) {
  if (num_layers < 1 || split.size < 1 || split.virtual_size < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "pipeline: expected 1 or more layers, ranks and virtual stages, got {}, {} and {}",
                num_layers, split.size, split.virtual_size);
  }
  if ((split.first || split.last) && (split.embedding || split.loss)) {
    return fail(ErrorCode::kInvalidArgument,
                "pipeline: expected either first and last or embedding and loss, got both");
  }
  return {};
}

Result<int64_t> divide(int64_t layers, int64_t parts, const char* what) {
  if (layers >= 0 && layers % parts == 0) return layers / parts;
  return fail(ErrorCode::kInvalidArgument, "pipeline: expected a multiple of {} layers {}, got {}", parts,
              what, layers);
}

// Layers of each rank, the embedding and the loss among them.
Result<std::vector<int64_t>> layers_by_rank(int64_t num_layers, const PipelineSplit& split) {
  const int64_t fixed_ranks = (split.first ? 1 : 0) + (split.last ? 1 : 0);
  if (fixed_ranks > split.size) {
    return fail(ErrorCode::kInvalidArgument, "pipeline: expected 2 or more ranks for first and last, got {}",
                split.size);
  }
  const int64_t rest = num_layers - split.first.value_or(0) - split.last.value_or(0) +
                       (split.embedding ? 1 : 0) + (split.loss ? 1 : 0);
  const int64_t rest_ranks = split.size - fixed_ranks;
  if (rest_ranks == 0 && rest != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "pipeline: expected {} layers on the first and last rank, got {}", num_layers,
                num_layers - rest);
  }
  int64_t each = 0;
  if (rest_ranks > 0) {
    MOETAPE_ASSIGN(each, divide(rest, rest_ranks, "on the ranks"));
  }
  std::vector<int64_t> layers(static_cast<size_t>(split.size), each);
  if (split.first) layers.front() = *split.first;
  if (split.last) layers.back() = *split.last;
  return layers;
}

}  // namespace

Result<std::vector<int32_t>> pipeline_chunks(int32_t num_layers, const PipelineSplit& split) {
  MOETAPE_TRY(check_split(num_layers, split));
  MOETAPE_ASSIGN(const std::vector<int64_t> by_rank, layers_by_rank(num_layers, split));
  std::vector<int32_t> chunks;
  for (int32_t stage = 0; stage < split.virtual_size; ++stage) {
    for (const int64_t layers : by_rank) {
      MOETAPE_ASSIGN(const int64_t chunk, divide(layers, split.virtual_size, "in the virtual stages"));
      chunks.push_back(static_cast<int32_t>(chunk));
    }
  }
  chunks.front() -= split.embedding ? 1 : 0;
  chunks.back() -= split.loss ? 1 : 0;
  if (std::ranges::min(chunks) < 0) {
    return fail(ErrorCode::kInvalidArgument,
                "pipeline: expected room for the embedding and the loss beside {} layers in {} chunks",
                num_layers, chunks.size());
  }
  return chunks;
}

Result<std::vector<int32_t>> pipeline_layers(const RouteSpec& spec, std::span<const int32_t> chunks,
                                             int32_t size, int32_t rank,
                                             std::optional<int32_t> virtual_stage) {
  const auto num_chunks = static_cast<int64_t>(chunks.size());
  if (size < 1 || num_chunks == 0 || num_chunks % size != 0 || std::ranges::min(chunks) < 0) {
    return fail(ErrorCode::kInvalidArgument,
                "chunks: expected a multiple of {} ranks, of 0 or more layers each, got {} chunks", size,
                num_chunks);
  }
  const int64_t virtual_size = num_chunks / size;
  if (rank < 0 || rank >= size) {
    return fail(ErrorCode::kOutOfRange, "rank: expected 0 to {}, got {}", size - 1, rank);
  }
  if (virtual_stage && (*virtual_stage < 0 || *virtual_stage >= virtual_size)) {
    return fail(ErrorCode::kOutOfRange, "virtual_stage: expected 0 to {}, got {}", virtual_size - 1,
                *virtual_stage);
  }
  const int64_t num_layers = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
  if (num_layers <= spec.layers().back()) {
    return fail(ErrorCode::kInvalidArgument,
                "chunks: expected {} layers or more, as the spec's last is {}, got {} in all",
                spec.layers().back() + 1, spec.layers().back(), num_layers);
  }

  std::vector<int32_t> layers;
  int64_t first = 0;
  for (int64_t i = 0; i < num_chunks; ++i) {
    const int64_t end = first + chunks[static_cast<size_t>(i)];
    if (i % size == rank && (!virtual_stage || i / size == *virtual_stage)) {
      std::ranges::copy_if(spec.layers(), std::back_inserter(layers),
                           [&](int32_t layer) { return layer >= first && layer < end; });
    }
    first = end;
  }
  return layers;
}

}  // namespace moetape::inline v0
