#include "memory/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/fail.h"

namespace moetape::inline v0 {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string system_error_text() { return std::generic_category().message(errno); }

// Asks the system to bring the pages in; an old kernel that cannot is served by touching them.
Status populate_pages(std::string_view name, std::byte* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL) {
    return fail(ErrorCode::kOutOfMemory, "{}: the system could not fill {} bytes with pages: {}", name, bytes,
                system_error_text());
  }
#endif
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) {
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
  return {};
}

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  Segment moved(std::move(other));
  std::swap(data_, moved.data_);
  std::swap(size_, moved.size_);
  std::swap(mapping_, moved.mapping_);
  std::swap(mapped_, moved.mapped_);
  return *this;
}

Segment::~Segment() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Result<Segment> Segment::allocate(std::string_view name, int64_t bytes, SegmentOptions options) {
  if (bytes < 0)
    return fail(ErrorCode::kInvalidArgument, "{}: size must be 0 or more, got {} bytes", name, bytes);
  Segment segment;
  if (bytes == 0) return segment;

  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const bool huge = options.huge_pages && static_cast<size_t>(bytes) >= kHugePage;
  const size_t length = round_up(static_cast<size_t>(bytes), page) + (huge ? kHugePage : 0);
  void* mapping = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return fail(ErrorCode::kOutOfMemory, "{}: the system gave no {} bytes: {}", name, bytes,
                system_error_text());
  }
  segment.mapping_ = static_cast<std::byte*>(mapping);
  segment.mapped_ = length;
  segment.size_ = bytes;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  segment.data_ = segment.mapping_ + (huge ? round_up(address, kHugePage) - address : 0);
  if (huge) madvise(segment.data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  if (options.populate) MOETAPE_TRY(populate_pages(name, segment.data_, static_cast<size_t>(bytes)));
  return segment;
}

}  // namespace moetape::inline v0
