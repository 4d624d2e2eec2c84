// SimulatedDevice: a Device for tests and dry runs. Its streams are queues, its kernels the bodies that the
// real ones run, in the same launch geometry, by plain loops.
//
// Work is done when it is enqueued (kAtOnce), when the test says so (kByHand), or by a thread per stream
// (kThreads); that of the recorder's own streams always when it is enqueued. What the recorder asks of a
// device is counted, and can be made to fail.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "base/fail.h"
#include "record/cuda/bodies.h"
#include "record/cuda/device.h"

namespace moetape::inline v0::cuda {

template <class LaneId, class Id>
void run_blocks(const CommitArgs& args, std::byte* scratch) {
  const Geometry& geometry = args.geometry;
  if (!has_work(args)) return;
  for (int32_t block = 0; block < geometry.num_blocks; ++block) {
    for (int32_t warp = 0; warp < geometry.warps_per_block; ++warp) {
      commit_warp<LaneId, Id>(Warp{}, args, int64_t{block} * geometry.warps_per_block + warp, scratch);
    }
    args.tally->blocks_done += 1;
    if (args.tally->blocks_done == static_cast<uint32_t>(geometry.num_blocks)) finish_step(args);
  }
}

inline void run_on_host(const CommitArgs& args) {
  static thread_local std::vector<Word16> scratch;
  scratch.resize(static_cast<size_t>(args.shape.scratch_bytes() + 15) / 16);
  auto* bytes = reinterpret_cast<std::byte*>(scratch.data());
  if (args.shape.lane_id_bytes == 4) return run_blocks<int32_t, uint16_t>(args, bytes);
  if (args.shape.id_bytes == 2) return run_blocks<int16_t, uint16_t>(args, bytes);
  run_blocks<int16_t, uint8_t>(args, bytes);
}

inline void run_on_host(const CaptureArgs& args) {
  for (int64_t i = 0; i < args.num_elements(); ++i) {
    args.shape.lane_id_bytes == 4 ? capture_element<int32_t>(args, i) : capture_element<int16_t>(args, i);
  }
}

inline void run_on_host(const PoisonArgs& args) {
  for (int64_t i = 0; i < args.num_elements(); ++i) {
    args.shape.lane_id_bytes == 4 ? poison_element<int32_t>(args, i) : poison_element<int16_t>(args, i);
  }
}

class SimulatedDevice final : public Device {
 public:
  enum class Mode { kAtOnce, kByHand, kThreads };
  struct Counts {
    std::atomic<int64_t> kernels = 0, copies = 0, synchronizations = 0, allocations = 0;
  };
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Point {  // of a stream
    StreamHandle stream;
    bool done = false;
  };
  struct Event {
    std::shared_ptr<Point> newest;
  };
  struct Mark {
    std::shared_ptr<Point> point;
  };
  struct Wait {
    std::shared_ptr<Point> point;
  };
  using Task = std::variant<CommitArgs, CaptureArgs, PoisonArgs, Copy, Mark, Wait, std::function<void()>>;
  using Graph = std::vector<Task>;

  explicit SimulatedDevice(Mode mode = Mode::kAtOnce, int num_multiprocessors = 2)
      : mode_(mode), num_multiprocessors_(num_multiprocessors) {
    streams_[nullptr] = std::make_unique<Stream>();
    if (mode_ == Mode::kThreads) start(*streams_[nullptr]);
  }

  ~SimulatedDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& [handle, stream] : streams_) {
      if (stream->thread.joinable()) stream->thread.join();
    }
    for (auto& [memory, bytes] : device_memory_) std::free(memory);
  }

  // ---- For tests. ----

  Counts counts;
  int num_failing_launches = 0;  // the next ones
  int num_failing_copies = 0;
  std::atomic<bool> is_dead = false;  // it takes nothing, and does nothing that it has

  StreamHandle make_stream() {
    const std::lock_guard lock(mutex_);
    auto stream = std::make_unique<Stream>();
    const StreamHandle handle = stream.get();
    Stream& kept = *(streams_[handle] = std::move(stream));
    if (mode_ == Mode::kThreads) start(kept);
    return handle;
  }

  // Does what is queued on a stream, and what that waits for.
  void run(StreamHandle stream) {
    std::deque<Task>& queue = streams_.at(stream)->queue;
    while (!queue.empty() && !is_dead) {
      const Task task = queue.front();
      queue.pop_front();
      run_task(task);
    }
  }
  void run_all() {
    for (auto& [handle, stream] : streams_) run(handle);
  }

  void begin_capture(StreamHandle stream) {
    streams_.at(stream)->graph = std::make_unique<Graph>();
    streams_.at(stream)->capture = ++num_captures_;
  }
  Graph end_capture(StreamHandle stream) { return std::move(*std::exchange(streams_.at(stream)->graph, {})); }
  void replay(const Graph& graph, StreamHandle stream) {
    for (const Task& task : graph) static_cast<void>(enqueue(task, stream));
  }

  // Another kernel.
  void call(std::function<void()> kernel, StreamHandle stream) {
    static_cast<void>(enqueue(std::move(kernel), stream));
  }

  // Memory of the device that holds these values; freed with the device.
  template <class T>
  T* upload(const std::vector<T>& values) {
    auto memory = allocate(static_cast<int64_t>(std::max<size_t>(values.size(), 1) * sizeof(T)));
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(*memory));
    return reinterpret_cast<T*>(*memory);
  }

  // ---- Device. ----

  int index() const override { return 0; }
  int num_multiprocessors() const override { return num_multiprocessors_; }

  Result<std::byte*> allocate(int64_t bytes) override {
    counts.allocations += 1;
    const auto size = static_cast<size_t>((bytes + 255) / 256 * 256);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, size));
    if (memory == nullptr) return fail(ErrorCode::kOutOfMemory, "simulated device: {} bytes", bytes);
    std::memset(memory, 0xA5, size);
    const std::lock_guard lock(mutex_);
    device_memory_[memory] = bytes;
    return memory;
  }
  void free(std::byte* memory) override {
    const std::lock_guard lock(mutex_);
    device_memory_.erase(memory);
    std::free(memory);
  }
  Result<MappedMemory> allocate_pinned(int64_t bytes) override {
    counts.allocations += 1;
    auto* memory =
        static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)));
    if (memory == nullptr) return fail(ErrorCode::kOutOfMemory, "simulated pinned memory: {} bytes", bytes);
    return MappedMemory{memory, memory};
  }
  void free_pinned(std::byte* host) override { std::free(host); }
  Result<std::byte*> map_host(std::byte* memory, int64_t) override {
    counts.allocations += 1;
    num_mapped += 1;
    return memory;
  }
  void unmap_host(std::byte*) override { num_mapped -= 1; }
  int num_mapped = 0;

  Status check_memory(const void* data, int64_t bytes, const char* name) override {
    const std::lock_guard lock(mutex_);
    auto* at = static_cast<std::byte*>(const_cast<void*>(data));
    auto next = device_memory_.upper_bound(at);
    if (next != device_memory_.begin()) {
      const auto& [memory, size] = *--next;
      if (at + bytes <= memory + size) return {};
    }
    return fail(ErrorCode::kInvalidArgument, "{}: expected memory of the simulated device, got {}", name,
                fmt::ptr(data));
  }
  Status check_stream(StreamHandle stream) override {
    const std::lock_guard lock(mutex_);
    if (streams_.contains(stream)) return {};
    return fail(ErrorCode::kInvalidArgument, "stream: expected one of the simulated device");
  }
  Result<uint64_t> capture_of(StreamHandle handle) override {
    const std::lock_guard lock(mutex_);
    const Stream& stream = *streams_.at(handle);
    return stream.graph != nullptr ? stream.capture : 0;
  }
  Status check_alive() override {
    if (!is_dead) return {};
    return fail(ErrorCode::kDeviceFailed, "simulated device: it is dead");
  }
  Result<StreamHandle> create_stream() override {
    const std::lock_guard lock(mutex_);
    auto stream = std::make_unique<Stream>();
    stream->at_once = true;
    const StreamHandle handle = stream.get();
    streams_[handle] = std::move(stream);
    return handle;
  }
  void destroy_stream(StreamHandle handle) override {
    const std::lock_guard lock(mutex_);
    streams_.erase(handle);
  }

  Status copy(void* to, const void* from, int64_t bytes, StreamHandle stream) override {
    counts.copies += 1;
    MOETAPE_TRY(take(num_failing_copies));
    return enqueue(Copy{to, from, static_cast<size_t>(bytes)}, stream);
  }
  Status launch(const CommitArgs& args, StreamHandle stream) override { return launch_any(args, stream); }
  Status launch(const CaptureArgs& args, StreamHandle stream) override { return launch_any(args, stream); }
  Status launch(const PoisonArgs& args, StreamHandle stream) override { return launch_any(args, stream); }

  Result<EventHandle> create_event() override {
    counts.allocations += 1;
    return new Event;
  }
  void destroy_event(EventHandle event) override { delete static_cast<Event*>(event); }
  Status record(EventHandle handle, StreamHandle stream) override {
    auto point = std::make_shared<Point>(Point{stream});
    {
      const std::lock_guard lock(mutex_);
      static_cast<Event*>(handle)->newest = point;
    }
    return enqueue(Mark{std::move(point)}, stream);
  }
  Status wait(StreamHandle stream, EventHandle handle) override {
    std::unique_lock lock(mutex_);
    std::shared_ptr<Point> point = static_cast<Event*>(handle)->newest;
    lock.unlock();
    return point ? enqueue(Wait{std::move(point)}, stream) : Status();
  }
  Result<bool> is_done(EventHandle handle) override {
    MOETAPE_TRY(check_alive());
    const std::lock_guard lock(mutex_);
    const auto& point = static_cast<Event*>(handle)->newest;
    return !point || point->done;
  }
  Status synchronize(EventHandle handle) override {
    counts.synchronizations += 1;
    MOETAPE_TRY(check_alive());
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Point> point = static_cast<Event*>(handle)->newest;
    lock.unlock();
    if (point) reach(*point);
    return {};
  }

 private:
  struct Stream {
    std::deque<Task> queue;
    std::unique_ptr<Graph> graph;  // under capture
    uint64_t capture = 0;
    bool at_once = false;
    std::thread thread;
  };

  template <class Args>
  Status launch_any(const Args& args, StreamHandle stream) {
    counts.kernels += 1;
    MOETAPE_TRY(take(num_failing_launches));
    return enqueue(args, stream);
  }

  Status take(int& num_failing) {
    MOETAPE_TRY(check_alive());
    if (num_failing == 0) return {};
    num_failing -= 1;
    return fail(ErrorCode::kDeviceFailed, "simulated device: it does not take this");
  }

  Status enqueue(const Task& task, StreamHandle handle) {
    bool at_once = mode_ == Mode::kAtOnce;
    {
      const std::lock_guard lock(mutex_);
      Stream& stream = *streams_.at(handle);
      if (stream.graph != nullptr) {
        stream.graph->push_back(task);
        return {};
      }
      at_once = at_once || stream.at_once;
      if (!at_once) stream.queue.push_back(task);
    }
    changed_.notify_all();
    if (at_once) run_task(task);
    return {};
  }

  void run_task(const Task& task) {
    std::visit([&](const auto& work) { run_work(work); }, task);
  }
  void run_work(const CommitArgs& args) { run_on_host(args); }
  void run_work(const CaptureArgs& args) { run_on_host(args); }
  void run_work(const PoisonArgs& args) { run_on_host(args); }
  void run_work(const Copy& copy) { std::memcpy(copy.to, copy.from, copy.bytes); }
  void run_work(const std::function<void()>& kernel) { kernel(); }
  void run_work(const Mark& mark) {
    {
      const std::lock_guard lock(mutex_);
      mark.point->done = true;
    }
    changed_.notify_all();
  }
  void run_work(const Wait& wait) { reach(*wait.point); }

  void reach(const Point& point) {
    std::unique_lock lock(mutex_);
    if (mode_ == Mode::kThreads) {
      changed_.wait(lock, [&] { return point.done; });
      return;
    }
    std::deque<Task>& queue = streams_.at(point.stream)->queue;
    while (!point.done) {
      const Task task = queue.front();
      queue.pop_front();
      lock.unlock();
      run_task(task);
      lock.lock();
    }
  }

  void start(Stream& stream) {
    stream.thread = std::thread([this, &stream] {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [&] { return stopping_ || !stream.queue.empty(); });
        if (stream.queue.empty()) return;
        const Task task = stream.queue.front();
        stream.queue.pop_front();
        lock.unlock();
        std::this_thread::yield();
        run_task(task);
        lock.lock();
      }
    });
  }

  const Mode mode_;
  const int num_multiprocessors_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  uint64_t num_captures_ = 0;
  std::map<StreamHandle, std::unique_ptr<Stream>> streams_;
  std::map<std::byte*, int64_t> device_memory_;
};

}  // namespace moetape::inline v0::cuda
