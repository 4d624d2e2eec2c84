// Small specs, rows and steps for this room's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/test_util.h"
#include "moetape/store.h"
#include "store/store_writer.h"

namespace moetape::inline v0 {

// 3 MoE layers, 2 of 256 experts that may repeat: every byte is an id, and a row is 6 bytes.
inline RouteSpec tiny_spec() {
  RouteSpecFields fields;
  fields.layers = {1, 2, 4};
  fields.top_k = 2;
  fields.num_experts = 256;
  fields.distinct = false;
  return value_of(RouteSpec::create(fields));
}

inline std::shared_ptr<Store> tiny_store(int64_t num_slots) {
  return value_of(Store::create(tiny_spec(), {.num_slots = num_slots}));
}

using Row = std::vector<uint8_t>;
inline Row row_of(uint8_t first) {
  return {first,
          static_cast<uint8_t>(first + 1),
          static_cast<uint8_t>(first + 2),
          static_cast<uint8_t>(first + 3),
          static_cast<uint8_t>(first + 4),
          static_cast<uint8_t>(first + 5)};
}

inline std::vector<int64_t> slots_from(int64_t first, int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

// Commits rows as one step of `writer`; returns the step.
inline uint64_t commit_rows(StoreWriter& writer, std::vector<int64_t> slots, const std::vector<Row>& rows,
                            uint32_t version = 0, std::optional<int64_t> step = std::nullopt) {
  const uint64_t number = value_of(writer.submit(step));
  const int64_t stride = writer.store().spec.row_stride();
  std::vector<std::byte> bytes(rows.size() * static_cast<size_t>(stride));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(bytes.data() + i * static_cast<size_t>(stride), rows[i].data(), rows[i].size());
  }
  const std::vector<Stamp> stamps(rows.size(), make_stamp(version, number));
  writer.place(slots.data(), static_cast<int64_t>(slots.size()), bytes.data(), stride, stamps.data());
  writer.land(number);
  return number;
}

inline Row row_at(const Routes& routes, int64_t index) {
  const auto bytes = routes.row(index);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  return Row(data, data + bytes.size());
}

inline Routes read(const Store& store, const std::vector<int64_t>& slots, const ReadOptions& options = {}) {
  return value_of(store.read(Slots(slots), options));
}

inline Reason reason_at(const Store& store, int64_t slot, std::optional<int64_t> as_of = std::nullopt) {
  return read(store, {slot}, {.as_of = as_of}).reasons()[0];
}

}  // namespace moetape::inline v0
