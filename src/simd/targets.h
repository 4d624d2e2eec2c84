// Which instruction sets Highway builds for. Included before any header of Highway, in every file that uses
// it: plain code, AVX2, AVX-512 and AVX-512 with VBMI on x86; what Highway offers elsewhere.
#pragma once

#include "base/sanitizers.h"

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

// Sanitizers do not see into assembly: under them, race-safe copies are made of atomic words.
#if defined(MOETAPE_THREAD_SANITIZER) || defined(MOETAPE_ADDRESS_SANITIZER)
#define MOETAPE_COPY_BY_WORDS 1
#endif
