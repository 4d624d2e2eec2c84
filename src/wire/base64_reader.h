// Reads the bytes of a base64 text in pieces of any size, so that nothing of the text's size is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "moetape/error.h"
#include "wire/byte_reader.h"

namespace moetape::inline v0::wire {

// Errors are kCorruptData and name the character's position.
class Base64Reader final : public ByteReader {
 public:
  // `thing` begins every message; `offset` is where `text` begins in the text that the caller was given.
  static Result<Base64Reader> create(std::string_view thing, std::string_view text, size_t offset = 0);

  // At `scratch`, always.
  Result<const std::byte*> next(int64_t bytes, std::byte* scratch) override;
  Status skip(int64_t bytes) override;
  // By one call of the decoder, with all of its groups at once.
  Result<const std::byte*> next_behind(int64_t skipped, int64_t bytes, std::byte* scratch) override;

 private:
  Base64Reader(std::string_view thing, std::string_view text, size_t offset)
      : thing_(thing), text_(text), offset_(offset) {}
  // The first bytes of the next group, fewer than three; the others wait in rest_.
  Status begin_group(int64_t bytes, std::byte* out);
  Status decode(std::byte* out, size_t chars, size_t expected_bytes);
  Failure bad_character(size_t position) const;

  std::string_view thing_;
  std::string_view text_;
  size_t offset_;
  size_t next_ = 0;                  // character
  std::array<std::byte, 3> rest_{};  // of a group that was read in part: its last num_rest_ bytes
  int64_t num_rest_ = 0;
};

}  // namespace moetape::inline v0::wire
