// Assembly: a Routes put together from rows of others, with a version kept for every row on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moetape/routes.h"

namespace moetape::inline v0 {

inline constexpr uint32_t kNoVersion = 0xFFFFFFFF;

// The version of every row of `routes`, kNoVersion where there is none.
std::vector<uint32_t> row_versions(const Routes& routes);

// Used once, by one thread; everything is named by position. Rows nobody gives stay missing with kGap.
class Assembly {
 public:
  static Result<Assembly> create(const RouteSpec& spec, int64_t start, int64_t num_rows);

  // From this position on.
  Reason* reasons(int64_t position) { return builder_.reasons() + (position - start_); }
  std::byte* row(int64_t position) { return builder_.ids() + (position - start_) * row_bytes_; }
  uint32_t& version(int64_t position) { return versions_[static_cast<size_t>(position - start_)]; }

  // Takes valid rows [first, end) of `from`, whose row_versions() are `from_versions`.
  void copy(const Routes& from, std::span<const uint32_t> from_versions, int64_t first, int64_t end);
  void set_tokens(std::vector<int32_t> tokens) { builder_.set_tokens(std::move(tokens)); }

  Routes finish() &&;

 private:
  Assembly(RoutesBuilder builder, const RouteSpec& spec, int64_t start, int64_t num_rows)
      : builder_(std::move(builder)),
        start_(start),
        row_bytes_(spec.row_bytes()),
        versions_(static_cast<size_t>(num_rows), kNoVersion) {}

  RoutesBuilder builder_;
  int64_t start_;
  int64_t row_bytes_;
  std::vector<uint32_t> versions_;
};

}  // namespace moetape::inline v0
