#include <algorithm>
#include <cstring>

#include "base/memory_guard.h"
#include "replay/sources.h"

namespace moetape::inline v0 {
namespace {

// Adds a row's ids to load [columns, num_experts].
template <class Id>
void count_row(const std::byte* row, std::span<const int32_t> columns, const RouteSpec& spec, int64_t* load) {
  const auto top_k = static_cast<size_t>(spec.top_k());
  for (const int32_t column : columns) {
    const std::byte* list = row + static_cast<size_t>(column) * top_k * sizeof(Id);
    for (size_t i = 0; i < top_k; ++i) {
      Id id;
      std::memcpy(&id, list + i * sizeof(Id), sizeof(Id));
      ++load[id];
    }
    load += spec.num_experts();
  }
}

}  // namespace

Result<std::vector<int64_t>> Plan::expert_load(std::span<const Routes> sources) const {
  MOETAPE_ASSIGN(const Sources found, find_sources(sources));
  return load_from(found);
}

Result<std::vector<int64_t>> Plan::expert_load(const Tape& tape, std::span<const int64_t> sequences) const {
  MOETAPE_ASSIGN(const Sources found, read_sources(tape, sequences));
  return load_from(found);
}

Result<std::vector<int64_t>> Plan::load_from(const Sources& sources) const {
  const RouteSpec& spec = sources.spec;
  return guard_memory("expert load", [&]() -> Result<std::vector<int64_t>> {
    std::vector<int64_t> load(sources.columns.size() * static_cast<size_t>(spec.num_experts()));
    for (size_t i = 0; i < runs_.size(); ++i) {
      const Run& run = runs_[i];
      const Routes& source = sources.routes[static_cast<size_t>(sources.of_run[i])];
      const int64_t first = std::max(run.start, source.start());
      const int64_t end = std::min(run.start + run.count, source.end());
      for (int64_t index = first - source.start(); index < end - source.start(); ++index) {
        if (source.reasons()[static_cast<size_t>(index)] != Reason::kValid) continue;
        const std::byte* row = source.ids().data() + index * spec.row_bytes();
        if (spec.id_bytes() == 1) {
          count_row<uint8_t>(row, sources.columns, spec, load.data());
        } else {
          count_row<uint16_t>(row, sources.columns, spec, load.data());
        }
      }
    }
    return load;
  });
}

}  // namespace moetape::inline v0
