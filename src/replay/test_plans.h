// What the tests of replay share: routes of random ids, the trainer's ways to cut, and a plan applied.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "moetape/replay.h"
#include "routes/test_routes.h"

namespace moetape::inline v0 {

inline RouteSpec small_spec() { return make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 8}); }

inline Routes random_routes(const RouteSpec& spec, int64_t start, int64_t num_rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  return make_routes(spec, random_ids(spec, num_rows, random), {}, start);
}

// Ids of row `index` of `routes` at one of its columns.
inline Ids recorded(const Routes& routes, int64_t index, int64_t column) {
  Ids ids;
  const RouteSpec& spec = routes.spec();
  for (int64_t i = 0; i < spec.top_k(); ++i) {
    uint16_t id = 0;
    std::memcpy(&id, routes.row(index).data() + (column * spec.top_k() + i) * spec.id_bytes(),
                static_cast<size_t>(spec.id_bytes()));
    ids.push_back(id);
  }
  return ids;
}

inline Plan make_plan(const Ids& row_ids, std::optional<std::vector<int32_t>> layers = {}) {
  return value_of(Plan::from_row_ids(row_ids, std::move(layers)));
}

struct Applied {
  int64_t num_rows;
  int64_t top_k;
  Ids ids;  // [layers, rows, k]
  std::vector<RowUse> uses;

  Ids at(int64_t layer, int64_t row) const {
    const auto first = ids.begin() + (layer * num_rows + row) * top_k;
    return {first, first + top_k};
  }
};

// `apply`: (type, out, uses) → the number of layers.
template <class Apply>
Applied run_with(const Plan& plan, const RouteSpec& spec, Apply apply) {
  const int32_t num_layers =
      plan.layers() ? static_cast<int32_t>(plan.layers()->size()) : spec.num_moe_layers();
  Applied applied{plan.num_rows(), spec.top_k(), {}, {}};
  applied.ids.assign(static_cast<size_t>(num_layers * plan.num_rows() * spec.top_k()), -7);
  applied.uses.resize(static_cast<size_t>(plan.num_rows()));
  EXPECT_EQ(value_of(apply(IntType::kInt64, std::as_writable_bytes(std::span(applied.ids)), applied.uses)),
            num_layers);
  return applied;
}

inline Applied run(const Plan& plan, const std::vector<Routes>& sources, int64_t first_expert = 0) {
  return run_with(plan, sources.at(0).spec(), [&](IntType type, auto out, auto& uses) {
    return plan.apply(sources, type, out, uses, first_expert);
  });
}

// The same, pulled.
inline Applied run_pulled(const Plan& plan, const std::vector<Routes>& sources, int64_t first_expert = 0) {
  std::vector<std::unique_ptr<RoutesSource>> rows;
  std::vector<RowSource*> pointers;
  for (const Routes& routes : sources) {
    pointers.push_back(rows.emplace_back(std::make_unique<RoutesSource>(routes)).get());
  }
  return run_with(plan, sources.at(0).spec(), [&](IntType type, auto out, auto& uses) {
    return plan.apply(pointers, type, out, uses, first_expert);
  });
}

// Row ids of one sequence, padded behind to `padded` rows as a trainer pads its tokens.
inline Ids sequence_ids(int64_t sequence, int64_t length, int64_t padded, int64_t padding = 0) {
  Ids ids(static_cast<size_t>(padded), padding);
  for (int64_t i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = row_id(sequence, i);
  return ids;
}

// Zig-zag context parallelism: rank r takes chunks r and 2·size-1-r of each sequence.
inline Ids zigzag(const std::vector<Ids>& sequences, int64_t size, int64_t rank) {
  Ids cut;
  for (const Ids& ids : sequences) {
    const int64_t chunk = std::ssize(ids) / (2 * size);
    for (const int64_t part : {rank, 2 * size - 1 - rank}) {
      cut.insert(cut.end(), ids.begin() + part * chunk, ids.begin() + (part + 1) * chunk);
    }
  }
  return cut;
}

inline Ids positions_of(const Plan& plan) {
  Ids positions;
  for (const RowSpan& need : plan.needs()) {
    for (int64_t i = need.start; i < need.end; ++i) positions.push_back(row_id(need.sequence, i));
  }
  return positions;
}

}  // namespace moetape::inline v0
