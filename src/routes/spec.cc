#include "moetape/spec.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

constexpr int32_t kMaxExperts = 65'536;  // an id is kept in 2 bytes

Status check_layers(const RouteSpecFields& fields) {
  if (fields.layers.empty())
    return fail(ErrorCode::kInvalidArgument, "layers: expected at least one, got none");
  int64_t previous = -1;
  for (const int32_t layer : fields.layers) {
    if (layer <= previous) {
      return fail(ErrorCode::kInvalidArgument,
                  "layers: expected 0-based indices in ascending order, got {} after {}", layer,
                  previous < 0 ? "the beginning" : std::to_string(previous));
    }
    previous = layer;
  }
  if (previous == std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument, "layers: expected indices below {}, got {}", previous, previous);
  }
  return {};
}

Status check_counts(const RouteSpecFields& fields) {
  if (fields.num_experts < 1 || fields.num_experts > kMaxExperts) {
    return fail(ErrorCode::kInvalidArgument, "num_experts: expected 1 to {}, got {}", kMaxExperts,
                fields.num_experts);
  }
  const int32_t max_top_k = fields.distinct ? fields.num_experts : kMaxExperts;
  if (fields.top_k < 1 || fields.top_k > max_top_k) {
    return fail(ErrorCode::kInvalidArgument, "top_k: expected 1 to {}{}, got {}", max_top_k,
                fields.distinct ? " (ids are distinct)" : "", fields.top_k);
  }
  if (fields.shared_columns < 0 || fields.shared_columns > kMaxExperts) {
    return fail(ErrorCode::kInvalidArgument, "shared_columns: expected 0 to {}, got {}", kMaxExperts,
                fields.shared_columns);
  }
  return {};
}

Status check_excluded(const RouteSpecFields& fields) {
  for (const auto& [layer, reason] : fields.excluded) {
    if (layer < 0 || layer >= fields.num_layers) {
      return fail(ErrorCode::kInvalidArgument, "excluded: expected layers in [0, {}), got {} ({})",
                  fields.num_layers, layer, reason);
    }
    if (std::ranges::binary_search(fields.layers, layer)) {
      return fail(ErrorCode::kInvalidArgument, "excluded: expected layers that are not recorded, got {} ({})",
                  layer, reason);
    }
  }
  return {};
}

void append_u32(std::string& bytes, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift & 0xFF));
}

uint64_t fingerprint_of(const RouteSpecFields& fields) {
  std::string bytes;
  append_u32(bytes, static_cast<uint32_t>(fields.stack.size()));
  bytes += fields.stack;
  append_u32(bytes, static_cast<uint32_t>(fields.num_layers));
  append_u32(bytes, static_cast<uint32_t>(fields.layers.size()));
  for (const int32_t layer : fields.layers) append_u32(bytes, static_cast<uint32_t>(layer));
  append_u32(bytes, static_cast<uint32_t>(fields.top_k));
  append_u32(bytes, static_cast<uint32_t>(fields.num_experts));
  return XXH3_64bits(bytes.data(), bytes.size());
}

// The first field of the fingerprint that differs, with both values.
std::string first_difference(const RouteSpecFields& a, const RouteSpecFields& b) {
  if (a.stack != b.stack) return fmt::format("stack \"{}\" and \"{}\"", a.stack, b.stack);
  if (a.layers != b.layers) return fmt::format("layers {} and {}", a.layers, b.layers);
  if (a.top_k != b.top_k) return fmt::format("top_k {} and {}", a.top_k, b.top_k);
  if (a.num_experts != b.num_experts)
    return fmt::format("num_experts {} and {}", a.num_experts, b.num_experts);
  return fmt::format("num_layers {} and {}", a.num_layers, b.num_layers);
}

}  // namespace

Result<RouteSpec> RouteSpec::create(RouteSpecFields fields) {
  if (fields.stack.empty())
    return fail(ErrorCode::kInvalidArgument, "stack: expected a name, got an empty one");
  MOETAPE_TRY(check_layers(fields));
  MOETAPE_TRY(check_counts(fields));
  const int32_t least_layers = fields.layers.back() + 1;
  if (fields.num_layers == 0) fields.num_layers = least_layers;
  if (fields.num_layers < least_layers) {
    return fail(ErrorCode::kInvalidArgument,
                "num_layers: expected at least {} (the last MoE layer + 1), got {}", least_layers,
                fields.num_layers);
  }
  MOETAPE_TRY(check_excluded(fields));
  const uint64_t fingerprint = fingerprint_of(fields);
  return RouteSpec(std::make_shared<const Data>(Data{std::move(fields), fingerprint}));
}

Result<int32_t> RouteSpec::column_of(int32_t layer) const {
  const std::vector<int32_t>& layers = data_->fields.layers;
  const auto found = std::ranges::lower_bound(layers, layer);
  if (found == layers.end() || *found != layer) {
    return fail(ErrorCode::kOutOfRange, "layer: expected one of {}, got {}", layers, layer);
  }
  return static_cast<int32_t>(found - layers.begin());
}

Result<RouteSpec> RouteSpec::with_layers(std::vector<int32_t> layers) const {
  for (const int32_t layer : layers) MOETAPE_TRY(column_of(layer));
  RouteSpecFields fields = data_->fields;
  fields.layers = std::move(layers);
  return create(std::move(fields));
}

Status check_same_spec(std::string_view what, const RouteSpec& expected, const RouteSpec& found) {
  if (expected.fingerprint() == found.fingerprint()) return {};
  return fail(ErrorCode::kSpecMismatch, "{}: expected routes of spec {:016x}, got spec {:016x}: {}", what,
              expected.fingerprint(), found.fingerprint(),
              first_difference(expected.fields(), found.fields()));
}

Status check_fits(std::string_view what, const RouteSpec& spec, const RouteSpec& found) {
  MOETAPE_TRY(check_same_spec(what, spec, found));
  if (found.distinct() || !spec.distinct()) return {};
  return fail(ErrorCode::kSpecMismatch,
              "{}: expected distinct ids, as the spec promises, got routes whose ids may repeat", what);
}

RouteSpec common_spec(const RouteSpec& first, const RouteSpec& second) {
  if (!first.distinct() || second.distinct()) return first;
  RouteSpecFields fields = first.fields();
  fields.distinct = false;
  // Dropping a promise takes nothing away that create() asks for.
  return *RouteSpec::create(std::move(fields));
}

}  // namespace moetape::inline v0
