// The benchmark: what recording adds to a graph of 58 gates, by the ways that engines have and by ours.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/rig.h"

namespace moetape::inline v0::cuda {

// Variants that goals are about.
inline constexpr const char* kNoRecording = "none";
inline constexpr const char* kOursByLayerBuffer = "ours, layer_buffer, mapped";
inline constexpr const char* kOursPacked = "ours, layer_buffer, packed";
inline constexpr const char* kPinnedCopy = "pinned copy";
inline constexpr const char* kCommitMapped = "commit, mapped";

struct StepTime {
  std::string variant;
  int64_t batch;
  double microseconds;       // a step
  double added;              // to the gates alone
  int64_t num_nodes;         // of the graph
  int64_t pcie_bytes;        // a step, both ways
  double host_microseconds;  // of the host's work a step, the replay not counted
};

// What the commit alone reaches of a pinned copy's bandwidth.
struct Bandwidth {
  std::string variant;
  int64_t batch;
  double gigabytes_per_second;
};

struct BenchResult {
  std::vector<StepTime> steps;
  std::vector<Bandwidth> bandwidths;
};

BenchResult run_bench(Rig& rig, const std::vector<int64_t>& batches);

}  // namespace moetape::inline v0::cuda
