#include "simd/copy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/test_util.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

constexpr std::byte kUntouched{0xA5};

// 16-byte aligned, as the shared side must be, at any offset from a cache line.
class Shared {
 public:
  explicit Shared(size_t bytes, size_t offset = 0) : kept_(bytes + offset + 64, kUntouched) {
    const auto address = reinterpret_cast<uintptr_t>(kept_.data());
    data_ = kept_.data() + (64 - address % 64) % 64 + offset;
    size_ = bytes;
  }

  std::byte* data() { return data_; }
  std::vector<std::byte> bytes() const { return {data_, data_ + size_}; }

 private:
  std::vector<std::byte> kept_;
  std::byte* data_;
  size_t size_;
};

std::vector<size_t> interesting_sizes() {
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= 300; ++size) sizes.push_back(size);
  for (const size_t size : {464u, 511u, 512u, 1000u, 2047u, 2048u, 4097u, 29696u}) sizes.push_back(size);
  return sizes;
}

TEST(Copy, MovesEveryByteAndNoOther) {
  const auto source = random_bytes(30000, 1);
  on_every_target([&] {
    for (const size_t size : interesting_sizes()) {
      for (const size_t shared_offset : {0u, 16u, 48u}) {
        for (const size_t private_offset : {0u, 1u, 7u, 16u}) {
          Shared shared(size + 32, shared_offset);
          copy_in(shared.data(), source.data() + private_offset, size);
          store_fence();
          std::vector<std::byte> expected(size + 32, kUntouched);
          std::copy_n(source.data() + private_offset, size, expected.begin());
          ASSERT_EQ(shared.bytes(), expected) << size << " bytes in";

          std::vector<std::byte> back(size + 64, kUntouched);
          copy_out(back.data() + private_offset, shared.data(), size);
          std::vector<std::byte> expected_back(size + 64, kUntouched);
          std::copy_n(source.data() + private_offset, size, expected_back.begin() + int64_t(private_offset));
          ASSERT_EQ(back, expected_back) << size << " bytes out";
        }
      }
    }
  });
}

// Bytes that end where no memory may be touched any more.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    mapping_ = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(static_cast<std::byte*>(mapping_) + kReadable, kMapped - kReadable, PROT_NONE);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(mapping_, kMapped); }

  std::byte* data() { return static_cast<std::byte*>(mapping_) + kReadable - bytes_; }

 private:
  static constexpr size_t kReadable = size_t{16} << 12;
  static constexpr size_t kMapped = size_t{17} << 12;
  size_t bytes_;
  void* mapping_;
};

TEST(Copy, TouchesNothingBehindTheEnd) {
  on_every_target([&] {
    for (const size_t size : interesting_sizes()) {
      Guarded source(size);
      Guarded target(size);
      Shared shared(size);
      std::fill_n(source.data(), size, std::byte{9});
      copy_in(shared.data(), source.data(), size);
      copy_out(target.data(), shared.data(), size);
      ASSERT_TRUE(
          std::all_of(target.data(), target.data() + size, [](std::byte b) { return b == std::byte{9}; }));
      if (size % 16 != 0) continue;
      Guarded shared_end(size);
      copy_in(shared_end.data(), source.data(), size);
      copy_out(target.data(), shared_end.data(), size);
      ASSERT_EQ(std::memcmp(target.data(), source.data(), size), 0);
    }
  });
}

// Slots in runs, alone, and absent.
std::vector<int64_t> random_slots(std::mt19937_64& random, int64_t count, int64_t num_slots) {
  std::vector<int64_t> all(static_cast<size_t>(num_slots));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  if (random() % 2) std::shuffle(all.begin(), all.end(), random);
  const size_t start = random() % static_cast<size_t>(num_slots - count + 1);
  std::vector<int64_t> slots(all.begin() + int64_t(start), all.begin() + int64_t(start) + count);
  for (size_t swaps = random() % 5; swaps > 0 && count > 1; --swaps) {
    std::swap(slots[random() % slots.size()], slots[random() % slots.size()]);
  }
  for (size_t gaps = random() % 3; gaps > 0 && count > 0; --gaps) slots[random() % slots.size()] = -1;
  return slots;
}

RC_GTEST_PROP(Rows, GoToTheirSlotsAndComeBack, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  const int64_t row_bytes = 1 + static_cast<int64_t>(random() % 600);
  const int64_t shared_stride = (row_bytes + 15) / 16 * 16;
  const int64_t private_stride =
      random() % 2 ? shared_stride : row_bytes + static_cast<int64_t>(random() % 3);
  const int64_t num_slots = 200;
  const int64_t count = static_cast<int64_t>(random() % 150);
  const auto slots = random_slots(random, count, num_slots);
  const auto rows = random_bytes(static_cast<size_t>(std::max<int64_t>(count, 1) * private_stride), seed);
  const auto row_of = [&](const std::byte* base, int64_t row, int64_t stride) {
    return std::vector<std::byte>(base + row * stride, base + row * stride + row_bytes);
  };
  on_every_target([&] {
    Shared shared(static_cast<size_t>(num_slots * shared_stride));
    scatter_rows(shared.data(), shared_stride, slots.data(), count, rows.data(), private_stride, row_bytes);
    store_fence();
    std::vector<std::vector<std::byte>> expected(
        static_cast<size_t>(num_slots), std::vector<std::byte>(static_cast<size_t>(row_bytes), kUntouched));
    for (int64_t i = 0; i < count; ++i) {
      if (slots[size_t(i)] >= 0) expected[size_t(slots[size_t(i)])] = row_of(rows.data(), i, private_stride);
    }
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      ASSERT_EQ(row_of(shared.data(), slot, shared_stride), expected[size_t(slot)]) << "slot " << slot;
    }

    std::vector<std::byte> out(static_cast<size_t>(std::max<int64_t>(count, 1) * private_stride), kUntouched);
    if (count > 0) out.resize(static_cast<size_t>((count - 1) * private_stride + row_bytes));
    const bool streaming = seed % 2 == 0;
    gather_rows(out.data(), private_stride, row_bytes, shared.data(), shared_stride, slots.data(), count,
                streaming);
    store_fence();
    for (int64_t i = 0; i < count; ++i) {
      const auto want = slots[size_t(i)] >= 0
                            ? row_of(rows.data(), i, private_stride)
                            : std::vector<std::byte>(static_cast<size_t>(row_bytes), kUntouched);
      ASSERT_EQ(row_of(out.data(), i, private_stride), want) << "row " << i;
    }
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// Two threads on the same rows: no race is reported, and every byte read was written by someone.
TEST(Copy, MayRunWhileOthersWrite) {
  constexpr size_t kBytes = 464;
  Shared shared(kBytes);
  std::memset(shared.data(), 0, kBytes);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int value = 0; !stop.load(std::memory_order_relaxed); value = (value + 1) % 8) {
      const std::vector<std::byte> row(kBytes, static_cast<std::byte>(value));
      copy_in(shared.data(), row.data(), kBytes);
      store_fence();
    }
  });
  bool only_written_bytes = true;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> row(kBytes);
    copy_out(row.data(), shared.data(), kBytes);
    for (const std::byte byte : row) only_written_bytes &= byte < std::byte{8};
  }
  stop = true;
  writer.join();
  EXPECT_TRUE(only_written_bytes);
}

}  // namespace
}  // namespace moetape::inline v0::simd
