#include <algorithm>
#include <cstring>
#include <vector>

#include "simd/plain.h"

namespace moetape::inline v0::simd::plain {
namespace {

template <class Id>
uint32_t count_shared(std::vector<Id>& a, std::vector<Id>& b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  uint32_t shared = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) ++shared;
    const bool a_first = *i <= *j;
    if (*j <= *i) ++j;
    if (a_first) ++i;
  }
  return shared;
}

template <class Id>
void compare_lists_of(const ListsJob& job) {
  const auto top_k = static_cast<size_t>(job.top_k);
  const size_t list_bytes = top_k * sizeof(Id);
  std::vector<Id> a(top_k);
  std::vector<Id> b(top_k);
  for (int64_t list = 0; list < job.num_lists; ++list) {
    const size_t offset = static_cast<size_t>(list) * list_bytes;
    const bool unequal = std::memcmp(job.a + offset, job.b + offset, list_bytes) != 0;
    job.unequal[list] = unequal ? 1 : 0;
    job.shared[list] = static_cast<uint32_t>(top_k);
    if (!unequal) continue;
    std::memcpy(a.data(), job.a + offset, list_bytes);
    std::memcpy(b.data(), job.b + offset, list_bytes);
    job.shared[list] = count_shared(a, b);
  }
}

}  // namespace

void compare_lists(const ListsJob& job) {
  job.id_bytes == 1 ? compare_lists_of<uint8_t>(job) : compare_lists_of<uint16_t>(job);
}

}  // namespace moetape::inline v0::simd::plain
