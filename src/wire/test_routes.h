// What the tests of wire share: small specs, routes of given or random ids, and a plain base64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moetape/routes.h"

namespace moetape::inline v0::wire {

using Ids = std::vector<int64_t>;

inline RouteSpec make_spec(RouteSpecFields fields) {
  auto spec = RouteSpec::create(std::move(fields));
  EXPECT_TRUE(spec) << spec.error().message;
  return *spec;
}

inline Routes make_routes(const RouteSpec& spec, const Ids& ids, std::vector<uint8_t> valid = {},
                          int64_t start = 0) {
  const auto num_rows = std::ssize(ids) / (spec.num_moe_layers() * spec.top_k());
  auto routes = Routes::from_ids(
      spec, start, {.ids = ids.data(), .type = IntType::kInt64, .num_rows = num_rows, .valid = valid});
  EXPECT_TRUE(routes) << routes.error().message;
  return *routes;
}

// Different ids in every list, or any ids where the spec allows repetition.
inline Ids random_ids(const RouteSpec& spec, int64_t num_rows, std::mt19937_64& random) {
  Ids ids;
  for (int64_t list = 0; list < num_rows * spec.num_moe_layers(); ++list) {
    Ids chosen;
    while (std::ssize(chosen) < spec.top_k()) {
      const auto id = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.num_experts()));
      if (!spec.distinct() || std::ranges::find(chosen, id) == chosen.end()) chosen.push_back(id);
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

// [rows, MoE layers, k] → little-endian integers [rows, layers, k], zeros in dense layers.
inline std::string raw_ids(const RouteSpec& spec, const Ids& ids, bool all_layers, int id_bytes) {
  std::string raw;
  const auto put = [&](int64_t id) {
    raw.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(id_bytes));
  };
  for (auto next = ids.begin(); next != ids.end();) {
    for (int32_t layer = 0; layer < spec.num_layers(); ++layer) {
      const bool recorded = std::ranges::binary_search(spec.layers(), layer);
      if (!recorded && !all_layers) continue;
      for (int32_t k = 0; k < spec.top_k(); ++k) put(recorded ? *next++ : 0);
    }
  }
  return raw;
}

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

}  // namespace moetape::inline v0::wire
