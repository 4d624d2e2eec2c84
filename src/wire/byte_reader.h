// The bytes of a form's ids, whatever they are written in, in pieces of any size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/fail.h"
#include "moetape/error.h"

namespace moetape::inline v0::wire {

// One thread; what it reads from must outlive it.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // Bytes not yet read.
  int64_t remaining() const { return remaining_; }

  // The next `bytes` bytes, at most remaining(): at `scratch`, which has room for them, or where they are.
  virtual Result<const std::byte*> next(int64_t bytes, std::byte* scratch) = 0;
  // Passes over bytes, at most remaining(); a reader that can does not look at them.
  virtual Status skip(int64_t bytes) {
    std::array<std::byte, 4096> scratch;
    for (int64_t part = 0; bytes > 0; bytes -= part) {
      part = std::min<int64_t>(bytes, scratch.size());
      MOETAPE_TRY(next(part, scratch.data()));
    }
    return {};
  }
  // The `bytes` bytes behind `skipped` others; at `scratch`, with room for kNearby more, or where they are.
  // A reader may look at up to so many bytes around them.
  virtual Result<const std::byte*> next_behind(int64_t skipped, int64_t bytes, std::byte* scratch) {
    MOETAPE_TRY(skip(skipped));
    return next(bytes, scratch);
  }
  static constexpr int64_t kNearby = 64;

 protected:
  int64_t remaining_ = 0;
};

class RawReader final : public ByteReader {
 public:
  RawReader(const void* bytes, int64_t size) : at_(static_cast<const std::byte*>(bytes)) {
    remaining_ = size;
  }
  Result<const std::byte*> next(int64_t bytes, std::byte*) override {
    const std::byte* const bytes_at = at_;
    at_ += bytes;
    remaining_ -= bytes;
    return bytes_at;
  }
  Status skip(int64_t bytes) override {
    at_ += bytes;
    remaining_ -= bytes;
    return {};
  }

 private:
  const std::byte* at_;
};

}  // namespace moetape::inline v0::wire
