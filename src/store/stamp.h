// Stamp: version and step of a slot's row in one word. 0 = nothing; version 0xFFFFFF = refused in that step.
#pragma once

#include <cstdint>

#include "moetape/routes.h"

namespace moetape::inline v0 {

using Stamp = uint64_t;
inline constexpr int kStepBits = 40;
inline constexpr uint32_t kRefusedVersion = 0xFFFFFF;
static_assert(kMaxVersion + 1 == kRefusedVersion);

constexpr Stamp make_stamp(uint32_t version, uint64_t step) { return Stamp{version} << kStepBits | step; }
// What a slot carries while its row is written, and for good if the row is no row.
constexpr Stamp refused(uint64_t step) { return make_stamp(kRefusedVersion, step); }
constexpr uint64_t step_of(Stamp stamp) { return stamp & ((uint64_t{1} << kStepBits) - 1); }
constexpr uint32_t version_of(Stamp stamp) { return static_cast<uint32_t>(stamp >> kStepBits); }

}  // namespace moetape::inline v0
