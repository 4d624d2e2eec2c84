// Which instruction sets Highway builds for. Included before any header of Highway, in every file that uses
// it: plain code, AVX2, AVX-512 and AVX-512 with VBMI on x86; what Highway offers elsewhere.
#pragma once

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

#if defined(__SANITIZE_THREAD__)
#define MOETAPE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOETAPE_THREAD_SANITIZER 1
#endif
#endif
