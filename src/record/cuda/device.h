// Device: a GPU as a recorder sees it. CUDA is one; tests have a simulated one.
//
// Streams and events are opaque. Nothing here waits but allocate, free, registering and synchronize; nothing
// allocates but what says so. Nothing harms a capture that another stream of the process has under way, and
// the calling thread's device is as before. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "record/cuda/step.h"

namespace moetape::inline v0::cuda {

using EventHandle = void*;

// Host memory that the device reaches, and where the device has it.
struct MappedMemory {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual int index() const = 0;
  virtual int num_multiprocessors() const = 0;

  virtual Result<std::byte*> allocate(int64_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  virtual Result<MappedMemory> allocate_pinned(int64_t bytes) = 0;
  virtual void free_pinned(std::byte* host) = 0;
  // Pins and maps memory of the process; several may do so with the same memory.
  virtual Result<std::byte*> map_host(std::byte* memory, int64_t bytes) = 0;
  virtual void unmap_host(std::byte* memory) = 0;

  // kInvalidArgument, naming `name`, unless [data, data + bytes) is this device's memory.
  virtual Status check_memory(const void* data, int64_t bytes, const char* name) = 0;
  // kInvalidArgument for a stream of another device, and for one that is another in every thread.
  virtual Status check_stream(StreamHandle stream) = 0;
  // The number of the capture that the stream takes part in, another for each; 0 = none.
  virtual Result<uint64_t> capture_of(StreamHandle stream) = 0;
  // kDeviceFailed once the device does nothing any more.
  virtual Status check_alive() = 0;

  // A stream that waits for no other, and is never captured.
  virtual Result<StreamHandle> create_stream() = 0;
  virtual void destroy_stream(StreamHandle stream) = 0;

  virtual Status copy(void* to, const void* from, int64_t bytes, StreamHandle stream) = 0;
  virtual Status launch(const CommitArgs& args, StreamHandle stream) = 0;
  virtual Status launch(const CaptureArgs& args, StreamHandle stream) = 0;
  virtual Status launch(const PoisonArgs& args, StreamHandle stream) = 0;

  virtual Result<EventHandle> create_event() = 0;
  virtual void destroy_event(EventHandle event) = 0;
  virtual Status record(EventHandle event, StreamHandle stream) = 0;
  virtual Status wait(StreamHandle stream, EventHandle event) = 0;  // the stream, not the host
  virtual Result<bool> is_done(EventHandle event) = 0;
  virtual Status synchronize(EventHandle event) = 0;
};

// kUnsupported where this build has no CUDA, or the machine no driver or no such device.
Result<std::shared_ptr<Device>> open_device(int index);

}  // namespace moetape::inline v0::cuda
