// StoreWriter: one lane's way into a store. Move-only; one thread at a time.
//
//   submit(step) → place(…) per block → land(step); or drop(step) when the rows will never come.
// Dropped with open steps, they count as lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "moetape/store.h"
#include "store/stamp.h"
#include "store/store_impl.h"

namespace moetape::inline v0 {

class StoreWriter {
 public:
  static Result<StoreWriter> open(std::shared_ptr<Store> store);  // kCapacity: too many lanes
  StoreWriter(StoreWriter&& other) noexcept;
  StoreWriter& operator=(StoreWriter&&) = delete;
  ~StoreWriter();

  Store::Impl& store() const { return store_->impl(); }

  // Where a device writes this writer's rows, stamps (8 bytes a slot) and landed step itself, by the rules
  // that hold for place() and refuse(). All of it lies in [memory, memory + memory_bytes), which begins at a
  // page; whoever maps it holds a Store::Impl::Use.
  struct Mapping {
    std::byte* memory;
    int64_t memory_bytes;
    std::byte* rows;
    std::byte* stamps;
    uint64_t* landed;
  };
  Mapping mapping() const;

  Result<uint64_t> submit(std::optional<int64_t> step);
  // Slots as Store::Impl::resolve gives them, at most kBlockSlots; see Plane::place.
  int64_t place(int64_t* slots, int64_t count, const std::byte* rows, int64_t row_stride,
                const Stamp* stamps);
  // What stood in these slots counts no more, and they are missing in this step.
  void refuse(const int64_t* slots, int64_t count, uint64_t step);
  void land(uint64_t step);
  void drop(uint64_t step);
  // For a writer whose steps land only when somebody looks: called again and again, on their threads, by
  // those who wait for steps under way. It may be under way still when this is gone.
  void on_wait(std::function<void()> look);

 private:
  StoreWriter(std::shared_ptr<Store> store, int writer) : store_(std::move(store)), writer_(writer) {}
  std::shared_ptr<Store> store_;
  int writer_ = 0;
};

}  // namespace moetape::inline v0
