// The slow, plain Routes that tests compare with: one map from position to row.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/test_util.h"
#include "moetape/routes.h"

namespace moetape::inline v0::reference {

struct Row {
  Reason reason = Reason::kGap;
  std::vector<int> ids = {};  // [layers * k]; empty where missing
  std::optional<uint32_t> version = {};
  std::optional<int32_t> token = {};
  bool operator==(const Row&) const = default;
};

struct Table {
  int64_t start = 0;
  std::vector<Row> rows = {};
  bool operator==(const Table&) const = default;

  int64_t end() const { return start + std::ssize(rows); }
  const Row* find(int64_t position) const {
    return position < start || position >= end() ? nullptr : &rows[static_cast<size_t>(position - start)];
  }
  bool has_tokens() const { return !rows.empty() && rows[0].token.has_value(); }
};

inline std::ostream& operator<<(std::ostream& out, const Table& table) {
  out << "[" << table.start << ", " << table.end() << ")";
  int64_t position = table.start;
  for (const Row& row : table.rows) {
    out << "\n  " << position++ << ": " << reason_name(row.reason) << fmt::format(" {}", row.ids);
    if (row.version) out << " v" << *row.version;
    if (row.token) out << " token " << *row.token;
  }
  return out;
}

inline RouteSpec make_spec(std::vector<int32_t> layers, int32_t top_k, int32_t num_experts) {
  return value_of(
      RouteSpec::create({.layers = std::move(layers), .top_k = top_k, .num_experts = num_experts}));
}

// Written by way of the builder, not of from_ids.
inline Routes build(const RouteSpec& spec, const Table& table) {
  RoutesBuilder builder = value_of(RoutesBuilder::create(spec, table.start, std::ssize(table.rows)));
  const auto num_ids = static_cast<size_t>(spec.num_moe_layers() * spec.top_k());
  std::vector<int32_t> tokens;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const Row& row = table.rows[r];
    builder.reasons()[r] = row.reason;
    std::byte* out = builder.ids() + static_cast<int64_t>(r) * spec.row_bytes();
    std::memset(out, 0xEE, static_cast<size_t>(spec.row_bytes()));  // finish() must clear it
    for (size_t i = 0; row.reason == Reason::kValid && i < num_ids; ++i) {
      const auto narrow = static_cast<uint8_t>(row.ids.at(i));
      const auto wide = static_cast<uint16_t>(row.ids.at(i));
      if (spec.id_bytes() == 1) std::memcpy(out + i, &narrow, 1);
      if (spec.id_bytes() == 2) std::memcpy(out + i * 2, &wide, 2);
    }
    if (row.version) builder.add_version(static_cast<int64_t>(r), 1, *row.version);
    if (row.token) tokens.push_back(*row.token);
  }
  if (table.has_tokens()) builder.set_tokens(std::move(tokens));
  return std::move(builder).finish();
}

// Everything that a Routes says, and that what it says twice agrees.
inline Table read_back(const Routes& routes) {
  Table table{.start = routes.start(), .rows = std::vector<Row>(static_cast<size_t>(routes.num_rows()))};
  const RouteSpec& spec = routes.spec();
  EXPECT_EQ(routes.end() - routes.start(), routes.num_rows());
  EXPECT_EQ(std::ssize(routes.ids()), routes.num_rows() * spec.row_bytes());
  EXPECT_EQ(std::ssize(routes.reasons()), routes.num_rows());
  EXPECT_EQ(std::ssize(routes.tokens()), routes.has_tokens() ? routes.num_rows() : 0);
  std::array<int64_t, kNumReasons> counts = {};
  for (size_t r = 0; r < table.rows.size(); ++r) {
    Row& row = table.rows[r];
    row.reason = routes.reasons()[r];
    ++counts[static_cast<size_t>(row.reason)];
    if (routes.has_tokens()) row.token = routes.tokens()[r];
    const std::span<const std::byte> bytes = routes.row(static_cast<int64_t>(r));
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(spec.id_bytes())) {
      uint8_t narrow = 0;
      uint16_t wide = 0;
      if (spec.id_bytes() == 1) std::memcpy(&narrow, &bytes[i], 1);
      if (spec.id_bytes() == 2) std::memcpy(&wide, &bytes[i], 2);
      if (row.reason == Reason::kValid) {
        row.ids.push_back(narrow + wide);
      } else {
        EXPECT_EQ(narrow + wide, 0) << "a missing row that is not zero";
      }
    }
  }
  EXPECT_EQ(routes.count_by_reason(), counts);
  EXPECT_EQ(routes.num_missing(), routes.num_rows() - counts[0]);
  EXPECT_EQ(routes.complete(), routes.num_missing() == 0);
  int64_t last_end = routes.start();
  std::optional<uint32_t> last_version;
  for (const VersionRun& run : routes.versions()) {
    EXPECT_LT(run.start, run.end);
    EXPECT_TRUE(run.start > last_end || (run.start == last_end && run.version != last_version));
    EXPECT_LE(run.end, routes.end());
    for (int64_t position = run.start; position < run.end; ++position) {
      Row& row = table.rows.at(static_cast<size_t>(position - routes.start()));
      EXPECT_EQ(row.reason, Reason::kValid) << "a missing row in a run";
      row.version = run.version;
    }
    last_end = run.end;
    last_version = run.version;
  }
  return table;
}

}  // namespace moetape::inline v0::reference
