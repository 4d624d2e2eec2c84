#include "simd/narrow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "simd/plain.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::byte kUntouched{0xA5};

// What a call leaves behind.
struct Outcome {
  std::vector<std::byte> out;
  std::vector<uint8_t> faults;
  std::optional<NarrowFault> first;
};

bool operator==(const Outcome& a, const Outcome& b) {
  const auto same_fault = [](const NarrowFault& x, const NarrowFault& y) {
    return x.row == y.row && x.value == y.value && x.fault == y.fault;
  };
  return a.out == b.out && a.faults == b.faults && a.first.has_value() == b.first.has_value() &&
         (!a.first || same_fault(*a.first, *b.first));
}

template <class Narrow>
Outcome run(NarrowJob job, Narrow narrow_function) {
  const int64_t row_bytes = job.top_k * id_bytes(job.num_experts);
  Outcome outcome;
  if (job.out_stride == 0) job.out_stride = row_bytes;
  outcome.out.assign(static_cast<size_t>(job.ids.num_rows * job.out_stride), kUntouched);
  outcome.faults.assign(static_cast<size_t>(job.ids.num_rows), 0);
  job.out = outcome.out.data();
  job.faults = outcome.faults.data();
  outcome.first = narrow_function(job);
  return outcome;
}

template <class T>
constexpr IntType kTypeOf = IntType::kInt8;
template <>
constexpr IntType kTypeOf<uint8_t> = IntType::kUint8;
template <>
constexpr IntType kTypeOf<int16_t> = IntType::kInt16;
template <>
constexpr IntType kTypeOf<uint16_t> = IntType::kUint16;
template <>
constexpr IntType kTypeOf<int32_t> = IntType::kInt32;
template <>
constexpr IntType kTypeOf<uint32_t> = IntType::kUint32;
template <>
constexpr IntType kTypeOf<int64_t> = IntType::kInt64;
template <>
constexpr IntType kTypeOf<uint64_t> = IntType::kUint64;

template <class T>
NarrowJob make_job(const std::vector<T>& ids, int top_k, int num_experts) {
  NarrowJob job;
  job.ids = {ids.data(), kTypeOf<T>, static_cast<int64_t>(ids.size()) / top_k, top_k, top_k, 1};
  job.top_k = top_k;
  job.num_experts = num_experts;
  return job;
}

TEST(Narrow, KeepsIdsInOneByteUpTo256Experts) {
  const std::vector<int32_t> ids = {0, 255, 7, 8};
  on_every_target([&] {
    const Outcome outcome = run(make_job(ids, 2, 256), narrow);
    EXPECT_THAT(outcome.out, ElementsAre(std::byte{0}, std::byte{255}, std::byte{7}, std::byte{8}));
    EXPECT_THAT(outcome.faults, Each(0));
    EXPECT_FALSE(outcome.first);
  });
}

TEST(Narrow, KeepsIdsInTwoBytesAbove256Experts) {
  const std::vector<int64_t> ids = {256, 65535};
  on_every_target([&] {
    const Outcome outcome = run(make_job(ids, 2, 65536), narrow);
    EXPECT_THAT(outcome.out, ElementsAre(std::byte{0}, std::byte{1}, std::byte{255}, std::byte{255}));
  });
}

TEST(Narrow, ChecksBeforeItCuts) {
  on_every_target([&] {
    // Each would be 0 or 1 in its low byte.
    for (const int64_t wrapping :
         {int64_t{256}, int64_t{1} << 32, (int64_t{1} << 40) + 1, std::numeric_limits<int64_t>::min()}) {
      std::vector<int64_t> ids(64, 5);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(10 + i);
      ids[37] = wrapping;
      const Outcome outcome = run(make_job(ids, 8, 256), narrow);
      ASSERT_TRUE(outcome.first) << wrapping;
      EXPECT_EQ(outcome.first->row, 4);
      EXPECT_EQ(outcome.first->value, wrapping);
      EXPECT_EQ(outcome.first->fault, wrapping < 0 ? kFaultNegative : kFaultTooLarge);
      EXPECT_THAT(outcome.faults, ElementsAre(0, 0, 0, 0, outcome.first->fault, 0, 0, 0));
    }
  });
}

TEST(Narrow, TellsTheFirstOffenderAndZeroesOnlyFaultyRows) {
  const std::vector<int32_t> ids = {1, 2, -1, -1, 3, 3, 4, 300};
  on_every_target([&] {
    const Outcome outcome = run(make_job(ids, 2, 256), narrow);
    EXPECT_THAT(outcome.faults, ElementsAre(kFaultNone, kFaultNegative, kFaultRepeated, kFaultTooLarge));
    ASSERT_TRUE(outcome.first);
    EXPECT_EQ(outcome.first->row, 1);
    EXPECT_EQ(outcome.first->value, -1);
    const std::vector<std::byte> expected = {std::byte{1}, std::byte{2}, {}, {}, {}, {}, {}, {}};
    EXPECT_EQ(outcome.out, expected);
  });
}

TEST(Narrow, LeavesRepeatedIdsWhereTheyAreAllowed) {
  const std::vector<int16_t> ids = {3, 3};
  on_every_target([&] {
    NarrowJob job = make_job(ids, 2, 256);
    job.distinct = false;
    const Outcome outcome = run(job, narrow);
    EXPECT_THAT(outcome.out, Each(std::byte{3}));
    EXPECT_FALSE(outcome.first);
  });
}

TEST(Narrow, AddsToTheFaultsThatARowHas) {
  const std::vector<int32_t> ids = {-1, 2};
  on_every_target([&] {
    NarrowJob job = make_job(ids, 2, 256);
    std::byte out[2];
    uint8_t faults = kFaultRepeated;
    job.out = out;
    job.out_stride = 2;
    job.faults = &faults;
    EXPECT_TRUE(narrow(job));
    EXPECT_EQ(faults, kFaultRepeated | kFaultNegative);
  });
}

TEST(Narrow, RefusesARowWhoseSharedColumnHoldsARoutedId) {
  const std::vector<int32_t> ids = {1, 2, 256, 3, 4, 5, 6, 7, 999};
  on_every_target([&] {
    NarrowJob job = make_job(ids, 3, 256);
    job.top_k = 2;
    job.shared_columns = 1;
    const Outcome outcome = run(job, narrow);
    EXPECT_THAT(outcome.faults, ElementsAre(kFaultNone, kFaultShared, kFaultNone));
    ASSERT_TRUE(outcome.first);
    EXPECT_EQ(outcome.first->row, 1);
    EXPECT_EQ(outcome.first->value, 5);
    EXPECT_EQ(outcome.first->fault, kFaultShared);
  });
}

TEST(Narrow, TakesNoRows) {
  on_every_target([&] { EXPECT_FALSE(run(make_job(std::vector<int32_t>{}, 8, 256), narrow).first); });
}

// Random ids, mostly good, in a random frame: strides, shared columns, output stride.
template <class T>
void expect_equal_to_plain(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  constexpr int kTopK[] = {1, 2, 3, 4, 6, 8, 9, 10, 16, 17, 22, 32, 33, 64, 300};
  const int top_k = kTopK[pick(0, std::size(kTopK) - 1)];
  const int num_experts = static_cast<int>(pick(0, 1) ? pick(top_k, std::max(top_k, 256)) : pick(257, 65536));
  const int shared = static_cast<int>(pick(0, 3) == 0 ? pick(1, 2) : 0);
  const int64_t num_rows = pick(0, 3 * 1024 / top_k);
  const int64_t columns = top_k + shared;
  const int64_t column_stride = pick(0, 3) == 0 ? pick(2, 3) : 1;
  const int64_t row_stride = columns * column_stride + (pick(0, 1) ? 0 : pick(1, 5));

  const int64_t rarity = pick(0, 1) ? 2000 : std::numeric_limits<int64_t>::max();  // of faults

  std::vector<T> ids(static_cast<size_t>(num_rows * row_stride + 1));
  std::vector<int> deck(static_cast<size_t>(num_experts));
  std::iota(deck.begin(), deck.end(), 0);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      std::swap(deck[static_cast<size_t>(column % num_experts)],
                deck[static_cast<size_t>(pick(column % num_experts, num_experts - 1))]);
      int64_t value = deck[static_cast<size_t>(column % num_experts)];
      if (column >= top_k) value = pick(num_experts, num_experts + 1000);
      if (pick(0, rarity) == 0) value = static_cast<int64_t>(random());
      if (pick(0, rarity) == 0) value = pick(-2, num_experts + 1);
      ids[static_cast<size_t>(row * row_stride + column * column_stride)] = static_cast<T>(value);
    }
  }
  NarrowJob job;
  job.ids = {ids.data(), kTypeOf<T>, num_rows, columns, row_stride, column_stride};
  job.top_k = top_k;
  job.shared_columns = shared;
  job.num_experts = num_experts;
  job.distinct = pick(0, 3) != 0;
  job.out_stride = top_k * id_bytes(num_experts) + (pick(0, 1) ? 0 : pick(0, 100));
  const Outcome expected = run(job, plain::narrow);
  on_every_target([&] {
    EXPECT_TRUE(run(job, narrow) == expected)
        << int_type_name(job.ids.type) << ", " << num_rows << " rows, top_k " << top_k << ", " << num_experts
        << " experts, shared " << shared << ", strides " << row_stride << " " << column_stride << ", seed "
        << seed;
  });
}

RC_GTEST_PROP(Narrow, EqualsThePlainCodeOnEveryTarget, (uint64_t seed)) {
  expect_equal_to_plain<int8_t>(seed);
  expect_equal_to_plain<uint8_t>(seed);
  expect_equal_to_plain<int16_t>(seed);
  expect_equal_to_plain<uint16_t>(seed);
  expect_equal_to_plain<int32_t>(seed);
  expect_equal_to_plain<uint32_t>(seed);
  expect_equal_to_plain<int64_t>(seed);
  expect_equal_to_plain<uint64_t>(seed);
  RC_ASSERT(!testing::Test::HasFailure());
}

// Every pair of columns, in every place of a block.
template <class Id>
void expect_every_repeat_found(int top_k) {
  const int64_t num_lists = 70;
  std::vector<Id> ids(static_cast<size_t>(num_lists * top_k));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>(200 - i % static_cast<size_t>(top_k));
  const int num_experts = sizeof(Id) == 1 ? 256 : 65536;
  on_every_target([&] {
    ASSERT_FALSE(run(make_job(ids, top_k, num_experts), narrow).first) << top_k;
    for (const int64_t list : {int64_t{0}, int64_t{13}, num_lists - 1}) {
      for (int first = 0; first < top_k; ++first) {
        for (int second = first + 1; second < top_k; ++second) {
          Id& twin = ids[static_cast<size_t>(list * top_k + second)];
          const Id kept = twin;
          twin = ids[static_cast<size_t>(list * top_k + first)];
          const auto fault = run(make_job(ids, top_k, num_experts), narrow).first;
          ASSERT_TRUE(fault) << top_k << ": columns " << first << " and " << second;
          EXPECT_EQ(fault->row, list) << top_k << ": columns " << first << " and " << second;
          EXPECT_EQ(fault->value, twin);
          EXPECT_EQ(fault->fault, kFaultRepeated);
          twin = kept;
        }
      }
    }
  });
}

TEST(Narrow, FindsEveryPairOfEqualIds) {
  for (const int top_k : {2, 3, 4, 5, 6, 8, 10, 16, 22, 40}) {
    expect_every_repeat_found<uint8_t>(top_k);
    expect_every_repeat_found<uint16_t>(top_k);
  }
}

TEST(Narrow, ComparesBothBytesOfTwoByteIds) {
  const std::vector<uint16_t> ids = {0x0101, 0x0201, 0x0301, 0x0102};
  on_every_target([&] { EXPECT_FALSE(run(make_job(ids, 4, 65536), narrow).first); });
}

TEST(Narrow, OneIdAloneNeverRepeats) {
  const std::vector<uint8_t> ids(100);
  on_every_target([&] { EXPECT_FALSE(run(make_job(ids, 1, 256), narrow).first); });
}

TEST(LargestId, FindsIt) {
  on_every_target([&] {
    for (const size_t count : {1u, 2u, 63u, 64u, 65u, 1000u}) {
      std::vector<uint8_t> narrow_ids(count, 3);
      std::vector<uint16_t> wide_ids(count, 300);
      for (const size_t place : {size_t{0}, count / 2, count - 1}) {
        narrow_ids[place] = 255;
        wide_ids[place] = 65535;
        EXPECT_EQ(largest_id(reinterpret_cast<const std::byte*>(narrow_ids.data()), 1, int64_t(count)), 255);
        EXPECT_EQ(largest_id(reinterpret_cast<const std::byte*>(wide_ids.data()), 2, int64_t(count)), 65535);
        narrow_ids[place] = 3;
        wide_ids[place] = 300;
      }
    }
    EXPECT_EQ(largest_id(nullptr, 1, 0), -1);
  });
}

}  // namespace
}  // namespace moetape::inline v0::simd
