#include "moetape/buffer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/fail.h"
#include "base/sanitizers.h"
#include "memory/segment.h"

#ifdef MOETAPE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace moetape::inline v0 {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kSmallestPooled = int64_t{64} << 10;  // below it malloc recycles well enough
constexpr int64_t kLargest = int64_t{1} << 56;          // above it sizes could overflow
constexpr int64_t kDefaultLimit = int64_t{256} << 20;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Eight sizes between a power of two and the next: at most an eighth is unused.
int64_t size_class(int64_t bytes) {
  return round_up(bytes, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 8));
}

void forbid_access([[maybe_unused]] const Segment& block) {
#ifdef MOETAPE_ADDRESS_SANITIZER
  __asan_poison_memory_region(block.data(), static_cast<size_t>(block.size()));
#endif
}

void allow_access([[maybe_unused]] const Segment& block) {
#ifdef MOETAPE_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(block.data(), static_cast<size_t>(block.size()));
#endif
}

// Free blocks, the oldest of which make room for new ones.
class Pool {
 public:
  // Lives as long as the process: the last buffers may go after main.
  static Pool& instance() {
    static Pool& pool = *new Pool;
    return pool;
  }

  // A block of `bytes`, or somewhat more; an empty one if there is none.
  Segment take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fitting = free_.lower_bound(bytes);
    if (fitting == free_.end() || fitting->first > bytes + bytes / 4) return {};
    return remove(std::prev(free_.upper_bound(fitting->first)));
  }

  void give(Segment block) noexcept {
    std::vector<Segment> dropped;  // unmapped after the lock
    const std::lock_guard lock(mutex_);
    if (block.size() > limit_) return;
    try {
      shrink_to(limit_ - block.size(), dropped);
      const int64_t bytes = block.size();
      const auto place = free_.emplace(bytes, FreeBlock{std::move(block), ++last_age_});
      free_bytes_ += bytes;
      forbid_access(place->second.block);
    } catch (const std::bad_alloc&) {
      // The block goes back to the system instead.
    }
  }

  void set_limit(int64_t bytes) {
    std::vector<Segment> dropped;
    const std::lock_guard lock(mutex_);
    limit_ = std::max<int64_t>(bytes, 0);
    shrink_to(limit_, dropped);
  }

  int64_t limit() {
    const std::lock_guard lock(mutex_);
    return limit_;
  }

  int64_t free_bytes() {
    const std::lock_guard lock(mutex_);
    return free_bytes_;
  }

 private:
  struct FreeBlock {
    Segment block;
    uint64_t age;
  };
  using FreeBlocks = std::multimap<int64_t, FreeBlock>;  // by size; the youngest of a size last

  Segment remove(FreeBlocks::iterator place) {
    Segment block = std::move(place->second.block);
    free_.erase(place);
    free_bytes_ -= block.size();
    allow_access(block);
    return block;
  }

  void shrink_to(int64_t bytes, std::vector<Segment>& dropped) {
    while (free_bytes_ > bytes) {
      dropped.reserve(dropped.size() + 1);
      dropped.push_back(remove(std::min_element(free_.begin(), free_.end(), [](const auto& a, const auto& b) {
        return a.second.age < b.second.age;
      })));
    }
  }

  std::mutex mutex_;
  FreeBlocks free_;
  int64_t free_bytes_ = 0;
  int64_t limit_ = kDefaultLimit;
  uint64_t last_age_ = 0;
};

// A block in use, which goes back to the pool at the end.
class PooledBlock {
 public:
  explicit PooledBlock(Segment block) : block_(std::move(block)) {}
  PooledBlock(const PooledBlock&) = delete;
  PooledBlock& operator=(const PooledBlock&) = delete;
  ~PooledBlock() { Pool::instance().give(std::move(block_)); }

 private:
  Segment block_;
};

}  // namespace

Result<Buffer> Buffer::allocate(int64_t bytes) {
  if (bytes < 0) return fail(ErrorCode::kInvalidArgument, "buffer: size must be 0 or more, got {}", bytes);
  if (bytes == 0) return Buffer();
  if (bytes > kLargest) return fail(ErrorCode::kOutOfMemory, "buffer: no memory for {} bytes", bytes);
  try {
    if (bytes < kSmallestPooled) {
      void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(round_up(bytes, kAlignment)));
      if (data == nullptr) throw std::bad_alloc();
      return wrap(data, bytes, std::shared_ptr<void>(data, std::free));
    }
    const int64_t block_bytes = size_class(bytes);
    Segment block = Pool::instance().take(block_bytes);
    if (block.size() == 0) {
      MOETAPE_ASSIGN(block, Segment::allocate("buffer", block_bytes));
    }
    std::byte* data = block.data();
    return wrap(data, bytes, std::make_shared<PooledBlock>(std::move(block)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, "buffer: no memory for {} bytes", bytes);
  }
}

Buffer Buffer::wrap(const void* data, int64_t bytes, std::shared_ptr<void> owner) {
  return Buffer(static_cast<std::byte*>(const_cast<void*>(data)), bytes, std::move(owner));
}

void buffer_pool_set_limit(int64_t bytes) { Pool::instance().set_limit(bytes); }
int64_t buffer_pool_limit() { return Pool::instance().limit(); }
int64_t buffer_pool_bytes() { return Pool::instance().free_bytes(); }

}  // namespace moetape::inline v0
