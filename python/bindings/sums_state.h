// Comparison and Stats as pickles, so that ranks can send each other their sums.
#pragma once

#include <nanobind/nanobind.h>

#include "moetape/compare.h"
#include "moetape/stats.h"

namespace moetape::bindings {

using SumsState = nanobind::typed<nanobind::tuple, nanobind::any, nanobind::ellipsis>;

SumsState comparison_state(const Comparison& comparison);
SumsState stats_state(const Stats& stats);

// CorruptDataError for what no such value can be.
Comparison comparison_from_state(const SumsState& state);
Stats stats_from_state(const SumsState& state);

}  // namespace moetape::bindings
