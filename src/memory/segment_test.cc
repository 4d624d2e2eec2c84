#include "memory/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace moetape::inline v0 {
namespace {

bool all_zero(const Segment& segment) {
  return std::all_of(segment.data(), segment.data() + segment.size(),
                     [](std::byte b) { return b == std::byte{0}; });
}

// Pages in memory of those that hold [data, data + bytes), or -1 where nothing is mapped.
int64_t resident_pages(const std::byte* data, int64_t bytes) {
  std::vector<unsigned char> pages(static_cast<size_t>(bytes / 4096 + 1));
  if (mincore(const_cast<std::byte*>(data), static_cast<size_t>(bytes), pages.data()) != 0) return -1;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(Segment, IsZeroAndOfTheSizeAsked) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, int64_t{100'000}, int64_t{5} << 20}) {
    for (const bool huge : {false, true}) {
      const auto segment = Segment::allocate("test", bytes, {.huge_pages = huge});
      ASSERT_TRUE(segment) << segment.error().message;
      EXPECT_EQ(segment->size(), bytes);
      EXPECT_TRUE(all_zero(*segment));
      segment->data()[bytes - 1] = std::byte{1};
    }
  }
}

TEST(Segment, StartsAtAHugePageWhereThoseAreAsked) {
  const auto segment = Segment::allocate("test", int64_t{3} << 20);
  ASSERT_TRUE(segment);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(segment->data()) % (2u << 20), 0u);
}

TEST(Segment, OfNoBytesIsEmpty) {
  const auto segment = Segment::allocate("test", 0);
  ASSERT_TRUE(segment);
  EXPECT_EQ(segment->size(), 0);
  EXPECT_EQ(segment->data(), nullptr);
}

TEST(Segment, TouchesEveryPageWhenPopulated) {
  const int64_t bytes = int64_t{3} << 20;
  const auto segment = Segment::allocate("test", bytes, {.huge_pages = false, .populate = true});
  ASSERT_TRUE(segment);
  EXPECT_EQ(resident_pages(segment->data(), bytes), bytes / 4096);
}

TEST(Segment, GivesItsPagesBackWhenItGoes) {
  const std::byte* data = nullptr;
  const int64_t bytes = int64_t{3} << 20;
  {
    const auto segment = Segment::allocate("test", bytes, {.populate = true});
    ASSERT_TRUE(segment);
    data = segment->data();
    ASSERT_GT(resident_pages(data, bytes), 0);
  }
  EXPECT_EQ(resident_pages(data, bytes), -1);
}

TEST(Segment, MovesWithItsMemory) {
  Segment first = *Segment::allocate("test", 5000);
  std::byte* const data = first.data();
  data[7] = std::byte{9};
  Segment second = *Segment::allocate("test", 9000);
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 5000);
  EXPECT_EQ(second.data()[7], std::byte{9});
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0);
}

TEST(Segment, SaysWhatItCouldNotAllocate) {
  const auto huge = Segment::allocate("store rows", std::numeric_limits<int64_t>::max() / 2);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(huge.error().message, testing::HasSubstr("store rows"));
  EXPECT_THAT(huge.error().message, testing::HasSubstr("4611686018427387903"));

  const auto negative = Segment::allocate("store rows", -1);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace moetape::inline v0
