// merge_layers: the rows of one token run, recorded in stages of disjoint layers.

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/fail.h"
#include "moetape/routes.h"
#include "routes/assembly.h"

namespace moetape::inline v0 {
namespace {

template <class T>
Status check_equal(size_t part, std::string_view field, const T& first, const T& found) {
  if (first == found) return {};
  return fail(ErrorCode::kSpecMismatch, "parts[{}]: expected {} {} as in parts[0], got {}", part, field,
              first, found);
}

Status check_part(const Routes& first, const Routes& part, size_t index) {
  const RouteSpecFields& a = first.spec().fields();
  const RouteSpecFields& b = part.spec().fields();
  MOETAPE_TRY(check_equal(index, "stack", a.stack, b.stack));
  MOETAPE_TRY(check_equal(index, "top_k", a.top_k, b.top_k));
  MOETAPE_TRY(check_equal(index, "num_experts", a.num_experts, b.num_experts));
  MOETAPE_TRY(check_equal(index, "shared_columns", a.shared_columns, b.shared_columns));
  if (first.start() != part.start() || first.end() != part.end()) {
    return fail(ErrorCode::kWrongShape, "parts[{}]: expected positions [{}, {}) as in parts[0], got [{}, {})",
                index, first.start(), first.end(), part.start(), part.end());
  }
  if (first.has_tokens() && part.has_tokens()) {
    const auto [a_token, b_token] = std::ranges::mismatch(first.tokens(), part.tokens());
    if (a_token != first.tokens().end()) {
      return fail(ErrorCode::kConflict, "parts[{}]: position {}: expected token {} as before, got {}", index,
                  first.start() + (a_token - first.tokens().begin()), *a_token, *b_token);
    }
  }
  return {};
}

Result<RouteSpec> union_of(std::span<const Routes> parts) {
  RouteSpecFields fields = parts[0].spec().fields();
  for (size_t i = 1; i < parts.size(); ++i) {
    const RouteSpecFields& more = parts[i].spec().fields();
    fields.layers.insert(fields.layers.end(), more.layers.begin(), more.layers.end());
    fields.num_layers = std::max(fields.num_layers, more.num_layers);
    fields.distinct = fields.distinct && more.distinct;
    fields.excluded.insert(more.excluded.begin(), more.excluded.end());
  }
  std::ranges::sort(fields.layers);
  const auto twice = std::ranges::adjacent_find(fields.layers);
  if (twice != fields.layers.end()) {
    return fail(ErrorCode::kInvalidArgument, "parts: expected every layer in one part, got layer {} in two",
                *twice);
  }
  for (const int32_t layer : fields.layers) fields.excluded.erase(layer);
  return RouteSpec::create(std::move(fields));
}

// Neighbouring columns of a part that are neighbours in the union.
struct ColumnRun {
  int64_t from, to, count;
};

std::vector<ColumnRun> column_runs(const RouteSpec& part, const RouteSpec& whole) {
  std::vector<ColumnRun> runs;
  int64_t from = 0;
  for (const int32_t layer : part.layers()) {
    const int64_t to = *whole.column_of(layer);
    if (!runs.empty() && runs.back().to + runs.back().count == to) {
      ++runs.back().count;
    } else {
      runs.push_back({from, to, 1});
    }
    ++from;
  }
  return runs;
}

// Decides which rows are valid: in all parts, and under one version.
void settle_rows(std::span<const Routes> parts, Assembly* merged) {
  std::fill_n(merged->reasons(parts[0].start()), parts[0].num_rows(), Reason::kValid);
  for (const Routes& part : parts) {
    const std::vector<uint32_t> versions = row_versions(part);
    for (int64_t position = part.start(); position < part.end(); ++position) {
      const auto index = static_cast<size_t>(position - part.start());
      Reason& reason = *merged->reasons(position);
      uint32_t& version = merged->version(position);
      if (reason != Reason::kValid) continue;
      reason = part.reasons()[index];
      if (versions[index] == kNoVersion) continue;
      if (version != kNoVersion && version != versions[index]) reason = Reason::kTorn;
      version = versions[index];
    }
  }
}

void copy_layers(const Routes& part, const RouteSpec& whole, Assembly* merged) {
  const int64_t list_bytes = int64_t{whole.top_k()} * whole.id_bytes();
  for (const ColumnRun& run : column_runs(part.spec(), whole)) {
    for (int64_t position = part.start(); position < part.end(); ++position) {
      std::memcpy(merged->row(position) + run.to * list_bytes,
                  part.row(position - part.start()).data() + run.from * list_bytes,
                  static_cast<size_t>(run.count * list_bytes));
    }
  }
}

}  // namespace

Result<Routes> merge_layers(std::span<const Routes> parts) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "parts: expected at least one, got none");
  const Routes* tokens_from = &parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    MOETAPE_TRY(check_part(*tokens_from, parts[i], i));
    if (!tokens_from->has_tokens()) tokens_from = &parts[i];
  }
  MOETAPE_ASSIGN(const RouteSpec whole, union_of(parts));
  MOETAPE_ASSIGN(Assembly merged, Assembly::create(whole, parts[0].start(), parts[0].num_rows()));
  settle_rows(parts, &merged);
  for (const Routes& part : parts) copy_layers(part, whole, &merged);
  if (tokens_from->has_tokens()) {
    merged.set_tokens({tokens_from->tokens().begin(), tokens_from->tokens().end()});
  }
  return std::move(merged).finish();
}

}  // namespace moetape::inline v0
