// Lane: the staging buffer of one step on the CPU. Narrow and token-major, with the store's row stride, so
// that a run of rows goes to a run of slots in one copy.
//
// Ids are checked as they come in, and which rows of which layer came is remembered, so nothing needs poison.
// One thread at a time. Steady state allocates nothing.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "memory/segment.h"
#include "moetape/recorder.h"
#include "record/capture_log.h"

namespace moetape::inline v0 {

class Lane {
 public:
  static Result<int64_t> required_bytes(const RouteSpec& spec, int64_t max_rows);
  static Result<Lane> create(const RouteSpec& spec, int64_t max_rows,
                             const std::map<int32_t, IdMap>* id_maps);

  // Forgets everything.
  void clear();
  bool touched() const { return log_.touched(); }

  // As Recorder::capture. A structural fault is remembered and comes back from finish().
  Status capture(int32_t layer, const IdsView& ids, int64_t offset);
  // Remembers a fault that the caller found in this step; the first one counts.
  void fail_step(const Error& error) { log_.fail_step(error); }

  // The rows of the batch, if every layer has rows [0, n) with one n.
  Result<int64_t> finish() const { return log_.finish(); }

  int64_t row_stride() const { return spec_.row_stride(); }
  const std::byte* row(int64_t index) const { return memory_.data() + index * spec_.row_stride(); }
  // Whether any row has an id that is no expert; which rows; and the first such id of a row that has.
  bool any_faults() const { return any_faults_; }
  bool is_faulty(int64_t row) const { return faults_[static_cast<size_t>(row)] != 0; }
  const Offender& offender(int64_t row) const { return offenders_[static_cast<size_t>(row)]; }

 private:
  Lane(RouteSpec spec, int64_t max_rows, const std::map<int32_t, IdMap>* id_maps, Segment memory);
  void narrow(int32_t layer, int32_t column, const IdsView& ids, int64_t offset, const IdMap* map);
  bool narrow_rows(int32_t column, const IdsView& ids, int64_t offset);
  IdsView map_rows(const IdsView& ids, const IdMap& map);
  int64_t logical_id(int64_t id, const IdMap* map) const;
  Offender find_offender(int32_t layer, const IdsView& ids, int64_t row, const IdMap* map) const;

  RouteSpec spec_;
  CaptureLog log_;
  const std::map<int32_t, IdMap>* id_maps_;
  Segment memory_;
  std::vector<uint8_t> faults_;      // simd::RowFault bits of a row
  std::vector<Offender> offenders_;  // of rows with faults
  std::vector<int32_t> mapped_;      // scratch of map_rows
  bool any_faults_ = false;
};

}  // namespace moetape::inline v0
