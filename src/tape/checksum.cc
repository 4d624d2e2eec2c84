#include "tape/checksum.h"

namespace moetape::inline v0::tape {

Checksum::Checksum() { XXH3_64bits_reset(&state_); }

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_, bytes.data(), bytes.size());
}

uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_); }

uint64_t Checksum::of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace moetape::inline v0::tape
