// What Python's Store, Rows and Blocks hold, and slots as an argument.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "moetape/store.h"

namespace moetape::bindings {

struct StoreHandle {
  std::shared_ptr<Store> store;
};

struct RowsHandle {
  std::unique_ptr<RowSource> source;
  bool busy = false;
};

// Slots by (block ids, block size).
struct Blocks {
  std::vector<int64_t> block_ids;
  int64_t block_size = 1;
  int64_t num_tokens = 0;
};

struct SlotsArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("numpy.typing.ArrayLike | Blocks");
};

// Slots that live as long as this does.
class SlotList {
 public:
  SlotList(SlotsArg slots, const char* name);
  const Slots& slots() const { return slots_; }

 private:
  nb::object owner_;
  std::optional<Array> array_;
  std::vector<int64_t> copy_;
  Slots slots_;
};

}  // namespace moetape::bindings
