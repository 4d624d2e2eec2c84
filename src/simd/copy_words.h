// The race-safe copy of the language itself: atomic words. Slow, right everywhere, and what ThreadSanitizer
// understands.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/word_order.h"
#include "simd/targets.h"

namespace moetape::inline v0::simd::words {

template <class Word>
void store(std::byte* shared, const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(shared)).store(word, kWordStoreOrder);
}

template <class Word>
void load(std::byte* to, const std::byte* shared) {
  auto* place = reinterpret_cast<Word*>(const_cast<std::byte*>(shared));
  const Word word = std::atomic_ref<Word>(*place).load(kWordLoadOrder);
  std::memcpy(to, &word, sizeof word);
}

inline void copy_in(std::byte* shared, const std::byte* from, size_t bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) store<uint64_t>(shared + i, from + i);
  for (; i < bytes; ++i) store<uint8_t>(shared + i, from + i);
}

inline void copy_out(std::byte* to, const std::byte* shared, size_t bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) load<uint64_t>(to + i, shared + i);
  for (; i < bytes; ++i) load<uint8_t>(to + i, shared + i);
}

}  // namespace moetape::inline v0::simd::words
