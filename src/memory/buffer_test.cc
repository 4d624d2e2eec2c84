#include "moetape/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The pool is the process's: each test starts with an empty one of the default limit.
class BufferPool : public testing::Test {
 protected:
  void SetUp() override { empty_pool(); }
  void TearDown() override { empty_pool(); }

  static void empty_pool() {
    buffer_pool_set_limit(0);
    buffer_pool_set_limit(256 * kMiB);
  }
};

Buffer must_allocate(int64_t bytes) {
  auto buffer = Buffer::allocate(bytes);
  EXPECT_TRUE(buffer) << buffer.error().message;
  return buffer ? *buffer : Buffer();
}

TEST(Buffer, IsOfTheSizeAskedAndAligned) {
  for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65'535}, int64_t{65'536},
                              int64_t{100'001}, 3 * kMiB + 1}) {
    Buffer buffer = must_allocate(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.mutable_data(), 7, static_cast<size_t>(bytes));
    EXPECT_EQ(buffer.data()[bytes - 1], std::byte{7});
  }
}

TEST(Buffer, OfNoBytesIsEmpty) {
  const Buffer buffer = must_allocate(0);
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.owner(), nullptr);
}

TEST(Buffer, RefusesImpossibleSizes) {
  EXPECT_EQ(Buffer::allocate(-1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Buffer::allocate(std::numeric_limits<int64_t>::max()).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Buffer::allocate(int64_t{1} << 55).error().code, ErrorCode::kOutOfMemory);
}

TEST(Buffer, KeepsOtherPeoplesMemoryAlive) {
  auto owner = std::make_shared<std::vector<std::byte>>(10, std::byte{3});
  const std::weak_ptr<void> watch = owner;
  Buffer copy;
  {
    const std::byte* data = owner->data();
    const Buffer buffer = Buffer::wrap(data, 10, std::move(owner));
    EXPECT_EQ(buffer.data(), data);
    copy = buffer;
  }
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(copy.data()[9], std::byte{3});
  copy = Buffer();
  EXPECT_TRUE(watch.expired());
}

TEST_F(BufferPool, GivesTheSameBlockAgain) {
  const std::byte* first = nullptr;
  {
    const Buffer buffer = must_allocate(15 * kMiB);
    first = buffer.data();
    const Buffer copy = buffer;
    EXPECT_EQ(buffer_pool_bytes(), 0);
  }
  EXPECT_GE(buffer_pool_bytes(), 15 * kMiB);
  EXPECT_EQ(must_allocate(15 * kMiB).data(), first);
  EXPECT_EQ(must_allocate(15 * kMiB - 5000).data(), first) << "a little less fits as well";
}

TEST_F(BufferPool, WastesAtMostAnEighthOfANewBlock) {
  for (int64_t bytes = 65'536; bytes < 40 * kMiB; bytes += bytes / 7 + 1) {
    empty_pool();
    must_allocate(bytes);
    EXPECT_GE(buffer_pool_bytes(), bytes);
    EXPECT_LE(buffer_pool_bytes(), bytes + bytes / 8);
  }
}

TEST_F(BufferPool, NeverServesASmallRequestWithAHugeBlock) {
  must_allocate(32 * kMiB);
  const int64_t free_before = buffer_pool_bytes();
  const Buffer small = must_allocate(kMiB);
  EXPECT_EQ(buffer_pool_bytes(), free_before);
}

TEST_F(BufferPool, StaysBelowItsLimitAndDropsTheOldest) {
  buffer_pool_set_limit(10 * kMiB);
  EXPECT_EQ(buffer_pool_limit(), 10 * kMiB);
  {
    const Buffer given_second = must_allocate(4 * kMiB);
    const Buffer given_first = must_allocate(5 * kMiB);
  }
  EXPECT_EQ(buffer_pool_bytes(), 9 * kMiB);
  must_allocate(2 * kMiB);
  EXPECT_EQ(buffer_pool_bytes(), 6 * kMiB) << "the block of 5 MiB made room";
  must_allocate(11 * kMiB);
  EXPECT_EQ(buffer_pool_bytes(), 6 * kMiB) << "a block above the limit is not kept";
}

TEST_F(BufferPool, FreesAtOnceUnderALowerLimit) {
  must_allocate(8 * kMiB);
  EXPECT_GT(buffer_pool_bytes(), 0);
  buffer_pool_set_limit(kMiB);
  EXPECT_EQ(buffer_pool_bytes(), 0);
}

// Blocks in use are never shared, whatever other threads take and give.
TEST_F(BufferPool, ServesManyThreads) {
  buffer_pool_set_limit(8 * kMiB);
  std::vector<std::thread> threads;
  std::vector<int> clashes(4, 0);
  for (size_t t = 0; t < clashes.size(); ++t) {
    threads.emplace_back([t, &clashes] {
      std::mt19937_64 random(t);
      std::vector<std::pair<Buffer, std::byte>> held;
      for (int round = 0; round < 400; ++round) {
        Buffer buffer = *Buffer::allocate(65'536 + static_cast<int64_t>(random() % (kMiB / 2)));
        const auto mark = static_cast<std::byte>(random());
        std::memset(buffer.mutable_data(), static_cast<int>(mark), 256);
        held.emplace_back(std::move(buffer), mark);
        if (held.size() > 5) {
          const auto& [oldest, expected] = held.front();
          for (int i = 0; i < 256; ++i) clashes[t] += oldest.data()[i] != expected;
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, std::vector<int>(4, 0));
  EXPECT_LE(buffer_pool_bytes(), 8 * kMiB);
}

}  // namespace
}  // namespace moetape::inline v0
