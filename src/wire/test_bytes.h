// What the tests of wire share: ids as bytes, and a plain base64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/wire.h"
#include "routes/test_routes.h"

namespace moetape::inline v0::wire {

// But the tapes.
inline std::vector<Dialect> all_dialects() {
  std::vector<Dialect> dialects;
  for (int i = 0; i < kNumDialects; ++i)
    if (dialect_info(static_cast<Dialect>(i)).sized) dialects.push_back(static_cast<Dialect>(i));
  return dialects;
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
