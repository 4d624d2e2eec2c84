// SlotSet: says whether a slot came before. One bit a slot; cleared by the slots that were added.
#pragma once

#include <cstdint>
#include <vector>

namespace moetape::inline v0 {

class SlotSet {
 public:
  explicit SlotSet(int64_t num_slots) : words_(static_cast<size_t>((num_slots + 63) / 64)) {}

  // False if the slot is in the set already.
  bool add(int64_t slot) {
    uint64_t& word = words_[static_cast<size_t>(slot / 64)];
    const uint64_t bit = uint64_t{1} << (slot % 64);
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  }

  // Must be called for every slot that was added before the next round begins.
  void remove(int64_t slot) { words_[static_cast<size_t>(slot / 64)] = 0; }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace moetape::inline v0
