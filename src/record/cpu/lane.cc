#include "record/cpu/lane.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "simd/narrow.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMappedRows = 256;  // rows mapped at a time

int64_t element(const IdsView& ids, int64_t row, int64_t column) {
  const int64_t index = row * ids.row_stride + column * ids.column_stride;
  switch (ids.type) {
    case IntType::kInt8:
      return static_cast<const int8_t*>(ids.data)[index];
    case IntType::kUint8:
      return static_cast<const uint8_t*>(ids.data)[index];
    case IntType::kInt16:
      return static_cast<const int16_t*>(ids.data)[index];
    case IntType::kUint16:
      return static_cast<const uint16_t*>(ids.data)[index];
    case IntType::kInt32:
      return static_cast<const int32_t*>(ids.data)[index];
    case IntType::kUint32:
      return static_cast<const uint32_t*>(ids.data)[index];
    case IntType::kInt64:
      return static_cast<const int64_t*>(ids.data)[index];
    case IntType::kUint64:
      break;
  }
  const uint64_t id = static_cast<const uint64_t*>(ids.data)[index];
  return static_cast<int64_t>(std::min<uint64_t>(id, INT64_MAX));
}

IdsView rows_of(const IdsView& ids, int64_t first, int64_t count) {
  IdsView part = ids;
  part.data = static_cast<const std::byte*>(ids.data) + first * ids.row_stride * int_type_bytes(ids.type);
  part.num_rows = count;
  return part;
}

}  // namespace

Result<int64_t> Lane::required_bytes(const RouteSpec& spec, int64_t max_rows) {
  if (max_rows < 1)
    return fail(ErrorCode::kInvalidArgument, "max_rows: expected at least 1, got {}", max_rows);
  const auto bytes = checked_multiply(max_rows, spec.row_stride() + 1 + int64_t{sizeof(Offender)});
  if (!bytes) {
    return fail(ErrorCode::kInvalidArgument, "max_rows: {} rows of {} bytes are more than memory can have",
                max_rows, spec.row_stride());
  }
  return *bytes;
}

Result<Lane> Lane::create(const RouteSpec& spec, int64_t max_rows, const std::map<int32_t, IdMap>* id_maps) {
  MOETAPE_TRY(required_bytes(spec, max_rows));
  MOETAPE_ASSIGN(Segment memory, Segment::allocate("lane", max_rows * spec.row_stride()));
  return Lane(spec, max_rows, id_maps, std::move(memory));
}

Lane::Lane(RouteSpec spec, int64_t max_rows, const std::map<int32_t, IdMap>* id_maps, Segment memory)
    : spec_(std::move(spec)),
      log_(spec_, max_rows),
      id_maps_(id_maps),
      memory_(std::move(memory)),
      faults_(static_cast<size_t>(max_rows)),
      offenders_(static_cast<size_t>(max_rows), Offender{.layer = -1}) {
  if (!id_maps->empty())
    mapped_.resize(static_cast<size_t>(kMappedRows * (spec_.top_k() + spec_.shared_columns())));
}

void Lane::clear() {
  if (any_faults_) {
    std::fill(faults_.begin(), faults_.end(), uint8_t{0});
    for (Offender& offender : offenders_) offender.layer = -1;
  }
  log_.clear();
  any_faults_ = false;
}

Status Lane::capture(int32_t layer, const IdsView& ids, int64_t offset) {
  MOETAPE_ASSIGN(const int32_t column, log_.add(layer, ids, offset));
  const auto map = id_maps_->find(layer);
  narrow(layer, column, ids, offset, map == id_maps_->end() ? nullptr : &map->second);
  return {};
}

void Lane::narrow(int32_t layer, int32_t column, const IdsView& ids, int64_t offset, const IdMap* map) {
  bool found = false;
  if (map == nullptr) {
    found = narrow_rows(column, ids, offset);
  } else {
    for (int64_t first = 0; first < ids.num_rows; first += kMappedRows) {
      const IdsView part = rows_of(ids, first, std::min(kMappedRows, ids.num_rows - first));
      found |= narrow_rows(column, map_rows(part, *map), offset + first);
    }
  }
  if (!found) return;
  any_faults_ = true;
  for (int64_t row = 0; row < ids.num_rows; ++row) {
    Offender& offender = offenders_[static_cast<size_t>(offset + row)];
    if (!is_faulty(offset + row) || offender.layer >= 0) continue;
    offender = find_offender(layer, ids, row, map);
    offender.row = offset + row;
  }
}

bool Lane::narrow_rows(int32_t column, const IdsView& ids, int64_t offset) {
  const simd::NarrowJob job = {
      .ids = ids,
      .top_k = spec_.top_k(),
      .shared_columns = spec_.shared_columns(),
      .num_experts = spec_.num_experts(),
      .distinct = spec_.distinct(),
      .out =
          memory_.data() + offset * spec_.row_stride() + int64_t{column} * spec_.top_k() * spec_.id_bytes(),
      .out_stride = spec_.row_stride(),
      .faults = faults_.data() + offset,
  };
  return simd::narrow(job).has_value();
}

IdsView Lane::map_rows(const IdsView& ids, const IdMap& map) {
  int32_t* out = mapped_.data();
  for (int64_t row = 0; row < ids.num_rows; ++row) {
    for (int64_t c = 0; c < ids.num_columns; ++c)
      *out++ = static_cast<int32_t>(std::max<int64_t>(-1, logical_id(element(ids, row, c), &map)));
  }
  return {mapped_.data(), IntType::kInt32, ids.num_rows, ids.num_columns, ids.num_columns, 1};
}

// What is no routed expert is above all of them: refused among the K ids, right in a shared column.
int64_t Lane::logical_id(int64_t id, const IdMap* map) const {
  if (map == nullptr || id < 0) return id;
  const int64_t logical = (*map)(id);
  return logical < 0 ? spec_.num_experts() : logical;
}

Offender Lane::find_offender(int32_t layer, const IdsView& ids, int64_t row, const IdMap* map) const {
  const auto id = [&](int64_t c) { return logical_id(element(ids, row, c), map); };
  const auto offender = [&](int64_t c, RowFault fault) {
    return Offender{layer, row, element(ids, row, c), fault};
  };
  for (int64_t c = 0; c < spec_.top_k(); ++c) {
    if (id(c) < 0) return offender(c, RowFault::kNegative);
    if (id(c) >= spec_.num_experts()) return offender(c, RowFault::kTooLarge);
  }
  for (int64_t c = spec_.top_k(); c < ids.num_columns; ++c) {
    if (id(c) < spec_.num_experts()) return offender(c, RowFault::kShared);
  }
  for (int64_t c = 1; c < spec_.top_k(); ++c) {
    for (int64_t before = 0; before < c; ++before) {
      if (id(before) == id(c)) return offender(c, RowFault::kRepeated);
    }
  }
  return offender(0, RowFault::kTooLarge);
}

}  // namespace moetape::inline v0
