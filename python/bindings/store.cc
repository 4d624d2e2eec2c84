#include "store.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <string>
#include <utility>

#include "module.h"

namespace moetape::bindings {

SlotList::SlotList(SlotsArg slots, const char* name) : owner_(nb::borrow(slots.object)) {
  if (const Blocks* blocks = ObjectArg<Blocks>{{slots.object}}.get_if()) {
    slots_ =
        Slots::blocks(std::span<const int64_t>(blocks->block_ids), blocks->block_size, blocks->num_tokens);
    return;
  }
  const Array& array = array_.emplace(slots.object, name);
  array.require_dims(1, "one slot per token");
  if (array.type() != IntType::kInt32 && array.type() != IntType::kInt64) {
    raise(ErrorCode::kWrongType, "{}: expected int32 or int64, got {}", name, int_type_name(array.type()));
  }
  const auto size = static_cast<size_t>(array.shape(0));
  if (!array.contiguous()) {
    for (size_t i = 0; i < size; ++i) copy_.push_back(array.element(static_cast<int64_t>(i)));
    slots_ = Slots(std::span<const int64_t>(copy_));
  } else if (array.type() == IntType::kInt64) {
    slots_ = Slots(std::span(static_cast<const int64_t*>(array.data()), size));
  } else {
    slots_ = Slots(std::span(static_cast<const int32_t*>(array.data()), size));
  }
}

namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(The routes of one KV address space, one row a slot, kept beside the engine's KV cache.

num_slots: slots are 0 to num_slots - 1; -1 and pad_slot mean "no place". memory_limit: bytes above which the
store is refused (MemoryLimitError) before anything is allocated. huge_pages: ask for them. populate: touch all
pages now instead of in the first commits.

Slots are int32 or int64 [tokens], a list, or moetape.blocks(...). Steps are 1 to 2**40 - 1. Any method may be
called from any thread at any time; long calls release the GIL. A closed store raises ClosedError.)";

constexpr const char* kReadDoc =
    R"(The routes of some tokens, by one gather; slots[0] stands at position `start`.

as_of: the newest step wanted, default the last one submitted. tokens: the token fed at each slot. A slot without a
row that counts is a missing row, with the reason; one outside the store raises OutOfRangeError. Call it before
the slots are freed.)";

void init_store(StoreHandle* self, ObjectArg<RouteSpec> spec, IntArg num_slots, OptionalIntArg memory_limit,
                IntArg pad_slot, BoolArg huge_pages, BoolArg populate) {
  StoreOptions options;
  options.num_slots = num_slots.get("num_slots");
  options.memory_limit_bytes = memory_limit.limit("memory_limit");
  options.pad_slot = pad_slot.get("pad_slot");
  options.huge_pages = huge_pages.get("huge_pages");
  options.populate = populate.get("populate");
  const RouteSpec& route_spec = spec.get("spec");
  Result<std::shared_ptr<Store>> store = [&] {
    nb::gil_scoped_release release;
    return Store::create(route_spec, options);
  }();
  new (self) StoreHandle{unwrap(std::move(store))};
}

Routes read(const StoreHandle& self, SlotsArg slots_arg, IntArg start, OptionalIntArg as_of,
            OptionalArrayArg tokens_arg) {
  const SlotList slots(slots_arg, "slots");
  ReadOptions options;
  options.start = start.get("start");
  options.as_of = as_of.get("as_of");
  std::optional<Integers<int32_t>> tokens;
  if (!tokens_arg.object.is_none()) {
    options.tokens = tokens.emplace(tokens_arg.object, "tokens").span();
    require_length("tokens", slots.slots().size(), options.tokens.size());
  }
  const int64_t work = work_bytes(slots.slots().size(), self.store->spec().row_bytes());
  return unwrap(long_call(work, [&] { return self.store->read(slots.slots(), options); }));
}

RowsHandle rows(const StoreHandle& self, SlotsArg slots_arg, IntArg start_arg, OptionalIntArg as_of_arg) {
  const SlotList slots(slots_arg, "slots");
  const int64_t start = start_arg.get("start");
  const std::optional<int64_t> as_of = as_of_arg.get("as_of");
  const int64_t work = work_bytes(slots.slots().size(), sizeof(int64_t));
  return {unwrap(long_call(work, [&] { return self.store->rows(slots.slots(), start, as_of); }))};
}

void invalidate(const StoreHandle& self, SlotsArg slots_arg, OptionalIntArg as_of_arg) {
  const SlotList slots(slots_arg, "slots");
  const std::optional<int64_t> as_of = as_of_arg.get("as_of");
  const int64_t work = work_bytes(slots.slots().size(), sizeof(int64_t));
  unwrap(long_call(work, [&] { return self.store->invalidate(slots.slots(), as_of); }));
}

void move(const StoreHandle& self, SlotsArg source_arg, SlotsArg target_arg, OptionalIntArg step,
          SecondsArg timeout) {
  const SlotList source(source_arg, "source");
  const SlotList target(target_arg, "target");
  const WriteOptions options = {
      .step = step.get("step"), .version = std::nullopt, .timeout = timeout.get("timeout")};
  Status status = [&] {
    nb::gil_scoped_release release;
    return self.store->move(source.slots(), target.slots(), options);
  }();
  unwrap(std::move(status));
}

void write(const StoreHandle& self, SlotsArg slots_arg, ObjectArg<Routes> routes_arg, OptionalIntArg step,
           OptionalIntArg version, SecondsArg timeout) {
  const SlotList slots(slots_arg, "slots");
  const Routes& routes = routes_arg.get("routes");
  WriteOptions options = {
      .step = step.get("step"), .version = std::nullopt, .timeout = timeout.get("timeout")};
  if (!version.object.is_none()) {
    options.version = static_cast<uint32_t>(IntArg{{version.object}}.get("version", 0, kMaxVersion));
  }
  Status status = [&] {
    nb::gil_scoped_release release;
    return self.store->write(slots.slots(), routes, options);
  }();
  unwrap(std::move(status));
}

void close(const StoreHandle& self) {
  // Waits for calls of other threads, which need the GIL to end.
  nb::gil_scoped_release release;
  self.store->close();
}

void bind_calls(nb::class_<StoreHandle>& store) {
  store
      .def("read", &read, "slots"_a, "start"_a = 0, "as_of"_a = nb::none(), "tokens"_a = nb::none(), kReadDoc)
      .def("rows", &rows, "slots"_a, "start"_a = 0, "as_of"_a = nb::none(),
           "The same without tokens, for encode to gather and encode in one pass. as_of is fixed now; encode "
           "it\n"
           "before the slots are freed.")
      .def("invalidate", &invalidate, "slots"_a, "as_of"_a = nb::none(),
           "The slots get a new owner: rows of steps up to as_of (default: the last one submitted) count no "
           "more,\n"
           "whenever they arrive. An engine that schedules ahead passes the last step scheduled.")
      .def(
          "reset",
          [](const StoreHandle& self, OptionalIntArg as_of) {
            unwrap(self.store->reset(as_of.get("as_of")));
          },
          "as_of"_a = nb::none(), "The same for all slots.")
      .def("move", &move, "source"_a, "target"_a, "step"_a = nb::none(), "timeout"_a = 10.0,
           "KV went from slots `source` to slots `target`, as if all were read first. A missing row makes "
           "its target\n"
           "missing. step: must be given where the engine counts steps. Waits `timeout` seconds at most for "
           "earlier\n"
           "steps to land (TimeoutError).")
      .def("write", &write, "slots"_a, "routes"_a, "step"_a = nb::none(), "version"_a = nb::none(),
           "timeout"_a = 10.0,
           "KV came back from elsewhere with its routes, one row a slot. Missing rows make their slots "
           "missing.\n"
           "version: of rows that carry none. step and timeout as in move. Raises SpecMismatchError.")
      .def("close", &close,
           "Frees the memory once calls under way have ended. Routes that were read live on.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Store"))
      .def(
          "__exit__", [](const StoreHandle& self, const nb::args&) { close(self); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

void bind_store_class(nb::module_& m) {
  nb::class_<StoreHandle> store(m, "Store", kClassDoc);
  store
      .def("__init__", &init_store, "spec"_a, "num_slots"_a, "memory_limit"_a = nb::none(), "pad_slot"_a = -1,
           "huge_pages"_a = true, "populate"_a = false)
      .def_static(
          "required_bytes",
          [](ObjectArg<RouteSpec> spec, IntArg num_slots) {
            return unwrap(Store::required_bytes(spec.get("spec"), num_slots.get("num_slots")));
          },
          "spec"_a, "num_slots"_a, "Bytes that such a store takes.")
      .def_prop_ro(
          "spec", [](const StoreHandle& self) { return self.store->spec(); }, "The RouteSpec.")
      .def_prop_ro("num_slots", [](const StoreHandle& self) { return self.store->num_slots(); })
      .def_prop_ro("memory_bytes", [](const StoreHandle& self) { return self.store->memory_bytes(); })
      .def_prop_ro(
          "last_step", [](const StoreHandle& self) { return self.store->last_step(); },
          "The last step submitted; 0 before the first.");
  bind_calls(store);
}

void bind_rows(nb::module_& m) {
  nb::class_<RowsHandle>(
      m, "RowSource",
      "Rows of a store, a tape or a text that are pulled as they are needed. One thread at a time.")
      .def_prop_ro(
          "spec", [](const RowsHandle& self) { return self.source->spec(); }, "The RouteSpec.")
      .def_prop_ro(
          "start", [](const RowsHandle& self) { return self.source->start(); }, "Position of the first row.")
      .def("__len__", [](const RowsHandle& self) { return self.source->num_rows(); });
}

Blocks blocks(ArrayArg block_ids_arg, IntArg block_size_arg, IntArg num_tokens_arg) {
  constexpr int64_t kMaxSlot = std::numeric_limits<int64_t>::max();
  const int64_t block_size = block_size_arg.get("block_size", 1, kMaxSlot);
  const int64_t num_tokens = num_tokens_arg.get("num_tokens", 0, kMaxSlot);
  const Integers<int64_t> ids(block_ids_arg.object, "block_ids");
  const auto num_blocks = static_cast<int64_t>(ids.span().size());
  if (num_tokens > 0 && (num_tokens - 1) / block_size >= num_blocks) {
    raise(ErrorCode::kWrongShape, "block_ids: expected blocks of {} for {} tokens, got {} blocks", block_size,
          num_tokens, num_blocks);
  }
  for (const int64_t id : ids.span()) {
    if (id < -1 || id > kMaxSlot / block_size - 1) {
      raise(ErrorCode::kOutOfRange, "block_ids: expected -1 to {}, got {}", kMaxSlot / block_size - 1, id);
    }
  }
  return {{ids.span().begin(), ids.span().end()}, block_size, num_tokens};
}

void bind_blocks(nb::module_& m) {
  nb::class_<Blocks>(m, "Blocks", "Slots of a paged sequence, made by moetape.blocks. A value.")
      .def("__len__", [](const Blocks& self) { return self.num_tokens; });
  m.def(
      "blocks", &blocks, "block_ids"_a, "block_size"_a, "num_tokens"_a,
      "The slots of tokens [0, num_tokens) of a sequence whose token t stands at\n"
      "block_ids[t // block_size] * block_size + t % block_size. A block of -1 is no place. Copies the ids.");
}

}  // namespace

void bind_store(nb::module_& m) {
  bind_blocks(m);
  bind_rows(m);
  bind_store_class(m);
}

}  // namespace moetape::bindings
