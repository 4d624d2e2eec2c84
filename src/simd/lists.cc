#include "simd/lists.h"

#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/lists.cc"
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "simd/plain.h"

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void CompareLists(const ListsJob& job) { plain::compare_lists(job); }

#else

namespace hn = hwy::HWY_NAMESPACE;

// Ids of a block of whole lists are compared as one stream: with the ids at the same place of b, then with
// those 1, 2, … places before and behind, as far as these are of the same list. An id is shared if it stands
// in b more often than before it in a; that is kept as a bit an id, and a list's bits are counted.
constexpr int kMostColumns = 32;  // longer lists are left to the plain code
constexpr size_t kBlockIds = 1024;
constexpr size_t kSlack = HWY_MAX_BYTES + kMostColumns;  // ids that whole vectors read beside a block

template <class Id>
struct Block {
  using Signed = hwy::MakeSigned<Id>;
  HWY_ALIGN Id a[kSlack + kBlockIds + kSlack] = {};
  HWY_ALIGN Id b[kSlack + kBlockIds + kSlack] = {};
  HWY_ALIGN Signed columns[kBlockIds + kSlack] = {};
  uint8_t same[(kBlockIds + kSlack) / 8 + 8] = {};    // bit i: id i of a stands at the same place of b
  uint8_t shared[(kBlockIds + kSlack) / 8 + 8] = {};  // bit i: id i of a stands in the same list of b
};

template <class D, class M>
HWY_INLINE hn::Vec<D> ones(D d, M mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, 1));
}

template <class Id>
HWY_INLINE void match_ids(Block<Id>& block, int top_k, size_t count) {
  const hn::ScalableTag<Id> d;
  const hn::RebindToSigned<decltype(d)> ds;
  using Signed = hwy::MakeSigned<Id>;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < count; i += step) {
    const Id* a = block.a + kSlack + i;
    const auto column = hn::Load(ds, block.columns + i);
    const Id* b = block.b + kSlack + i;
    const auto ids = hn::LoadU(d, a);
    const auto same = hn::Eq(ids, hn::LoadU(d, b));
    auto in_b = ones(d, same);
    auto before = hn::Zero(d);
    for (int turn = 1; turn < top_k; ++turn) {
      const auto has_next = hn::Lt(column, hn::Set(ds, static_cast<Signed>(top_k - turn)));
      const auto has_last = hn::Gt(column, hn::Set(ds, static_cast<Signed>(turn - 1)));
      const auto next = hn::RebindMask(d, has_next);
      const auto last = hn::RebindMask(d, has_last);
      in_b = hn::Add(in_b, ones(d, hn::And(next, hn::Eq(ids, hn::LoadU(d, b + turn)))));
      in_b = hn::Add(in_b, ones(d, hn::And(last, hn::Eq(ids, hn::LoadU(d, b - turn)))));
      before = hn::Add(before, ones(d, hn::And(last, hn::Eq(ids, hn::LoadU(d, a - turn)))));
    }
    const auto shared = hn::RebindMask(d, hn::Gt(hn::BitCast(ds, in_b), hn::BitCast(ds, before)));
    hn::StoreMaskBits(d, same, block.same + i / 8);
    hn::StoreMaskBits(d, shared, block.shared + i / 8);
  }
}

HWY_INLINE uint64_t bits_from(const uint8_t* bits, size_t first) {
  uint64_t word;
  std::memcpy(&word, bits + first / 8, sizeof word);
  return word >> (first % 8);
}

template <class Id>
void compare_streams(const ListsJob& job) {
  const auto top_k = static_cast<size_t>(job.top_k);
  const auto num_lists = static_cast<size_t>(job.num_lists);
  const size_t block_lists = kBlockIds / top_k;
  const uint64_t all = (uint64_t{1} << top_k) - 1;
  Block<Id> block;
  for (size_t i = 0; i < std::min(block_lists, num_lists) * top_k; i += top_k) {
    for (size_t column = 0; column < top_k; ++column) {
      block.columns[i + column] = static_cast<typename Block<Id>::Signed>(column);
    }
  }
  for (size_t first = 0; first < num_lists; first += block_lists) {
    const size_t lists = std::min(block_lists, num_lists - first);
    const size_t offset = first * top_k * sizeof(Id);
    std::memcpy(block.a + kSlack, job.a + offset, lists * top_k * sizeof(Id));
    std::memcpy(block.b + kSlack, job.b + offset, lists * top_k * sizeof(Id));
    match_ids(block, job.top_k, lists * top_k);
    for (size_t list = 0; list < lists; ++list) {
      const uint64_t shared = bits_from(block.shared, list * top_k) & all;
      const uint64_t same = bits_from(block.same, list * top_k) & all;
      job.shared[first + list] = static_cast<uint32_t>(hwy::PopCount(shared));
      job.unequal[first + list] = same == all ? 0 : 1;
    }
  }
}

void CompareLists(const ListsJob& job) {
  if (job.top_k > kMostColumns) return plain::compare_lists(job);
  job.id_bytes == 1 ? compare_streams<uint8_t>(job) : compare_streams<uint16_t>(job);
}

#endif

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(CompareLists);

void compare_lists(const ListsJob& job) { HWY_DYNAMIC_DISPATCH(CompareLists)(job); }

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
