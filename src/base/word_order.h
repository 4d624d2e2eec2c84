// The order of words that a reader and a writer of other threads may meet on. Fences order them in other
// builds; ThreadSanitizer knows none, so there each word carries the order itself.
#pragma once

#include <atomic>

#include "base/sanitizers.h"

namespace moetape::inline v0 {

#ifdef MOETAPE_THREAD_SANITIZER
inline constexpr auto kWordLoadOrder = std::memory_order_acquire;
inline constexpr auto kWordStoreOrder = std::memory_order_release;
#else
inline constexpr auto kWordLoadOrder = std::memory_order_relaxed;
inline constexpr auto kWordStoreOrder = std::memory_order_relaxed;
#endif

}  // namespace moetape::inline v0
