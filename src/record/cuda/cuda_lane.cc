#include "record/cuda/cuda_lane.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"

namespace moetape::inline v0::cuda {

CudaLane::CudaLane(const LanePlan& plan, std::shared_ptr<Device> device, StoreWriter writer,
                   const MappedStore& mapped, std::byte* memory, StreamHandle own,
                   const DeviceIdMaps* id_maps, AtomicCounters* counters)
    : plan_(plan),
      device_(device),
      mapped_(mapped),
      memory_(memory),
      own_(own),
      id_maps_(id_maps),
      counters_(counters),
      geometry_(plan.geometry(device->num_multiprocessors())),
      num_slots_(writer.store().options.num_slots),
      pad_slot_(writer.store().options.pad_slot),
      spec_(writer.store().spec),
      slots_(num_slots_, plan.shape.max_rows),
      log_(spec_, plan.shape.max_rows),
      graph_log_(spec_, plan.shape.max_rows),
      elsewhere_(static_cast<size_t>(plan.shape.num_layers)),
      ring_(plan, std::move(device), std::move(writer), plan.packs ? memory + plan.packed_at : nullptr, own,
            counters) {}

CudaLane::~CudaLane() {
  if (stream_) {
    const auto held = ring_.lock();
    static_cast<void>(abandon(*stream_));  // an error is the tickets'
    ring_.settle(*stream_);
    if (device_->record(behind_, *stream_)) static_cast<void>(device_->synchronize(behind_));
  }
  if (behind_ != nullptr) device_->destroy_event(behind_);
}

Status CudaLane::create() {
  MOETAPE_TRY(ring_.create());
  MOETAPE_ASSIGN(behind_, device_->create_event());
  MOETAPE_ASSIGN(const MappedMemory zeros, device_->allocate_pinned(plan_.zeroed_bytes()));
  std::fill_n(zeros.host, plan_.zeroed_bytes(), std::byte{0});
  auto* idle = new (zeros.host) StepHeader{};
  idle->mode = StepMode::kIdle;
  idle->extent = plan_.shape.max_rows;
  // The commit of an idle step fills the lane with poison: a kernel that cannot run here is found now.
  Status done = device_->copy(memory_ + plan_.header_at, zeros.host, plan_.zeroed_bytes(), own_);
  if (done) done = device_->launch(commit_args(), own_);
  if (done) done = device_->record(behind_, own_);
  if (done) done = device_->synchronize(behind_);
  device_->free_pinned(zeros.host);
  return done;
}

// Behind everything that earlier calls left on other streams.
Status CudaLane::follow(StreamHandle stream) {
  if (stream == stream_) return {};
  if (!stream_) {  // the first call; what came before was waited for
    stream_ = stream;
    return {};
  }
  MOETAPE_TRY(device_->record(behind_, *stream_));
  MOETAPE_TRY(device_->wait(stream, behind_));
  stream_ = stream;
  return {};
}

// Another capture knows nothing of what the one before saw, whether that became a graph or not.
void CudaLane::enter_graph(uint64_t capture) {
  if (capture == capture_) return;
  capture_ = capture;
  graph_log_.clear();
}

Status CudaLane::begin(StreamHandle stream) {
  MOETAPE_TRY(device_->check_stream(stream));
  MOETAPE_ASSIGN(const uint64_t capture, device_->capture_of(stream));
  if (capture != 0) {
    enter_graph(capture);
    graph_log_.clear();
    return {};
  }
  MOETAPE_TRY(follow(stream));
  if (prepared_ != nullptr) {
    const auto held = ring_.lock();
    MOETAPE_TRY(abandon(stream));
  }
  if (begun_ || log_.touched() || failed_) MOETAPE_TRY(device_->launch(poison_args(), stream));
  if (begun_) AtomicCounters::add(counters_->abandoned);
  log_.clear();
  begun_ = true;
  failed_ = false;
  return {};
}

// The step that was prepared and not launched by launch(). Only the device knows whether a graph did it: if
// not, it refuses the step's slots, so that no row of an earlier step lives on in them and no later replay
// commits it.
Status CudaLane::abandon(StreamHandle stream) {
  ring_.poll();
  const StepInFlight* step = std::exchange(prepared_, nullptr);
  if (step == nullptr || !step->under_way) return {};
  CommitArgs args = commit_args();
  args.abandons = true;
  args.geometry.num_blocks = 1;
  Status done = device_->launch(args, stream);
  if (done) done = ring_.follow_all(stream);
  if (!done) give_up(done.error(), stream);
  return done;
}

// The device did not take what a step needs: it is lost, and what stands in the lane is nothing.
void CudaLane::give_up(const Error& error, StreamHandle stream) {
  failed_ = true;
  prepared_ = nullptr;
  ring_.settle(stream, error);
}

namespace {

// A kernel that loads from elsewhere ends the whole context.
Status check_aligned(const void* data, IntType type, const char* name) {
  const auto bytes = static_cast<uintptr_t>(int_type_bytes(type));
  if (reinterpret_cast<uintptr_t>(data) % bytes == 0) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: expected {} at a multiple of {} bytes, got address {}", name,
              int_type_name(type), bytes, fmt::ptr(data));
}

}  // namespace

// Of `num_layers` layers; every byte that is read.
Status CudaLane::check_ids(const IdsView& ids, int64_t layer_stride, int32_t num_layers) const {
  if (ids.num_rows <= 0 || ids.num_columns <= 0) return {};
  MOETAPE_TRY(check_aligned(ids.data, ids.type, "ids"));
  int64_t first = 0;
  int64_t last = 0;
  for (const auto& [count, stride] :
       {std::pair{ids.num_rows, ids.row_stride}, std::pair{ids.num_columns, ids.column_stride},
        std::pair{int64_t{num_layers}, layer_stride}}) {
    (stride < 0 ? first : last) += (count - 1) * stride;
  }
  const int64_t bytes = int_type_bytes(ids.type);
  return device_->check_memory(static_cast<const std::byte*>(ids.data) + first * bytes,
                               (last - first + 1) * bytes, "ids");
}

Result<CaptureLog*> CudaLane::log_of(StreamHandle stream) {
  MOETAPE_ASSIGN(const uint64_t capture, device_->capture_of(stream));
  if (capture != 0) {
    enter_graph(capture);
    return &graph_log_;
  }
  MOETAPE_TRY(follow(stream));
  return &log_;
}

void CudaLane::saw_in_graph(int32_t column, int64_t num_rows) {
  elsewhere_[static_cast<size_t>(column)] = 1;
  graph_rows_ = std::max(graph_rows_, num_rows);
}

Status CudaLane::capture(int32_t layer, const IdsView& ids, int64_t offset, StreamHandle stream) {
  MOETAPE_TRY(device_->check_stream(stream));
  MOETAPE_TRY(check_ids(ids, 0, 1));
  MOETAPE_ASSIGN(CaptureLog * log, log_of(stream));
  MOETAPE_ASSIGN(const int32_t column, log->add(layer, ids, offset));
  if (log == &graph_log_) saw_in_graph(column, offset + ids.num_rows);
  if (ids.num_rows == 0) return {};
  CaptureArgs args = {.shape = plan_.shape,
                      .lane = memory_,
                      .ids = ids,
                      .layer_stride = 0,
                      .first_layer = column,
                      .num_layers = 1,
                      .offset = offset,
                      .to_logical = nullptr,
                      .map_size = 0};
  if (const auto map = id_maps_->find(layer); map != id_maps_->end()) {
    args.to_logical = map->second.to_logical;
    args.map_size = map->second.size;
  }
  return device_->launch(args, stream);
}

Status CudaLane::capture_all(const IdsView& first, int64_t layer_stride, StreamHandle stream) {
  MOETAPE_TRY(device_->check_stream(stream));
  MOETAPE_TRY(check_ids(first, layer_stride, plan_.shape.num_layers));
  if (!id_maps_->empty()) {  // a table a layer
    IdsView ids = first;
    for (const int32_t layer : spec_.layers()) {
      MOETAPE_TRY(capture(layer, ids, 0, stream));
      ids.data = static_cast<const std::byte*>(ids.data) + layer_stride * int_type_bytes(ids.type);
    }
    return {};
  }
  MOETAPE_ASSIGN(CaptureLog * log, log_of(stream));
  for (const int32_t layer : spec_.layers()) {
    MOETAPE_ASSIGN(const int32_t column, log->add(layer, first, 0));
    if (log == &graph_log_) saw_in_graph(column, first.num_rows);
  }
  if (first.num_rows == 0) return {};
  return device_->launch(CaptureArgs{.shape = plan_.shape,
                                     .lane = memory_,
                                     .ids = first,
                                     .layer_stride = layer_stride,
                                     .first_layer = 0,
                                     .num_layers = plan_.shape.num_layers,
                                     .offset = 0,
                                     .to_logical = nullptr,
                                     .map_size = 0},
                         stream);
}

Result<LayerBuffer> CudaLane::layer_buffer(int32_t layer) {
  MOETAPE_ASSIGN(const int32_t column, spec_.column_of(layer));
  if (id_maps_->contains(layer)) {
    return fail(ErrorCode::kUnsupported,
                "layer_buffer of layer {}: expected a router of logical ids, this layer has an IdMap", layer);
  }
  elsewhere_[static_cast<size_t>(column)] = 1;
  const Shape& shape = plan_.shape;
  const int64_t layer_bytes = shape.max_rows * shape.top_k * shape.lane_id_bytes;
  return LayerBuffer{.data = memory_ + column * layer_bytes,
                     .type = shape.lane_id_bytes == 2 ? IntType::kInt16 : IntType::kInt32,
                     .num_rows = shape.max_rows,
                     .num_columns = shape.top_k,
                     .device = device_->index()};
}

Status CudaLane::resolve(const Slots& slots) { return slots_.resolve(store(), slots); }

Status CudaLane::resolve(const DeviceSlots& slots) const {
  if (slots.size <= kMaxSlotsPerCall) return {};
  return fail(ErrorCode::kInvalidArgument, "slots: expected at most {} in one call, got {}", kMaxSlotsPerCall,
              slots.size);
}

namespace {

int64_t size_of(const Slots& slots) { return slots.size(); }
int64_t size_of(const DeviceSlots& slots) { return slots.size; }

Status check_argument(Device&, const Slots&) { return {}; }
Status check_argument(Device& device, const DeviceSlots& slots) {
  if (slots.type != IntType::kInt32 && slots.type != IntType::kInt64) {
    return fail(ErrorCode::kWrongType, "slots: expected int32 or int64 on a device, got {}",
                int_type_name(slots.type));
  }
  if (slots.size < 0) return fail(ErrorCode::kInvalidArgument, "slots: got {} of them", slots.size);
  if (slots.size == 0) return {};
  MOETAPE_TRY(check_aligned(slots.data, slots.type, "slots"));
  return device.check_memory(slots.data, slots.size * int_type_bytes(slots.type), "slots");
}

}  // namespace

template <class AnySlots>
Result<CudaLane::Checked> CudaLane::check(const AnySlots& slots, const Layout& layout,
                                          const CommitOptions& options) {
  const int64_t num_tokens = size_of(slots);
  MOETAPE_TRY(resolve(slots));
  MOETAPE_TRY(check_versions(options, num_tokens));
  const bool hidden = std::ranges::find(elsewhere_, uint8_t{1}) != elsewhere_.end();
  if (!log_.touched() && !hidden && num_tokens == 0) return Checked{};  // a rank without tokens in this step
  MOETAPE_ASSIGN(int64_t batch_rows, log_.finish(&elsewhere_));
  if (!log_.touched()) {
    MOETAPE_ASSIGN(batch_rows, layout.batch_rows(num_tokens));
  }
  MOETAPE_ASSIGN(const Placement placement, layout.place(batch_rows, num_tokens));
  if (batch_rows > plan_.shape.max_rows) {
    return fail(ErrorCode::kCapacity, "{}: needs {} rows, the lane has {} (max_rows)", layout.to_string(),
                batch_rows, plan_.shape.max_rows);
  }
  return Checked{placement, batch_rows};
}

int64_t CudaLane::fill_versions(StepInFlight& step, const Placement& placement, int64_t num_entries,
                                const CommitOptions& options) const {
  StepHeader& header = *step.header;
  auto* entries = reinterpret_cast<int64_t*>(step.header + 1);
  auto* versions = reinterpret_cast<uint32_t*>(entries + num_entries);
  header.version = options.version;
  header.has_versions = options.versions ? 1 : 0;
  const int64_t bytes = static_cast<int64_t>(sizeof header) + num_entries * 8;
  if (!options.versions) return bytes;
  for (int64_t i = 0; i < step.count; ++i) {
    const int64_t token =
        placement.token_of_row ? (*placement.token_of_row)[static_cast<size_t>(i)] : placement.dst + i;
    versions[i] = token < 0 ? 0 : (*options.versions)[static_cast<size_t>(token)];
  }
  return bytes + step.count * 4;
}

// Both fill what depends on the slots and give the bytes that the device must have.
int64_t CudaLane::fill(StepInFlight& step, const Slots&, const Checked& checked,
                       const CommitOptions& options) {
  const Placement& placement = checked.placement;
  auto* entries = reinterpret_cast<int64_t*>(step.header + 1);
  step.num_ours = 0;
  for (int64_t i = 0; i < step.count; ++i) {
    const int64_t token =
        placement.token_of_row ? (*placement.token_of_row)[static_cast<size_t>(i)] : placement.dst + i;
    entries[i] = token < 0 ? kNotOurs : slots_[static_cast<size_t>(token)];
    step.num_ours += token >= 0 ? 1 : 0;
  }
  return fill_versions(step, placement, step.count, options);
}

int64_t CudaLane::fill(StepInFlight& step, const DeviceSlots& slots, const Checked& checked,
                       const CommitOptions& options) {
  const Placement& placement = checked.placement;
  StepHeader& header = *step.header;
  header.device_slots = slots.data;
  header.wide_slots = slots.type == IntType::kInt64 ? 1 : 0;
  header.dst = placement.dst;
  header.has_tokens = placement.token_of_row != nullptr ? 1 : 0;
  step.num_ours = step.count;
  if (!placement.token_of_row) return fill_versions(step, placement, 0, options);
  std::ranges::copy(*placement.token_of_row, reinterpret_cast<int64_t*>(step.header + 1));
  step.num_ours = step.count - std::ranges::count(*placement.token_of_row, -1);
  return fill_versions(step, placement, step.count, options);
}

Status CudaLane::send(const StepInFlight& step, int64_t bytes, StreamHandle stream) {
  return device_->copy(memory_ + plan_.header_at, step.header, bytes, stream);
}

template <class AnySlots>
Result<Ticket> CudaLane::prepare(const AnySlots& slots, const Layout& layout, const CommitOptions& options) {
  const StreamHandle stream = options.stream;
  MOETAPE_TRY(device_->check_stream(stream));
  MOETAPE_TRY(check_argument(*device_, slots));
  MOETAPE_ASSIGN(const uint64_t capture, device_->capture_of(stream));
  if (capture != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "prepare: expected a stream outside any graph capture; only launch() may be in a graph");
  }
  const auto held = ring_.lock();
  Status ready = follow(stream);
  if (ready) ready = abandon(stream);
  if (ready) ready = ring_.follow_all(stream);  // a graph's launches too
  StepInFlight* step = &ring_.next();
  const auto checked = guard_memory("commit", [&] { return check(slots, layout, options); });
  const auto number = ring_.writer().submit(options.step);
  begun_ = false;
  log_.clear();
  if (!ready || !checked || !number) {
    failed_ = true;
    const uint64_t refused_step = number ? *number : store().writers.last_submitted();
    MOETAPE_TRY(refuse(slots, refused_step, number.has_value(), stream));
    return Failure(!ready ? ready.error() : checked ? number.error() : checked.error());
  }
  const Placement& placement = checked->placement;
  *step->header = {};
  step->header->mode = StepMode::kCommit;
  step->header->step = *number;
  step->header->src = placement.src;
  step->header->count =
      placement.token_of_row ? static_cast<int64_t>(placement.token_of_row->size()) : placement.count;
  step->header->extent = checked->batch_rows;
  step->header->lands = 1;
  step->step = *number;
  step->lands = true;
  step->src = placement.src;
  step->count = step->header->count;
  const int64_t bytes = fill(*step, slots, *checked, options);
  CommitReport report;
  report.step = static_cast<int64_t>(*number);
  report.num_tokens = size_of(slots);
  report.landed = false;
  auto ticket = ring_.open(*step, std::move(report));
  if (const Status sent = send(*step, bytes, stream); !sent) {
    give_up(sent.error(), stream);
    return Failure(sent.error());
  }
  prepared_ = step;
  return Ticket(std::move(ticket));
}

void CudaLane::refuse_rest(const Slots&, int64_t first, uint64_t step, bool lands) {
  ring_.writer().refuse(slots_.data() + first, slots_.size() - first, step);
  if (lands) ring_.writer().land(step);
}

void CudaLane::refuse_rest(const DeviceSlots&, int64_t, uint64_t step, bool lands) {
  if (lands) ring_.writer().drop(step);
}

// The device does it, behind the commits that came before. Packed refusals are waited for, since no ticket
// asks for them.
template <class AnySlots>
Status CudaLane::refuse(const AnySlots& slots, uint64_t step_number, bool lands, StreamHandle stream) {
  const int64_t num_tokens = step_number == 0 ? 0 : std::min(size_of(slots), kMaxSlotsPerCall);
  int64_t first = 0;
  do {
    StepInFlight* step = &ring_.next();
    const int64_t count = std::min(plan_.shape.max_rows, num_tokens - first);
    const bool last = first + count == num_tokens;
    *step->header = {};
    StepHeader& header = *step->header;
    header.mode = StepMode::kRefuse;
    header.step = step_number;
    header.count = count;
    header.extent = last ? plan_.shape.max_rows : 0;
    header.lands = lands && last ? 1 : 0;
    step->step = step_number;
    step->lands = header.lands != 0;
    step->src = 0;
    step->count = count;
    step->num_ours = 0;
    int64_t bytes = sizeof header;
    if constexpr (std::is_same_v<AnySlots, DeviceSlots>) {
      header.device_slots = slots.data;
      header.wide_slots = slots.type == IntType::kInt64 ? 1 : 0;
      header.dst = first;
    } else {
      std::copy_n(slots_.data() + first, count, reinterpret_cast<int64_t*>(step->header + 1));
      bytes += count * 8;
    }
    static_cast<void>(ring_.open(*step, {}));
    Status done = send(*step, bytes, stream);
    if (done) done = device_->launch(commit_args(), stream);
    if (done) done = ring_.follow(*step, stream);
    if (!done) {
      give_up(done.error(), stream);
      if (!last) refuse_rest(slots, first + count, step_number, lands);
      return done;
    }
    first += count;
  } while (first < num_tokens);
  if (plan_.packs) ring_.settle(stream);
  return {};
}

CommitArgs CudaLane::commit_args(int64_t graph_rows) const {
  const LanePlan& plan = plan_;
  std::byte* tally = memory_ + plan.tally_at;
  std::byte* packed = memory_ + plan.packed_at;
  const int64_t row_stride = plan.packed_stride - 16;
  return {.shape = plan.shape,
          .geometry = geometry_,
          .lane = memory_,
          .header = reinterpret_cast<StepHeader*>(memory_ + plan.header_at),
          .tally = reinterpret_cast<Tally*>(tally),
          .unwritten = reinterpret_cast<uint32_t*>(tally + sizeof(Tally)),
          .records = reinterpret_cast<RowRecord*>(memory_ + plan.records_at),
          .target = plan.packs ? Target{packed, plan.packed_stride, packed + row_stride, plan.packed_stride}
                               : Target{mapped_.rows, row_stride, mapped_.stamps, 8},
          .landed = plan.packs ? nullptr : mapped_.landed,
          .num_slots = num_slots_,
          .pad_slot = pad_slot_,
          .packs = plan.packs,
          .abandons = false,
          .graph_rows = graph_rows};
}

Status CudaLane::launch(StreamHandle stream) {
  MOETAPE_TRY(device_->check_stream(stream));
  MOETAPE_ASSIGN(const uint64_t capture, device_->capture_of(stream));
  if (capture != 0) {
    enter_graph(capture);
    const auto rows = graph_log_.finish(&elsewhere_);
    const bool captured = graph_log_.touched();
    graph_log_.clear();
    MOETAPE_TRY(rows);
    return device_->launch(commit_args(captured ? *rows : graph_rows_), stream);
  }
  if (prepared_ == nullptr)
    return fail(ErrorCode::kInvalidArgument, "launch: expected a step that was prepared, got none");
  const auto held = ring_.lock();
  Status done = follow(stream);
  if (done) done = device_->launch(commit_args(graph_rows_), stream);
  if (!done) {
    failed_ = true;
    if (abandon(stream)) ring_.settle(stream);  // nobody may ask its ticket; an error is the ticket's
    return done;
  }
  StepInFlight* step = std::exchange(prepared_, nullptr);
  done = ring_.follow(*step, stream);
  if (!done) give_up(done.error(), stream);
  return done;
}

void CudaLane::poll() {
  const auto held = ring_.lock();
  ring_.poll();
}

template Result<Ticket> CudaLane::prepare(const Slots&, const Layout&, const CommitOptions&);
template Result<Ticket> CudaLane::prepare(const DeviceSlots&, const Layout&, const CommitOptions&);

}  // namespace moetape::inline v0::cuda
