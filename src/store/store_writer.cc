#include "store/store_writer.h"

#include <utility>

#include "base/fail.h"

namespace moetape::inline v0 {

Result<StoreWriter> StoreWriter::open(std::shared_ptr<Store> store) {
  MOETAPE_ASSIGN(const int writer, store->impl().writers.add_writer());
  return StoreWriter(std::move(store), writer);
}

StoreWriter::StoreWriter(StoreWriter&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), writer_(other.writer_) {}

StoreWriter::~StoreWriter() {
  if (store_) store().writers.remove_writer(writer_);
}

StoreWriter::Mapping StoreWriter::mapping() const {
  const Store::Impl& impl = store();
  return {impl.memory.data(), impl.memory.size(), impl.plane.rows(), impl.plane.stamps(),
          impl.writers.landed(writer_)};
}

Result<uint64_t> StoreWriter::submit(std::optional<int64_t> step) {
  return store().writers.submit(writer_, step);
}

int64_t StoreWriter::place(int64_t* slots, int64_t count, const std::byte* rows, int64_t row_stride,
                           const Stamp* stamps) {
  return store().plane.place(slots, count, rows, row_stride, stamps);
}

void StoreWriter::refuse(const int64_t* slots, int64_t count, uint64_t step) {
  // Step 0 has no stamp: before the first step there is nothing that could live on.
  const Stamp stamp = step == 0 ? 0 : refused(step);
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] >= 0 && step_of(store().plane.stamp(slots[i])) <= step)
      store().plane.set_stamp(slots[i], stamp);
  }
}

void StoreWriter::on_wait(std::function<void()> look) { store().writers.set_look(writer_, std::move(look)); }
void StoreWriter::land(uint64_t step) { store().writers.land(writer_, step); }
void StoreWriter::drop(uint64_t step) { store().writers.drop(writer_, step); }

}  // namespace moetape::inline v0
