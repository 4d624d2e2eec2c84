// XXH3-64 of pieces.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moetape::inline v0::tape {

class Checksum {
 public:
  Checksum() { XXH3_64bits_reset(&state_); }

  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_, bytes.data(), bytes.size()); }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add_number(int64_t number) { XXH3_64bits_update(&state_, &number, sizeof number); }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

  static uint64_t of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

 private:
  XXH3_state_t state_;
};

}  // namespace moetape::inline v0::tape
