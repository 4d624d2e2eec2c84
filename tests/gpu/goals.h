// What recording shall cost at most, from the figures of one run.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/bench.h"

namespace moetape::inline v0::cuda {

struct Goal {
  std::string name;
  std::string figures;
  bool met = false;
};

// Every goal, met or not; one whose figures are not in the result is not met.
std::vector<Goal> judge(const BenchResult& bench);

}  // namespace moetape::inline v0::cuda
