// Base64 with the standard alphabet and padding (RFC 4648 §4), strict on the way back.
//
// Pure functions over the caller's memory; a text may be made or read in parts: every part but the last is
// a multiple of 3 bytes, or of 4 characters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moetape::inline v0::simd {

// Characters that `bytes` bytes become.
constexpr size_t base64_size(size_t bytes) { return (bytes + 2) / 3 * 4; }

// The most bytes that `chars` characters can hold.
constexpr size_t base64_decoded_bound(size_t chars) { return chars / 4 * 3; }

// Writes base64_size(bytes) characters, no terminator, and returns their number.
size_t base64_encode(char* out, const std::byte* in, size_t bytes);

struct Base64Decoded {
  size_t bytes = 0;           // written to out
  int64_t bad_position = -1;  // first character that must not stand where it does; -1 = the text is good
};

// Writes at most base64_decoded_bound(chars) bytes. Takes only what base64_encode writes: whole groups of
// four (the end of a cut text is its bad position), no white space, "=" only at the end, unused bits zero.
// With a bad text, the content of out is unspecified.
Base64Decoded base64_decode(std::byte* out, const char* in, size_t chars);

}  // namespace moetape::inline v0::simd
