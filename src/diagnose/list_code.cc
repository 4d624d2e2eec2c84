#include "diagnose/list_code.h"

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "base/memory_guard.h"

namespace moetape::inline v0 {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 22;
constexpr uint64_t kMostNumbers = uint64_t{1} << 62;
constexpr double kGoldenRatio = 0.6180339887498949;  // multiples of it are spread most evenly

// The number whose product with `factor` is 1 modulo `modulus`, which has no divisor in common with it.
uint64_t inverse_of(uint64_t factor, uint64_t modulus) {
  int64_t before = 0;
  int64_t inverse = 1;
  uint64_t divisor = factor;
  uint64_t dividend = modulus;
  while (divisor > 1) {
    const auto quotient = static_cast<int64_t>(dividend / divisor);
    dividend = std::exchange(divisor, dividend % divisor);
    before = std::exchange(inverse, before - quotient * inverse);
  }
  return static_cast<uint64_t>(inverse < 0 ? inverse + static_cast<int64_t>(modulus) : inverse);
}

}  // namespace

Result<ListCode> ListCode::create(int32_t num_experts, int32_t top_k) {
  if (top_k > num_experts) {
    return fail(ErrorCode::kUnsupported, "canary: expected top_k of different experts, got {} of {}", top_k,
                num_experts);
  }
  if (int64_t{num_experts} * top_k > kMostEntries) {
    return fail(ErrorCode::kUnsupported, "canary: expected top_k * num_experts of at most {}, got {} * {}",
                kMostEntries, top_k, num_experts);
  }
  return guard_memory("canary", [&]() -> Result<ListCode> { return ListCode(num_experts, top_k); });
}

ListCode::ListCode(int32_t num_experts, int32_t top_k)
    : num_experts_(num_experts),
      top_k_(top_k),
      num_sets_((static_cast<size_t>(num_experts) + 1) * (static_cast<size_t>(top_k) + 1)) {
  constexpr Wide kMostSets = Wide{1} << 126;
  for (int32_t count = 0; count <= num_experts; ++count) {
    num_sets_[index(count, 0)] = 1;
    for (int32_t size = 1; size <= std::min(count, top_k); ++size) {
      const Wide sum = num_sets(count - 1, size - 1) + num_sets(count - 1, size);
      num_sets_[index(count, size)] = std::min(sum, kMostSets);
    }
  }
  const Wide all = num_sets(num_experts, top_k);
  capacity_ = static_cast<uint64_t>(std::min(all, Wide{kMostNumbers}));
  stride_ = all / capacity_;
  if (capacity_ <= 2) return;
  factor_ = static_cast<uint64_t>(static_cast<double>(capacity_) * kGoldenRatio);
  while (std::gcd(factor_, capacity_) != 1) ++factor_;
  inverse_ = inverse_of(factor_, capacity_);
}

void ListCode::encode(uint64_t number, std::span<int32_t> ids) const {
  Wide rank = times(number, factor_) * stride_;
  int32_t end = num_experts_;
  for (int32_t size = top_k_; size > 0; --size) {
    int32_t id = size - 1;  // the largest one below `end` with as many sets as the rank, or fewer
    for (int32_t above = end; above - id > 1;) {
      const int32_t middle = id + (above - id) / 2;
      (num_sets(middle, size) <= rank ? id : above) = middle;
    }
    rank -= num_sets(id, size);
    ids[static_cast<size_t>(top_k_ - size)] = id;
    end = id;
  }
  const auto first = static_cast<std::ptrdiff_t>(number % static_cast<uint64_t>(top_k_));
  std::rotate(ids.begin(), ids.begin() + first, ids.end());
}

std::optional<uint64_t> ListCode::decode(std::span<const int32_t> ids, std::span<int32_t> scratch) const {
  std::ranges::copy(ids, scratch.begin());
  std::ranges::sort(scratch);
  if (scratch.front() < 0 || scratch.back() >= num_experts_) return {};
  if (std::ranges::adjacent_find(scratch) != scratch.end()) return {};
  Wide rank = 0;
  for (int32_t size = 1; size <= top_k_; ++size) {
    rank += num_sets(scratch[static_cast<size_t>(size - 1)], size);
  }
  if (rank % stride_ != 0 || rank / stride_ >= capacity_) return {};
  return times(static_cast<uint64_t>(rank / stride_), inverse_);
}

}  // namespace moetape::inline v0
