// What the program checks on a device; each throws at the first thing that is wrong.
#pragma once

#include <cstdint>

#include "tests/gpu/rig.h"

namespace moetape::inline v0::cuda {

// Every pair of the products (or, reduced, those of at most 257 tokens and 3 layers) against record/cpu.
// Gives how many.
int64_t check_products(Rig& rig, bool reduced);
// 100 replays of one graph with other slots, counts, steps and versions, by both paths.
int64_t check_graphs(Rig& rig);
// Graphs of several sizes and in pieces in one recorder; steps that were prepared and never launched, with
// dummy replays behind them; moves that bring home what nobody asks for.
int64_t check_given_up(Rig& rig);
// Delayed kernels: steps on two streams, two lanes, slots that were given away, rows that a router left out.
int64_t check_overlap(Rig& rig);

}  // namespace moetape::inline v0::cuda
