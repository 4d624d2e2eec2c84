// Buffer: a block of bytes of fixed size with shared ownership.
//
// Blocks come from a bounded pool of the process: results of read and encode are large and short-lived, and
// fresh pages cost more than the copy into them. The last owner gives a block back to the pool, or to the
// system when the pool would grow above its limit. A Buffer may also stand for other people's memory.
//
// Copies share the block. All functions may be called from any thread; the bytes follow the rule of any
// array: who fills them does so before sharing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "moetape/error.h"

namespace moetape::inline v0 {

class Buffer {
 public:
  Buffer() = default;

  // `bytes` bytes of unspecified content, 64-byte aligned. Errors: kInvalidArgument (below 0), kOutOfMemory.
  static Result<Buffer> allocate(int64_t bytes);

  // Memory that lives as long as `owner`. mutable_data() may be used only if the memory may be written.
  static Buffer wrap(const void* data, int64_t bytes, std::shared_ptr<void> owner);

  const std::byte* data() const { return data_; }
  std::byte* mutable_data() { return data_; }
  int64_t size() const { return size_; }

  // What keeps the bytes alive; null for an empty buffer.
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  Buffer(std::byte* data, int64_t size, std::shared_ptr<void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}

  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::shared_ptr<void> owner_;
};

// Bytes of free blocks that the pool keeps at most (default 256 MiB); a lower limit frees at once.
void buffer_pool_set_limit(int64_t bytes);
int64_t buffer_pool_limit();

// Bytes of free blocks in the pool now.
int64_t buffer_pool_bytes();

}  // namespace moetape::inline v0
