#include "record/cuda/cuda_recorder.h"

#include <utility>
#include <vector>

#include "base/fail.h"
#include "record/cuda/cuda_lane.h"

namespace moetape::inline v0::cuda {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;

int64_t table_bytes(const RecorderOptions& options) {
  int64_t bytes = 0;
  for (const auto& [layer, map] : options.id_maps) bytes += map.size() * 4;
  return (bytes + 255) / 256 * 256;
}

class CudaRecorder final : public Recorder::Impl {
 public:
  CudaRecorder(std::shared_ptr<Store> owner, const RecorderOptions& recorder_options,
               std::shared_ptr<Device> device)
      : Impl(std::move(owner), recorder_options), device_(std::move(device)), use_(store->impl()) {}

  ~CudaRecorder() override {
    lanes_.clear();  // waits for what is under way
    if (own_stream_) device_->destroy_stream(*own_stream_);
    if (mapped_ != nullptr) device_->unmap_host(store_memory_);
    if (own_memory_ != nullptr) device_->free(own_memory_);
  }

  Status create() {
    MOETAPE_TRY(use_.check());
    MOETAPE_ASSIGN(const LanePlan plan, LanePlan::make(store->spec(), options.max_rows, options.cuda->path));
    MOETAPE_ASSIGN(std::byte * memory, workspace());
    MOETAPE_ASSIGN(own_stream_, device_->create_stream());
    std::byte* tables = memory + plan.device_bytes * options.num_lanes;
    MOETAPE_TRY(send_id_maps(tables));
    for (int i = 0; i < options.num_lanes; ++i) {
      MOETAPE_ASSIGN(StoreWriter writer, StoreWriter::open(store));
      const StoreWriter::Mapping mapping = writer.mapping();
      if (mapped_ == nullptr) {
        MOETAPE_ASSIGN(mapped_, device_->map_host(mapping.memory, mapping.memory_bytes));
        store_memory_ = mapping.memory;
      }
      const auto mapped = [&](const void* at) {
        return mapped_ + (static_cast<const std::byte*>(at) - mapping.memory);
      };
      const MappedStore target = {mapped(mapping.rows), mapped(mapping.stamps),
                                  reinterpret_cast<uint64_t*>(mapped(mapping.landed))};
      lanes_.push_back(std::make_unique<CudaLane>(plan, device_, std::move(writer), target,
                                                  memory + plan.device_bytes * i, *own_stream_, &id_maps_,
                                                  &counters));
      MOETAPE_TRY(lanes_.back()->create());
    }
    return {};
  }

  std::string device() const override { return fmt::format("cuda:{}", device_->index()); }

  Status begin(int lane, StreamHandle stream) override {
    MOETAPE_TRY(check_lane(lane));
    return at(lane).begin(stream);
  }
  Status capture(int32_t layer, const IdsView& ids, int lane, int64_t offset, StreamHandle stream) override {
    MOETAPE_TRY(check_lane(lane));
    return at(lane).capture(layer, ids, offset, stream);
  }
  Status capture_all(const IdsView& first, int64_t layer_stride, int lane, StreamHandle stream) override {
    MOETAPE_TRY(check_lane(lane));
    const Status captured = at(lane).capture_all(first, layer_stride, stream);
    const int64_t num_captures = captured ? store->spec().num_moe_layers() : 1;
    AtomicCounters::add(captured ? counters.captures : counters.failed_captures, num_captures);
    return captured;
  }
  Status fail_step(const Error& error, int lane) override {
    MOETAPE_TRY(check_lane(lane));
    at(lane).fail_step(error);
    return {};
  }
  Result<LayerBuffer> layer_buffer(int32_t layer, int lane) override {
    MOETAPE_TRY(check_lane(lane));
    return at(lane).layer_buffer(layer);
  }
  Result<Ticket> commit(const Slots& slots, const Layout& layout, const CommitOptions& how) override {
    return prepare_and_launch(slots, layout, how);
  }
  Result<Ticket> commit(const DeviceSlots& slots, const Layout& layout, const CommitOptions& how) override {
    return prepare_and_launch(slots, layout, how);
  }
  Result<Ticket> prepare(const Slots& slots, const Layout& layout, const CommitOptions& how) override {
    return prepare_any(slots, layout, how);
  }
  Result<Ticket> prepare(const DeviceSlots& slots, const Layout& layout, const CommitOptions& how) override {
    return prepare_any(slots, layout, how);
  }
  Status launch(int lane, StreamHandle stream) override {
    MOETAPE_TRY(check_lane(lane));
    return at(lane).launch(stream);
  }
  void update_counters() override {
    for (const auto& lane : lanes_) lane->poll();
  }

 private:
  CudaLane& at(int lane) { return *lanes_[static_cast<size_t>(lane)]; }

  template <class AnySlots>
  Result<Ticket> prepare_any(const AnySlots& slots, const Layout& layout, const CommitOptions& how) {
    MOETAPE_TRY(check_lane(how.lane));
    const Store::Impl::Use use(store->impl());
    MOETAPE_TRY(use.check());
    return at(how.lane).prepare(slots, layout, how);
  }
  template <class AnySlots>
  Result<Ticket> prepare_and_launch(const AnySlots& slots, const Layout& layout, const CommitOptions& how) {
    MOETAPE_ASSIGN(Ticket ticket, prepare_any(slots, layout, how));
    MOETAPE_TRY(at(how.lane).launch(how.stream));
    return ticket;
  }

  Result<std::byte*> workspace() {
    MOETAPE_ASSIGN(const int64_t needed, device_bytes(store->spec(), options));
    auto* given = static_cast<std::byte*>(options.cuda->workspace);
    if (given == nullptr) {
      MOETAPE_ASSIGN(own_memory_, device_->allocate(needed));
      return own_memory_;
    }
    if (options.cuda->workspace_bytes < needed) {
      return fail(ErrorCode::kCapacity, "workspace: expected at least {} bytes, got {}", needed,
                  options.cuda->workspace_bytes);
    }
    if (reinterpret_cast<uintptr_t>(given) % kWorkspaceAlignment != 0)
      return fail(ErrorCode::kInvalidArgument, "workspace: expected a multiple of {}, got {}",
                  kWorkspaceAlignment, fmt::ptr(given));
    MOETAPE_TRY(device_->check_memory(given, needed, "workspace"));
    return given;
  }

  Status send_id_maps(std::byte* tables) {
    if (options.id_maps.empty()) return {};
    MOETAPE_ASSIGN(const MappedMemory pinned, device_->allocate_pinned(table_bytes(options)));
    auto* out = reinterpret_cast<int32_t*>(pinned.host);
    auto* on_device = reinterpret_cast<const int32_t*>(tables);
    for (const auto& [layer, map] : options.id_maps) {
      id_maps_[layer] = {on_device + (out - reinterpret_cast<int32_t*>(pinned.host)), map.size()};
      for (int64_t id = 0; id < map.size(); ++id) *out++ = static_cast<int32_t>(map(id));
    }
    const auto send = [&]() -> Status {
      MOETAPE_ASSIGN(const EventHandle sent, device_->create_event());
      Status done = device_->copy(tables, pinned.host, table_bytes(options), *own_stream_);
      if (done) done = device_->record(sent, *own_stream_);
      if (done) done = device_->synchronize(sent);
      device_->destroy_event(sent);
      return done;
    };
    const Status sent = send();
    device_->free_pinned(pinned.host);
    return sent;
  }

  std::shared_ptr<Device> device_;
  Store::Impl::Use use_;                    // the device writes into the store's memory as long as this lives
  std::optional<StreamHandle> own_stream_;  // for what no caller's stream may wait for
  std::byte* own_memory_ = nullptr;
  std::byte* mapped_ = nullptr;
  std::byte* store_memory_ = nullptr;
  DeviceIdMaps id_maps_;
  std::vector<std::unique_ptr<CudaLane>> lanes_;
};

}  // namespace

Result<int64_t> host_bytes(const RouteSpec& spec, const RecorderOptions& options) {
  MOETAPE_ASSIGN(const LanePlan plan, LanePlan::make(spec, options.max_rows, options.cuda->path));
  return plan.host_bytes();
}

Result<int64_t> device_bytes(const RouteSpec& spec, const RecorderOptions& options) {
  MOETAPE_ASSIGN(const LanePlan plan, LanePlan::make(spec, options.max_rows, options.cuda->path));
  return plan.device_bytes * options.num_lanes + table_bytes(options);
}

Result<std::unique_ptr<Recorder::Impl>> make_recorder(std::shared_ptr<Store> store,
                                                      const RecorderOptions& options,
                                                      std::shared_ptr<Device> device) {
  auto recorder = std::make_unique<CudaRecorder>(std::move(store), options, std::move(device));
  MOETAPE_TRY(recorder->create());
  return recorder;
}

}  // namespace moetape::inline v0::cuda
