// Which sanitizers look on in this build: MOETAPE_ADDRESS_SANITIZER, MOETAPE_THREAD_SANITIZER.
#pragma once

#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer)
#define MOETAPE_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define MOETAPE_THREAD_SANITIZER 1
#endif
#else
#ifdef __SANITIZE_ADDRESS__
#define MOETAPE_ADDRESS_SANITIZER 1
#endif
#ifdef __SANITIZE_THREAD__
#define MOETAPE_THREAD_SANITIZER 1
#endif
#endif
