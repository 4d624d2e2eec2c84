#include "moetape/recorder.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "store.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(Takes the router's ids while a forward runs and commits them to a store behind it.

max_rows: router rows of the largest forward (the gathered batch). lanes: staging buffers; overlapped micro-batches
use different ones, and one thread at a time uses one. id_maps: moetape.layout.IdMap by global layer, where routers
give physical ids. memory_limit: bytes. Keeps the store alive. Raises InvalidArgumentError naming what does not
fit, MemoryLimitError.)";

constexpr const char* kCaptureDoc =
    R"(One layer's ids of rows [offset, offset + n) of the batch, in a router's hook. Keeps the GIL.

layer: global index. ids: integers [n, top_k] or [n, top_k + shared_columns] in CPU memory, any strides: NumPy, torch,
the buffer protocol or DLPack; read during the call, not copied before. An id that is no expert makes its row
missing (counted in the ticket's report). Raises OutOfRangeError for a layer that is not recorded, WrongTypeError,
WrongShapeError, CapacityError, and AlreadyCapturedError for rows captured twice; after any but the first the step fails
at commit.)";

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
                                 OptionalIntArg memory_limit) {
  RecorderOptions options;
  options.max_rows = max_rows.get("max_rows");
  options.num_lanes = lanes.as<int>("lanes");
  options.id_maps = id_maps_from(id_maps.object);
  options.memory_limit_bytes = memory_limit.limit("memory_limit");
  return options;
}

void init_recorder(RecorderHandle* self, ObjectArg<StoreHandle> store, IntArg max_rows, IntArg lanes,
                   const OptionalIdMapsArg& id_maps, OptionalIntArg memory_limit) {
  const RecorderOptions options = recorder_options(max_rows, lanes, id_maps, memory_limit);
  std::unique_ptr<Recorder> recorder = unwrap(Recorder::create(store.get("store").store, options));
  auto busy = std::make_unique<bool[]>(static_cast<size_t>(recorder->num_lanes()));
  new (self) RecorderHandle{std::move(recorder), std::move(busy)};
}

void begin(RecorderHandle& self, IntArg lane_arg) {
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->begin(lane));
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

void capture(RecorderHandle& self, IntArg layer, ArrayArg ids, IntArg lane_arg, IntArg offset) {
  std::optional<Array> array;
  IdsView view;
  telling(self, lane_arg, [&] {
    array.emplace(ids.object, "ids");
    view = ids_view(*array);
  });
  const int lane = lane_arg.as<int>("lane");
  const Busy busy = self.use(lane);
  unwrap(self.recorder->capture(layer.as<int32_t>("layer"), view, lane, offset.get("offset")));
}

void capture_all(RecorderHandle& self, ArrayArg ids, IntArg lane_arg, StrArg order_arg) {
  const std::string_view order = order_arg.get("order");
  if (order != "ltk" && order != "tlk") {
    raise(ErrorCode::kInvalidArgument, "order: expected ltk or tlk, got \"{}\"", order);
  }
  std::optional<Array> checked;
  const int layer_dim = order == "ltk" ? 0 : 1;
  const int row_dim = 1 - layer_dim;
  telling(self, lane_arg, [&] {
    checked.emplace(ids.object, "ids");
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
    return self.recorder->capture_all(first, array.stride(layer_dim), static_cast<int32_t>(num_layers), lane);
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

Ticket commit(RecorderHandle& self, SlotsArg slots_arg, OptionalLayoutArg layout_arg, OptionalIntArg step,
              VersionsArg version, IntArg lane_arg) {
  const SlotList slots(slots_arg, "slots");
  const Layout layout =
      layout_arg.object.is_none() ? Layout::whole() : ObjectArg<Layout>{{layout_arg.object}}.get("layout");
  const Versions versions(version);
  CommitOptions options;
  options.step = step.get("step");
  options.lane = lane_arg.as<int>("lane");
  versions.apply(options);
  const Busy busy = self.use(options.lane);
  const int64_t work = work_bytes(slots.slots().size(), self.recorder->spec().row_bytes());
  Result<Ticket> ticket =
      long_call(work, [&] { return self.recorder->commit(slots.slots(), layout, options); });
  if (!ticket && ticket.error().code == ErrorCode::kStepOrder && versions.too_wide()) {
    raise(ErrorCode::kStepOrder, "version: expected 0 to {}, got {}", kMaxVersion, *versions.too_wide());
  }
  return unwrap(std::move(ticket));
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

nb::str fault_name(RowFault fault) {
  const std::string_view name = row_fault_name(fault);
  return nb::str(name.data(), name.size());
}

nb::dict refused_by_fault(const CommitReport& report) {
  nb::dict result;
  for (int i = 0; i < kNumRowFaults; ++i) {
    const int64_t count = report.num_by_fault[static_cast<size_t>(i)];
    if (count > 0) result[fault_name(static_cast<RowFault>(i))] = count;
  }
  return result;
}

std::string report_repr(const CommitReport& report) {
  std::string text = fmt::format("CommitReport(step={}, num_tokens={}, num_kept={}", report.step,
                                 report.num_tokens, report.num_kept);
  if (report.num_no_slot > 0) text += fmt::format(", num_no_slot={}", report.num_no_slot);
  if (report.num_elsewhere > 0) text += fmt::format(", num_elsewhere={}", report.num_elsewhere);
  if (report.num_refused > 0) text += fmt::format(", refused={}", nb::repr(refused_by_fault(report)).c_str());
  return text + ")";
}

void bind_report(nb::module_& m) {
  nb::class_<Offender>(m, "Offender", "The first row of a step that was refused. A value.")
      .def_ro("layer", &Offender::layer, "Global layer; -1 where it is about none.")
      .def_ro("row", &Offender::row, "Row of the router's batch.")
      .def_ro("value", &Offender::value, "The id as it came; the slot where it was \"superseded\".")
      .def_prop_ro(
          "fault", [](const Offender& self) { return fault_name(self.fault); },
          "\"negative\", \"too_large\", \"repeated\", \"shared\" (a routed id in a shared column) or\n"
          "\"superseded\" (its slot was written in this or a later step).")
      .def("__repr__", [](const Offender& self) {
        return fmt::format("Offender(layer={}, row={}, value={}, fault=\"{}\")", self.layer, self.row,
                           self.value, row_fault_name(self.fault));
      });
  nb::class_<CommitReport>(m, "CommitReport", "What a commit did, in tokens. A value.")
      .def_ro("step", &CommitReport::step)
      .def_ro("num_tokens", &CommitReport::num_tokens, "That the slots name.")
      .def_ro("num_kept", &CommitReport::num_kept, "Rows now in the store.")
      .def_ro("num_refused", &CommitReport::num_refused,
              "Rows that are missing because of their ids or slot.")
      .def_ro("num_no_slot", &CommitReport::num_no_slot, "Tokens with slot -1 or the pad slot.")
      .def_ro("num_elsewhere", &CommitReport::num_elsewhere, "Tokens whose rows another rank has.")
      .def_prop_ro("refused", &refused_by_fault, nb::sig("def refused(self) -> dict[str, int]"),
                   "Refused rows by fault; empty when none.")
      .def_prop_ro(
          "first_offender",
          [](const CommitReport& self) -> nb::object {
            return self.first_offender ? nb::cast(*self.first_offender) : nb::none();
          },
          nb::sig("def first_offender(self) -> Offender | None"), "The first row that was refused.")
      .def("__repr__", &report_repr);
}

void bind_ticket(nb::module_& m) {
  nb::class_<Ticket>(m, "Ticket", "What a commit gives. On the CPU it is ready at once. Any thread.")
      .def_prop_ro("ready", &Ticket::ready, "Whether the rows have landed.")
      .def(
          "wait",
          [](const Ticket& self, SecondsArg timeout) {
            const std::chrono::milliseconds longest = timeout.get("timeout");
            Status status = [&] {
              nb::gil_scoped_release release;
              return self.wait(longest);
            }();
            unwrap(std::move(status));
          },
          "timeout"_a = 10.0, "Waits until the rows have landed; TimeoutError after `timeout` seconds.")
      .def_prop_ro("report", [](const Ticket& self) { return self.report(); }, "The CommitReport.");
}

void bind_recorder_class(nb::module_& m) {
  nb::class_<RecorderHandle>(m, "Recorder", kClassDoc)
      .def("__init__", &init_recorder, "store"_a, "max_rows"_a, "lanes"_a = 1, "id_maps"_a = nb::none(),
           "memory_limit"_a = nb::none())
      .def_static(
          "required_bytes",
          [](ObjectArg<RouteSpec> spec, IntArg num_slots, IntArg max_rows, IntArg lanes) {
            return unwrap(
                Recorder::required_bytes(spec.get("spec"), num_slots.get("num_slots"),
                                         recorder_options(max_rows, lanes, {{nb::none()}}, {{nb::none()}})));
          },
          "spec"_a, "num_slots"_a, "max_rows"_a, "lanes"_a = 1,
          "Bytes that such a recorder takes, for a store of num_slots.")
      .def_prop_ro(
          "spec", [](const RecorderHandle& self) { return self.recorder->spec(); }, "The RouteSpec.")
      .def_prop_ro("max_rows", [](const RecorderHandle& self) { return self.recorder->max_rows(); })
      .def_prop_ro("lanes", [](const RecorderHandle& self) { return self.recorder->num_lanes(); })
      .def_prop_ro("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
                   "Calls and rows since creation, by name.")
      .def("begin", &begin, "lane"_a = 0,
           "Opens a step, dropping what a forward that was never committed left (a warm-up, a dummy run).")
      .def("capture", &capture, "layer"_a, "ids"_a, "lane"_a = 0, "offset"_a = 0, kCaptureDoc)
      .def("capture_all", &capture_all, "ids"_a, "lane"_a = 0, "order"_a = "ltk",
           "All layers at once: ids [layers, rows, columns] (order \"ltk\") or [rows, layers, columns] "
           "(\"tlk\").")
      .def("commit", &commit, "slots"_a, "layout"_a = nb::none(), "step"_a = nb::none(), "version"_a = 0,
           "lane"_a = 0, kCommitDoc);
}

}  // namespace

void bind_recorder(nb::module_& m) {
  bind_report(m);
  bind_ticket(m);
  bind_recorder_class(m);
}

}  // namespace moetape::bindings
