#include "simd/lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "simd/plain.h"
#include "simd/target_test.h"

namespace moetape::inline v0::simd {
namespace {

using testing::ElementsAre;

struct Outcome {
  std::vector<uint32_t> shared;
  std::vector<uint32_t> unequal;
  bool operator==(const Outcome&) const = default;
};

// Lists begin at an odd address; nothing is written behind the last one.
template <class Id, class Compare>
Outcome run(const std::vector<Id>& a, const std::vector<Id>& b, int top_k, Compare compare) {
  const auto bytes_of = [](const std::vector<Id>& ids) {
    std::vector<std::byte> bytes(1 + ids.size() * sizeof(Id));
    std::copy_n(reinterpret_cast<const std::byte*>(ids.data()), ids.size() * sizeof(Id), bytes.data() + 1);
    return bytes;
  };
  const std::vector<std::byte> a_bytes = bytes_of(a);
  const std::vector<std::byte> b_bytes = bytes_of(b);
  const size_t num_lists = a.size() / static_cast<size_t>(top_k);
  Outcome outcome{std::vector<uint32_t>(num_lists + 1, 77), std::vector<uint32_t>(num_lists + 1, 77)};
  compare({.a = a_bytes.data() + 1,
           .b = b_bytes.data() + 1,
           .id_bytes = sizeof(Id),
           .top_k = top_k,
           .num_lists = static_cast<int64_t>(num_lists),
           .shared = outcome.shared.data(),
           .unequal = outcome.unequal.data()});
  EXPECT_EQ(outcome.shared.back(), 77u);
  EXPECT_EQ(outcome.unequal.back(), 77u);
  outcome.shared.pop_back();
  outcome.unequal.pop_back();
  return outcome;
}

// One id after another, each used once.
template <class Id>
Outcome expected(const std::vector<Id>& a, const std::vector<Id>& b, int top_k) {
  Outcome outcome;
  const auto k = static_cast<std::ptrdiff_t>(top_k);
  for (std::ptrdiff_t first = 0; first < std::ssize(a); first += k) {
    std::vector<Id> left(b.begin() + first, b.begin() + first + k);
    outcome.unequal.push_back(std::equal(left.begin(), left.end(), a.begin() + first) ? 0 : 1);
    uint32_t shared = 0;
    for (std::ptrdiff_t i = first; i < first + k; ++i) {
      const auto found = std::ranges::find(left, a[static_cast<size_t>(i)]);
      if (found == left.end()) continue;
      left.erase(found);
      ++shared;
    }
    outcome.shared.push_back(shared);
  }
  return outcome;
}

// case D07
TEST(Lists, TellOrderFromSet) {
  const std::vector<uint8_t> a = {0, 255, 7, /**/ 0, 255, 7, /**/ 0, 255, 7, /**/ 1, 2, 3};
  const std::vector<uint8_t> b = {0, 255, 7, /**/ 7, 255, 0, /**/ 0, 254, 7, /**/ 4, 5, 6};
  on_every_target([&] {
    const Outcome outcome = run(a, b, 3, compare_lists);
    EXPECT_THAT(outcome.unequal, ElementsAre(0, 1, 1, 1));
    EXPECT_THAT(outcome.shared, ElementsAre(3, 3, 2, 0));
  });
}

TEST(Lists, RepeatedIdsAreSharedAsOftenAsBothHoldThem) {
  const std::vector<uint16_t> a = {9, 9, 1, /**/ 9, 1, 1};
  const std::vector<uint16_t> b = {9, 9, 9, /**/ 1, 9, 9};
  on_every_target([&] {
    const Outcome outcome = run(a, b, 3, compare_lists);
    EXPECT_THAT(outcome.unequal, ElementsAre(1, 1));
    EXPECT_THAT(outcome.shared, ElementsAre(2, 2));
  });
}

TEST(Lists, IdsOfTheListBesideAreNotShared) {
  const std::vector<uint8_t> a = {1, 2, /**/ 3, 4, /**/ 5, 6};
  const std::vector<uint8_t> b = {3, 4, /**/ 1, 2, /**/ 3, 4};
  on_every_target([&] { EXPECT_THAT(run(a, b, 2, compare_lists).shared, ElementsAre(0, 0, 0)); });
}

template <class Id>
std::vector<Id> random_lists(int64_t num_lists, int top_k, int num_experts, bool distinct,
                             std::mt19937_64& random) {
  std::vector<Id> ids;
  for (int64_t list = 0; list < num_lists; ++list) {
    std::vector<Id> chosen;
    while (std::ssize(chosen) < top_k) {
      const auto id = static_cast<Id>(random() % static_cast<uint64_t>(num_experts));
      if (!distinct || std::ranges::find(chosen, id) == chosen.end()) chosen.push_back(id);
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

// Some lists stay, some are shuffled, some are new.
template <class Id>
std::vector<Id> changed(const std::vector<Id>& ids, int top_k, int num_experts, bool distinct,
                        std::mt19937_64& random) {
  std::vector<Id> result = ids;
  for (auto list = result.begin(); list != result.end(); list += top_k) {
    const uint64_t fate = random() % 3;
    if (fate == 1) std::shuffle(list, list + top_k, random);
    if (fate == 2) std::ranges::copy(random_lists<Id>(1, top_k, num_experts, distinct, random), list);
  }
  return result;
}

template <class Id>
void agrees_with_the_reference(int most_experts) {
  std::mt19937_64 random(11);
  for (int top_k = 1; top_k <= 70; top_k += top_k < 34 ? 1 : 9) {
    for (const bool distinct : {true, false}) {
      for (const int64_t num_lists : {0, 1, 2, 7, 58, 61, 300}) {
        const int num_experts = std::min(most_experts, top_k + static_cast<int>(random() % 20));
        const auto a = random_lists<Id>(num_lists, top_k, num_experts, distinct, random);
        const auto b = changed(a, top_k, num_experts, distinct, random);
        const Outcome wanted = expected(a, b, top_k);
        ASSERT_EQ(run(a, b, top_k, plain::compare_lists), wanted) << top_k << " " << num_lists;
        on_every_target(
            [&] { ASSERT_EQ(run(a, b, top_k, compare_lists), wanted) << top_k << " " << num_lists; });
      }
    }
  }
}

TEST(Lists, OfOneByteAgreeWithTheReference) { agrees_with_the_reference<uint8_t>(256); }
TEST(Lists, OfTwoBytesAgreeWithTheReference) { agrees_with_the_reference<uint16_t>(65'536); }

TEST(Lists, OfAllExpertsAreAllShared) {
  std::vector<uint16_t> a(65'536);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> b(a.rbegin(), a.rend());
  const Outcome outcome = run(a, b, 65'536, compare_lists);
  EXPECT_THAT(outcome.shared, ElementsAre(65'536));
  EXPECT_THAT(outcome.unequal, ElementsAre(1));
}

}  // namespace
}  // namespace moetape::inline v0::simd
