// XXH3-64, whole or of pieces.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moetape::inline v0::tape {

// Whether a checksum that was found is the one that was written. A fuzzer would never get past them: its
// build takes all.
template <class Sum>
bool same_checksum(const Sum& found, const Sum& written) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  (void)found, (void)written;
  return true;
#else
  return found == written;
#endif
}

class Checksum {
 public:
  Checksum();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add_number(int64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  uint64_t value() const;

  static uint64_t of(std::span<const std::byte> bytes);

 private:
  XXH3_state_t state_;
};

}  // namespace moetape::inline v0::tape
