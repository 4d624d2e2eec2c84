// Segment: zero-filled pages of the system, owned by one object and given back when it goes.
//
// Move-only; its address never changes. Not tied to a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "moetape/error.h"

namespace moetape::inline v0 {

struct SegmentOptions {
  bool huge_pages = true;  // ask for huge pages where the size makes them worth it; no promise
  bool populate = false;   // touch every page now, so that first writes later cost no page fault
};

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // `name` says in errors what the memory is for. Errors: kInvalidArgument (bytes below 0), kOutOfMemory.
  static Result<Segment> allocate(std::string_view name, int64_t bytes, SegmentOptions options = {});

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }  // as asked

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::byte* mapping_ = nullptr;  // the data lie in it, at the next huge page
  size_t mapped_ = 0;
};

}  // namespace moetape::inline v0
