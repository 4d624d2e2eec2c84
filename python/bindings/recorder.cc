#include "moetape/recorder.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "device_args.h"
#include "layer_buffer.h"
#include "module.h"
#include "store.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(Takes the router's ids while a forward runs and commits them to a store behind it.

max_rows: router rows of the largest forward (the gathered batch). lanes: staging buffers; overlapped micro-batches
use different ones, and one thread at a time uses one. id_maps: moetape.layout.IdMap by global layer, where routers
give physical ids. memory_limit: bytes. device: "cpu", or "cuda:0": lanes in device memory, ids of CUDA tensors,
commits by a kernel (docs/cuda.md). commit_path: "mapped" (the kernel writes into the store) or "packed" (one copy
brings the rows, and whoever asks the ticket places them). Keeps the store alive. Raises InvalidArgumentError naming
what does not fit, MemoryLimitError, and UnsupportedError where build, machine or spec have no device lanes.)";

constexpr const char* kCaptureDoc =
    R"(One layer's ids of rows [offset, offset + n) of the batch, in a router's hook. Keeps the GIL.

layer: global index. ids: integers [n, top_k] or [n, top_k + shared_columns] in CPU memory, any strides: NumPy, torch,
the buffer protocol or DLPack; read during the call, not copied before. On a device: a tensor there, read by a kernel
on `stream` (an int, or what has cuda_stream; None: the default stream), which the caller orders behind what wrote
them; nothing waits. An id that is no expert makes its row
missing (counted in the ticket's report). Raises OutOfRangeError for a layer that is not recorded, WrongTypeError,
WrongShapeError, CapacityError, and AlreadyCapturedError for rows captured twice; after any but the first the step fails
at commit.)";

constexpr const char* kCaptureRawDoc =
    R"(As capture, for callers who have the address of device memory and no tensor.

pointer: of element [0, 0]. stride: elements from one row to the next; columns lie side by side. dtype: of the ids.
UnsupportedError on the CPU.)";

constexpr const char* kPrepareDoc =
    R"(The half of commit that is never in a CUDA graph; arguments and errors as commit.

Before every replay of a graph that holds launch(), on the stream of the replay. After an error the launch of that
replay commits nothing. UnsupportedError on the CPU.)";

constexpr const char* kLaunchDoc =
    R"(The other half of commit: one kernel on `stream`, behind the forward, which a CUDA graph may hold.

Raises NotCapturedError where a stream under capture did not see all layers, InvalidArgumentError for a launch,
outside a capture, that nobody prepared, UnsupportedError on the CPU.)";

constexpr const char* kLayerBufferDoc =
    R"(A layer's rows of a lane in device memory, for a router that writes its choice itself.

From now on that is the router's duty in every forward; what it leaves out is missing, and the ticket's report says so.
Raises UnsupportedError on the CPU and for a layer with an IdMap, OutOfRangeError.)";

constexpr const char* kCommitDoc =
    R"(Ends the step: its rows go to the store under `slots`, which name all tokens of this rank's step.

layout: which rows of the batch are whose tokens, from moetape.layout; default: all, in order. step: the scheduler's
number, strictly rising; default: the store counts. version: of the policy, an int or one per token. A failed commit
makes every slot in range that it names missing, touches no other, and closes the step. Raises NotCapturedError and
WrongShapeError naming the layers, OutOfRangeError and InvalidArgumentError for slots, StepOrderError, ClosedError.
Arguments that are no slots, layout or numbers of 64 bits at all (WrongTypeError, and WrongShapeError for slots that are
not 1-D): nothing was done, the step is still open.)";

struct RecorderHandle {
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<bool[]> busy;  // by lane
  Where where = Where::kCpu;     // that ids and slots may be

  // A lane that does not exist is the recorder's to refuse.
  Busy use(int lane) {
    const bool exists = lane >= 0 && lane < recorder->num_lanes();
    return Busy(exists ? &busy[static_cast<size_t>(lane)] : nullptr, "lane");
  }
};

std::map<int32_t, IdMap> id_maps_from(nb::handle id_maps) {
  std::map<int32_t, IdMap> result;
  if (id_maps.is_none()) return result;
  if (!PyDict_Check(id_maps.ptr())) raise_wrong_type("id_maps", "dict of layer and IdMap, or None", id_maps);
  for (auto [layer, map] : nb::borrow<nb::dict>(id_maps)) {
    result.emplace(IntArg{{layer}}.as<int32_t>("id_maps layer"), ObjectArg<IdMap>{{map}}.get("id_maps"));
  }
  return result;
}

struct OptionalIdMapsArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("dict[int, IdMap] | None");
};

RecorderOptions recorder_options(IntArg max_rows, IntArg lanes, OptionalIdMapsArg id_maps,
                                 OptionalIntArg memory_limit, DeviceArg device, StrArg commit_path) {
  RecorderOptions options;
  options.cuda = cuda_options(device.object, commit_path);
  options.max_rows = max_rows.get("max_rows");
  options.num_lanes = lanes.as<int>("lanes");
  options.id_maps = id_maps_from(id_maps.object);
  options.memory_limit_bytes = memory_limit.limit("memory_limit");
  return options;
}

void init_recorder(RecorderHandle* self, ObjectArg<StoreHandle> store, IntArg max_rows, IntArg lanes,
                   const OptionalIdMapsArg& id_maps, OptionalIntArg memory_limit, DeviceArg device,
                   StrArg commit_path) {
  const RecorderOptions options =
      recorder_options(max_rows, lanes, id_maps, memory_limit, device, commit_path);
  std::unique_ptr<Recorder> recorder = unwrap(Recorder::create(store.get("store").store, options));
  auto busy = std::make_unique<bool[]>(static_cast<size_t>(recorder->num_lanes()));
  const Where where = options.cuda ? Where::kCpuOrCuda : Where::kCpu;
  new (self) RecorderHandle{std::move(recorder), std::move(busy), where};
}

void begin(RecorderHandle& self, IntArg lane_arg, StreamArg stream) {
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->begin(lane, stream.get()));
}

// Ids that are no integers, or of the wrong number of dimensions, never reach the recorder: it is told, so
// that they are counted and the step fails.
template <class Function>
void telling(RecorderHandle& self, IntArg lane_arg, Function&& function) {
  try {
    function();
  } catch (nb::python_error& error) {
    const int lane = lane_arg.as<int>("lane");
    const Busy busy = self.use(lane);
    unwrap(self.recorder->fail_step(error_of(error), lane));
    throw;
  }
}

void capture(RecorderHandle& self, IntArg layer, ArrayArg ids, IntArg lane_arg, IntArg offset,
             StreamArg stream) {
  std::optional<Array> array;
  IdsView view;
  telling(self, lane_arg, [&] {
    array.emplace(ids.object, "ids", self.where);
    view = ids_view(*array);
  });
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->capture(layer.as<int32_t>("layer"), view, lane, offset.get("offset"), stream.get()));
}

void capture_raw(RecorderHandle& self, IntArg layer, StreamArg pointer, IntArg rows, IntArg columns,
                 IntArg stride, AnyArg dtype, IntArg lane_arg, IntArg offset, StreamArg stream) {
  if (self.where == Where::kCpu)
    raise(ErrorCode::kUnsupported, "capture_raw: expected a recorder on a device, this one is on the CPU");
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const IdsView view = {.data = pointer.get(),
                        .type = int_type_from(dtype.object, "dtype"),
                        .num_rows = rows.get("rows", 0, kMost),
                        .num_columns = columns.get("columns", 0, kMost),
                        .row_stride = stride.get("stride", -kMost, kMost),
                        .column_stride = 1};
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->capture(layer.as<int32_t>("layer"), view, lane, offset.get("offset"), stream.get()));
}

void capture_all(RecorderHandle& self, ArrayArg ids, IntArg lane_arg, StrArg order_arg, StreamArg stream) {
  const std::string_view order = order_arg.get("order");
  if (order != "ltk" && order != "tlk") {
    raise(ErrorCode::kInvalidArgument, "order: expected ltk or tlk, got \"{}\"", order);
  }
  std::optional<Array> checked;
  const int layer_dim = order == "ltk" ? 0 : 1;
  const int row_dim = 1 - layer_dim;
  telling(self, lane_arg, [&] {
    checked.emplace(ids.object, "ids", self.where);
    checked->require_dims(3, order == "ltk" ? "[layers, rows, columns]" : "[rows, layers, columns]");
    if (checked->shape(layer_dim) == self.recorder->spec().num_moe_layers()) return;
    raise(ErrorCode::kWrongShape, "ids: expected {} layers in order {}, got shape {}",
          self.recorder->spec().num_moe_layers(), order, checked->shape_text());
  });
  const Array& array = *checked;
  const int64_t num_layers = array.shape(layer_dim);
  const IdsView first = {.data = array.data(),
                         .type = array.type(),
                         .num_rows = array.shape(row_dim),
                         .num_columns = array.shape(2),
                         .row_stride = array.stride(row_dim),
                         .column_stride = array.stride(2)};
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(long_call(array.size_bytes(), [&] {
    return self.recorder->capture_all(first, array.stride(layer_dim), static_cast<int32_t>(num_layers), lane,
                                      stream.get());
  }));
}

struct VersionsArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("int | numpy.typing.ArrayLike");
};

// What 32 bits cannot hold reaches the recorder as a value that it refuses, so that the step is closed.
class Versions {
 public:
  explicit Versions(VersionsArg arg) {
    if (PyLong_Check(arg.object.ptr())) {
      scalar_ = narrow(IntArg{{arg.object}}.get("version"));
      return;
    }
    const Array array(arg.object, "version");
    if (array.num_dims() == 0) {
      scalar_ = narrow(array.element(0));
      return;
    }
    array.require_dims(1, "an int, or one per token");
    per_token_.emplace();
    for (int64_t i = 0; i < array.shape(0); ++i) per_token_->push_back(narrow(array.element(i)));
  }

  void apply(CommitOptions& options) const {
    options.version = scalar_;
    if (per_token_) options.versions = std::span<const uint32_t>(*per_token_);
  }

  // The first that does not fit, which the recorder could not name.
  const std::optional<int64_t>& too_wide() const { return too_wide_; }

 private:
  uint32_t narrow(int64_t version) {
    if (std::in_range<uint32_t>(version)) return static_cast<uint32_t>(version);
    if (!too_wide_) too_wide_ = version;
    return std::numeric_limits<uint32_t>::max();
  }

  uint32_t scalar_ = 0;
  std::optional<std::vector<uint32_t>> per_token_;
  std::optional<int64_t> too_wide_;
};

struct OptionalLayoutArg : Arg {
  static constexpr auto kStubName = nb::detail::make_caster<Layout>::Name + nb::detail::const_name(" | None");
};

// The slots of a tensor on a device, which the recorder reads there.
std::optional<DeviceSlots> device_slots(const std::optional<Array>& array) {
  if (!array || !array->on_device()) return std::nullopt;
  array->require_dims(1, "one slot per token");
  if (!array->contiguous())
    raise(ErrorCode::kUnsupported, "slots: expected contiguous ones on a device, got shape {} with strides",
          array->shape_text());
  return DeviceSlots{array->data(), array->type(), array->shape(0)};
}

enum class Half : uint8_t { kBoth, kPrepare };

template <Half half>
Ticket commit(RecorderHandle& self, SlotsArg slots_arg, OptionalLayoutArg layout_arg, OptionalIntArg step,
              VersionsArg version, IntArg lane_arg, StreamArg stream) {
  std::optional<Array> array;
  const bool may_be_there = self.where == Where::kCpuOrCuda && nb::hasattr(slots_arg.object, "__dlpack__");
  if (may_be_there) array.emplace(slots_arg.object, "slots", self.where);
  const std::optional<DeviceSlots> there = device_slots(array);
  std::optional<SlotList> here;
  if (!there) here.emplace(slots_arg, "slots");
  const Layout layout =
      layout_arg.object.is_none() ? Layout::whole() : ObjectArg<Layout>{{layout_arg.object}}.get("layout");
  const Versions versions(version);
  CommitOptions options;
  options.step = step.get("step");
  options.lane = lane_arg.as<int>("lane");
  options.stream = stream.get();
  versions.apply(options);
  const Busy busy = self.use(options.lane);
  const auto call = [&](const auto& slots) {
    return half == Half::kBoth ? self.recorder->commit(slots, layout, options)
                               : self.recorder->prepare(slots, layout, options);
  };
  const int64_t work = there ? 0 : work_bytes(here->slots().size(), self.recorder->spec().row_bytes());
  Result<Ticket> ticket = long_call(work, [&] { return there ? call(*there) : call(here->slots()); });
  if (!ticket && ticket.error().code == ErrorCode::kStepOrder && versions.too_wide()) {
    raise(ErrorCode::kStepOrder, "version: expected 0 to {}, got {}", kMaxVersion, *versions.too_wide());
  }
  return unwrap(std::move(ticket));
}

void launch(RecorderHandle& self, IntArg lane_arg, StreamArg stream) {
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->launch(lane, stream.get()));
}

BufferHandle layer_buffer(nb::object self, IntArg layer, IntArg lane_arg) {
  auto& handle = nb::cast<RecorderHandle&>(self);
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = handle.use(lane);
  return {unwrap(handle.recorder->layer_buffer(layer.as<int32_t>("layer"), lane)), std::move(self)};
}

nb::dict counters(const RecorderHandle& self) {
  const RecorderCounters now = self.recorder->counters();
  nb::dict result;
  result["captures"] = now.captures;
  result["failed_captures"] = now.failed_captures;
  result["commits"] = now.commits;
  result["failed_commits"] = now.failed_commits;
  result["abandoned"] = now.abandoned;
  result["rows_kept"] = now.rows_kept;
  result["rows_refused"] = now.rows_refused;
  result["rows_no_slot"] = now.rows_no_slot;
  return result;
}

void bind_recorder_class(nb::module_& m) {
  nb::class_<RecorderHandle>(m, "Recorder", kClassDoc)
      .def("__init__", &init_recorder, "store"_a, "max_rows"_a, "lanes"_a = 1, "id_maps"_a = nb::none(),
           "memory_limit"_a = nb::none(), "device"_a = "cpu", "commit_path"_a = "mapped")
      .def_static(
          "required_bytes",
          [](ObjectArg<RouteSpec> spec, IntArg num_slots, IntArg max_rows, IntArg lanes, DeviceArg device,
             StrArg commit_path) {
            return unwrap(Recorder::required_bytes(
                spec.get("spec"), num_slots.get("num_slots"),
                recorder_options(max_rows, lanes, {{nb::none()}}, {{nb::none()}}, device, commit_path)));
          },
          "spec"_a, "num_slots"_a, "max_rows"_a, "lanes"_a = 1, "device"_a = "cpu",
          "commit_path"_a = "mapped",
          "Bytes of host memory that such a recorder takes, for a store of num_slots; pinned for a device.")
      .def_static(
          "required_device_bytes",
          [](ObjectArg<RouteSpec> spec, IntArg max_rows, IntArg lanes, StrArg commit_path) {
            const nb::str device("cuda:0");
            return unwrap(Recorder::required_device_bytes(
                spec.get("spec"),
                recorder_options(max_rows, lanes, {{nb::none()}}, {{nb::none()}}, {{device}}, commit_path)));
          },
          "spec"_a, "max_rows"_a, "lanes"_a = 1, "commit_path"_a = "mapped",
          "Bytes of device memory that such a recorder takes.")
      .def_prop_ro(
          "spec", [](const RecorderHandle& self) { return self.recorder->spec(); }, "The RouteSpec.")
      .def_prop_ro("max_rows", [](const RecorderHandle& self) { return self.recorder->max_rows(); })
      .def_prop_ro("lanes", [](const RecorderHandle& self) { return self.recorder->num_lanes(); })
      .def_prop_ro("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
                   "Calls and rows since creation, by name.")
      .def_prop_ro(
          "device", [](const RecorderHandle& self) { return self.recorder->device(); },
          "\"cpu\" or \"cuda:0\".")
      .def("begin", &begin, "lane"_a = 0, "stream"_a = nb::none(),
           "Opens a step, dropping what a forward that was never committed left (a warm-up, a dummy run).")
      .def("capture", &capture, "layer"_a, "ids"_a, "lane"_a = 0, "offset"_a = 0, "stream"_a = nb::none(),
           kCaptureDoc)
      .def("capture_raw", &capture_raw, "layer"_a, "pointer"_a, "rows"_a, "columns"_a, "stride"_a, "dtype"_a,
           "lane"_a = 0, "offset"_a = 0, "stream"_a = nb::none(), kCaptureRawDoc)
      .def("capture_all", &capture_all, "ids"_a, "lane"_a = 0, "order"_a = "ltk", "stream"_a = nb::none(),
           "All layers at once: ids [layers, rows, columns] (order \"ltk\") or [rows, layers, columns] "
           "(\"tlk\").")
      .def("commit", &commit<Half::kBoth>, "slots"_a, "layout"_a = nb::none(), "step"_a = nb::none(),
           "version"_a = 0, "lane"_a = 0, "stream"_a = nb::none(), kCommitDoc)
      .def("prepare", &commit<Half::kPrepare>, "slots"_a, "layout"_a = nb::none(), "step"_a = nb::none(),
           "version"_a = 0, "lane"_a = 0, "stream"_a = nb::none(), kPrepareDoc)
      .def("launch", &launch, "lane"_a = 0, "stream"_a = nb::none(), kLaunchDoc)
      .def("layer_buffer", &layer_buffer, "layer"_a, "lane"_a = 0, kLayerBufferDoc);
}

}  // namespace

void bind_recorder(nb::module_& m) {
  bind_ticket_and_report(m);
  bind_layer_buffer(m);
  bind_recorder_class(m);
}

}  // namespace moetape::bindings
