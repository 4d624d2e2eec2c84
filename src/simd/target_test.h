// For tests: runs a check under every instruction set that this build and this machine have.
#pragma once

#include "simd/targets.h"  // before Highway
//
#include <gtest/gtest.h>

#include "hwy/highway.h"

namespace moetape::inline v0::simd {

template <class Check>
void on_every_target(Check check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace moetape::inline v0::simd
