// The work of the kernels, element by element and warp by warp: one text for the device and for the host,
// where tests run the same launch by plain loops. No CUDA header is needed.
//
// Rules of docs/memory-model.md are named where they are kept.
#pragma once

#include <atomic>
#include <cstring>

#include "base/sanitizers.h"
#include "base/word_order.h"
#include "record/cuda/step.h"
#include "store/stamp.h"

#ifdef __CUDACC__
#define MOETAPE_HOST_DEVICE __host__ __device__
#else
#define MOETAPE_HOST_DEVICE
#endif

namespace moetape::inline v0::cuda {

// ---- What differs between device and host: words that are shared, counts, and the warp. ----

MOETAPE_HOST_DEVICE inline uint64_t load_shared(const void* word) {
#ifdef __CUDA_ARCH__
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  auto* place = static_cast<uint64_t*>(const_cast<void*>(word));
  return std::atomic_ref<uint64_t>(*place).load(kWordLoadOrder);
#endif
}

MOETAPE_HOST_DEVICE inline void store_shared(void* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(word)).store(value, kWordStoreOrder);
#endif
}

MOETAPE_HOST_DEVICE inline void store_shared_release(void* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(word)).store(value, std::memory_order_release);
#endif
}

// 16 bytes of a row. A reader may be at it; the stamp tells it (R3).
MOETAPE_HOST_DEVICE inline void store_row_word(std::byte* word, uint64_t low, uint64_t high) {
#ifdef __CUDA_ARCH__
  asm volatile("st.v2.u64 [%0], {%1, %2};" ::"l"(word), "l"(low), "l"(high) : "memory");
#else
  store_shared(word, low);
  store_shared(word + 8, high);
#endif
}

MOETAPE_HOST_DEVICE inline void fence_system() {
#ifdef __CUDA_ARCH__
  __threadfence_system();
#elif !defined(MOETAPE_THREAD_SANITIZER)
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

// Counts in device memory; on the host one block runs behind another.
MOETAPE_HOST_DEVICE inline void add(uint32_t& count, uint32_t by) {
#ifdef __CUDA_ARCH__
  atomicAdd(&count, by);
#else
  count += by;
#endif
}

MOETAPE_HOST_DEVICE inline void raise(uint32_t& count, uint32_t to) {
#ifdef __CUDA_ARCH__
  atomicMax(&count, to);
#else
  if (count < to) count = to;
#endif
}

template <class Word>
MOETAPE_HOST_DEVICE Word load_word(const std::byte* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const Word*>(from);
#else
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
#endif
}

template <class Word>
MOETAPE_HOST_DEVICE void store_word(std::byte* to, const Word& word) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<Word*>(to) = word;
#else
  std::memcpy(to, &word, sizeof word);
#endif
}

// 32 lanes in step. What one phase wrote to scratch, the next may read.
struct Warp {
  template <class Phase>
  MOETAPE_HOST_DEVICE void each(const Phase& phase) const {
#ifdef __CUDA_ARCH__
    phase(static_cast<int>(threadIdx.x % kWarpLanes));
    __syncwarp();
#else
    for (int lane = 0; lane < kWarpLanes; ++lane) phase(lane);
#endif
  }

  // The smallest of what the lanes give.
  template <class Phase>
  MOETAPE_HOST_DEVICE uint32_t smallest(const Phase& phase) const {
#ifdef __CUDA_ARCH__
    return __reduce_min_sync(0xFFFFFFFF, phase(static_cast<int>(threadIdx.x % kWarpLanes)));
#else
    uint32_t found = UINT32_MAX;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const uint32_t value = phase(lane);
      if (value < found) found = value;
    }
    return found;
#endif
  }

  // Done by one lane; all get what it gives.
  template <class Phase>
  MOETAPE_HOST_DEVICE uint32_t once(const Phase& phase) const {
#ifdef __CUDA_ARCH__
    uint32_t value = 0;
    if (threadIdx.x % kWarpLanes == 0) value = phase();
    __syncwarp();
    return __shfl_sync(0xFFFFFFFF, value, 0);
#else
    return phase();
#endif
  }

  // What any lane wrote before is seen by the whole system before what any lane writes behind.
  MOETAPE_HOST_DEVICE void fence() const {
    fence_system();
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
  }
};

// ---- A lane's words. ----

struct alignas(16) Word16 {
  uint64_t low, high;
};

// Every id of it is poison; id bytes are 2 or 4.
template <class Word>
MOETAPE_HOST_DEVICE Word poison(int32_t id_bytes) {
  const uint64_t pattern = id_bytes == 2 ? 0x8000800080008000u : 0x8000000080000000u;
  if constexpr (sizeof(Word) == 16) {
    return {pattern, pattern};
  } else if constexpr (sizeof(Word) == 2) {
    return static_cast<Word>(0x8000);
  } else {
    return static_cast<Word>(pattern);
  }
}

// Layers [first, first + count) of a row.
struct Chunk {
  int32_t first;
  int32_t count;
};

// One lane's part of a chunk: its words go to scratch (unless null) and become poison (if `restore`).
template <class Word>
MOETAPE_HOST_DEVICE void take_words(const Shape& shape, std::byte* lane_memory, int64_t row, Chunk chunk,
                                    std::byte* scratch, bool restore, int lane) {
  const int32_t piece_bytes = shape.top_k * shape.lane_id_bytes;
  const auto words = static_cast<uint32_t>(piece_bytes) / static_cast<uint32_t>(sizeof(Word));
  const uint32_t num_words = words * static_cast<uint32_t>(chunk.count);
  for (auto i = static_cast<uint32_t>(lane); i < num_words; i += kWarpLanes) {
    const int64_t layer = chunk.first + static_cast<int64_t>(i / words);
    std::byte* at = lane_memory + (layer * shape.max_rows + row) * piece_bytes + i % words * sizeof(Word);
    if (scratch != nullptr) store_word(scratch + i * sizeof(Word), load_word<Word>(at));
    if (restore) store_word(at, poison<Word>(shape.lane_id_bytes));
  }
}

MOETAPE_HOST_DEVICE inline void take_chunk(const Shape& shape, std::byte* lane_memory, int64_t row,
                                           Chunk chunk, std::byte* scratch, bool restore, int lane) {
  const int32_t piece_bytes = shape.top_k * shape.lane_id_bytes;
  if (piece_bytes % 16 == 0) {
    take_words<Word16>(shape, lane_memory, row, chunk, scratch, restore, lane);
  } else if (piece_bytes % 8 == 0) {
    take_words<uint64_t>(shape, lane_memory, row, chunk, scratch, restore, lane);
  } else if (piece_bytes % 4 == 0) {
    take_words<uint32_t>(shape, lane_memory, row, chunk, scratch, restore, lane);
  } else {
    take_words<uint16_t>(shape, lane_memory, row, chunk, scratch, restore, lane);
  }
}

// ---- Checking and narrowing a chunk in scratch. ----

inline constexpr uint32_t kNoFault = UINT32_MAX;

// What is wrong with a layer of a row: ordered by layer.
MOETAPE_HOST_DEVICE inline uint32_t fault_key(int32_t layer, int32_t column, RowFault fault) {
  return static_cast<uint32_t>(layer) << 16 | static_cast<uint32_t>(column) << 8 |
         static_cast<uint32_t>(fault);
}
MOETAPE_HOST_DEVICE inline int32_t layer_of_key(uint32_t key) { return static_cast<int32_t>(key >> 16); }
MOETAPE_HOST_DEVICE inline int32_t column_of_key(uint32_t key) {
  return static_cast<int32_t>(key >> 8 & 0xFF);
}
MOETAPE_HOST_DEVICE inline int32_t fault_of_key(uint32_t key) { return static_cast<int32_t>(key & 0xFF); }

template <class LaneId>
MOETAPE_HOST_DEVICE LaneId scratch_id(const std::byte* scratch, int32_t index) {
  return load_word<LaneId>(scratch + index * static_cast<int32_t>(sizeof(LaneId)));
}

template <class LaneId>
MOETAPE_HOST_DEVICE bool is_poison(LaneId id) {
  return id == static_cast<LaneId>(poison<std::make_unsigned_t<LaneId>>(sizeof(LaneId)));
}

// The first fault of one layer's ids, in record/cpu's order: ids that are none, shared columns, repetitions.
template <class LaneId>
MOETAPE_HOST_DEVICE uint32_t check_layer(const Shape& shape, const std::byte* ids, int32_t layer) {
  bool any_poison = false;
  bool shared_wrong = false;
  uint32_t wrong = kNoFault;
  for (int32_t column = 0; column < shape.top_k; ++column) {
    const LaneId id = scratch_id<LaneId>(ids, column);
    any_poison = any_poison || is_poison(id);
    shared_wrong = shared_wrong || id == kSharedWrong;
    if (wrong != kNoFault || id == kSharedWrong || (id >= 0 && id < shape.num_experts)) continue;
    const bool negative = id < 0 && id != kDidNotFit;
    wrong = fault_key(layer, column, negative ? RowFault::kNegative : RowFault::kTooLarge);
  }
  if (any_poison) return fault_key(layer, 0, RowFault::kUnwritten);
  if (wrong != kNoFault) return wrong;
  if (shared_wrong) return fault_key(layer, 0, RowFault::kShared);
  if (shape.distinct == 0) return kNoFault;
  for (int32_t column = 1; column < shape.top_k; ++column) {
    const LaneId id = scratch_id<LaneId>(ids, column);
    for (int32_t before = 0; before < column; ++before) {
      if (scratch_id<LaneId>(ids, before) == id) return fault_key(layer, column, RowFault::kRepeated);
    }
  }
  return kNoFault;
}

// One lane's part: every 32nd layer; unwritten ones are counted.
template <class LaneId>
MOETAPE_HOST_DEVICE uint32_t check_chunk(const CommitArgs& args, Chunk chunk, const std::byte* scratch,
                                         int lane) {
  const int32_t piece_bytes = args.shape.top_k * static_cast<int32_t>(sizeof(LaneId));
  uint32_t first = kNoFault;
  for (int32_t i = lane; i < chunk.count; i += kWarpLanes) {
    const uint32_t key = check_layer<LaneId>(args.shape, scratch + i * piece_bytes, chunk.first + i);
    if (key == kNoFault) continue;
    if (key < first) first = key;
    if (fault_of_key(key) != static_cast<int32_t>(RowFault::kUnwritten)) continue;
    add(args.unwritten[chunk.first + i], 1);
    add(args.tally->any_unwritten, 1);
  }
  return first;
}

// One lane's part: 16 bytes at a time, zeros behind the last id.
template <class LaneId, class Id>
MOETAPE_HOST_DEVICE void write_chunk(const Shape& shape, Chunk chunk, const std::byte* scratch,
                                     std::byte* row, int lane) {
  constexpr int32_t kIdsPerHalf = 8 / sizeof(Id);
  const int32_t num_ids = chunk.count * shape.top_k;
  std::byte* out = row + int64_t{chunk.first} * shape.top_k * static_cast<int64_t>(sizeof(Id));
  for (int32_t word = lane; word * 2 * kIdsPerHalf < num_ids; word += kWarpLanes) {
    uint64_t halves[2] = {};
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t i = 0; i < kIdsPerHalf; ++i) {
        const int32_t index = (word * 2 + half) * kIdsPerHalf + i;
        if (index >= num_ids) continue;
        const Id id = static_cast<Id>(scratch_id<LaneId>(scratch, index));
        halves[half] |= uint64_t{id} << (8 * static_cast<int32_t>(sizeof(Id)) * i);
      }
    }
    store_row_word(out + int64_t{word} * 16, halves[0], halves[1]);
  }
}

// ---- What a launch makes of the step that it finds. ----

// A launch that abandons meets a step that was prepared and never launched, or an idle one.
MOETAPE_HOST_DEVICE inline bool has_work(const CommitArgs& args) {
  return !args.abandons || args.header->mode != StepMode::kIdle;
}

MOETAPE_HOST_DEVICE inline StepMode mode_of(const CommitArgs& args, const StepHeader& step) {
  return args.abandons && step.mode == StepMode::kCommit ? StepMode::kRefuse : step.mode;
}

// Rows [0, …) are put back to poison.
MOETAPE_HOST_DEVICE inline int64_t extent_of(const CommitArgs& args, const StepHeader& step) {
  if (args.abandons) return args.shape.max_rows;
  return step.extent < args.graph_rows ? args.graph_rows : step.extent;
}

// ---- One row of the batch. ----

enum class Place : uint8_t { kNobody, kNoSlot, kOutOfRange, kSlot };

struct Destination {
  Place place;
  int64_t slot;
  int64_t entry;  // row of the step
  Stamp stamp;
};

MOETAPE_HOST_DEVICE inline Destination destination_of(const CommitArgs& args, const StepHeader& step,
                                                      int64_t row) {
  const int64_t entry = row - step.src;
  if (step.mode == StepMode::kIdle || entry < 0 || entry >= step.count) return {Place::kNobody, -1, -1, 0};
  const bool has_entries = step.device_slots == nullptr || step.has_tokens != 0;
  const auto* entries = reinterpret_cast<const int64_t*>(&step + 1);
  uint32_t version = step.version;
  if (step.has_versions != 0)
    version = reinterpret_cast<const uint32_t*>(entries + (has_entries ? step.count : 0))[entry];
  const Stamp stamp = make_stamp(version, step.step);
  int64_t slot = has_entries ? entries[entry] : step.dst + entry;
  if (step.device_slots == nullptr) {
    if (slot == kNotOurs) return {Place::kNobody, -1, entry, stamp};
  } else {
    if (slot < 0) return {Place::kNobody, -1, entry, stamp};
    slot = step.wide_slots != 0 ? static_cast<const int64_t*>(step.device_slots)[slot]
                                : int64_t{static_cast<const int32_t*>(step.device_slots)[slot]};
  }
  if (slot == -1 || slot == args.pad_slot) return {Place::kNoSlot, -1, entry, stamp};
  if (slot < 0 || slot >= args.num_slots) return {Place::kOutOfRange, -1, entry, stamp};
  return {Place::kSlot, slot, entry, stamp};
}

// R1 and R9: the slot says "refused in this step" while its row is written; false if it must stay as it is.
MOETAPE_HOST_DEVICE inline bool open_slot(std::byte* stamp, uint64_t step) {
  const uint64_t before = step_of(load_shared(stamp));
  if (before <= step) store_shared(stamp, refused(step));
  return before < step;
}

// Counts of one warp, handed on at its end.
struct WarpCounts {
  uint32_t no_slot = 0;
  uint32_t out_of_range = 0;
};

MOETAPE_HOST_DEVICE inline void refuse_row(const CommitArgs& args, int64_t row, RowRecord record) {
  args.records[row] = record;
  raise(args.tally->rows_left, UINT32_MAX - static_cast<uint32_t>(row));
  add(args.tally->num_refused, 1);
  add(args.tally->num_by_fault[record.fault], 1);
}

MOETAPE_HOST_DEVICE inline void write_record(const CommitArgs& args, const Destination& to, Stamp stamp) {
  std::byte* at = args.target.stamps + to.entry * args.target.stamp_pitch;
  store_word<uint64_t>(at, stamp);
  store_word<int64_t>(at + 8, to.slot);
}

// The end of a row of ours: its stamp, or its refusal.
MOETAPE_HOST_DEVICE inline void close_row(const CommitArgs& args, const Destination& to, int64_t row,
                                          std::byte* stamp, bool open, uint32_t fault, int64_t value) {
  const bool good = fault == kNoFault;
  if (args.packs) {
    write_record(args, to, good ? to.stamp : refused(step_of(to.stamp)));
  } else if (good && open) {
    store_shared_release(stamp, to.stamp);  // R1: behind the words of all lanes, which met since
  }
  if (!good) {
    refuse_row(args, row, {layer_of_key(fault), fault_of_key(fault), value});
  } else if (!open) {
    refuse_row(args, row, {-1, static_cast<int32_t>(RowFault::kSuperseded), to.slot});
  }
}

MOETAPE_HOST_DEVICE inline void refuse_slot(Warp warp, const CommitArgs& args, const Destination& to) {
  warp.once([&] {
    const Stamp stamp = refused(step_of(to.stamp));
    if (args.packs) {
      write_record(args, to, stamp);
      return 0u;
    }
    if (to.place != Place::kSlot) return 0u;
    std::byte* at = args.target.stamps + to.slot * args.target.stamp_pitch;
    if (step_of(load_shared(at)) <= step_of(stamp)) store_shared_release(at, stamp);
    return 0u;
  });
}

// One warp, one row: check, narrow, transpose, write, stamp; the row's ids in the lane become poison.
template <class LaneId, class Id>
MOETAPE_HOST_DEVICE void commit_row(Warp warp, const CommitArgs& args, const StepHeader& step, int64_t row,
                                    std::byte* scratch, WarpCounts& counts) {
  const Shape& shape = args.shape;
  const StepMode mode = mode_of(args, step);
  const Destination to = destination_of(args, step, row);
  const bool placed = to.place == Place::kSlot && mode == StepMode::kCommit;
  const bool restore = row < extent_of(args, step);
  const int64_t index = !placed ? 0 : args.packs ? to.entry : to.slot;
  std::byte* stamp = args.target.stamps + index * args.target.stamp_pitch;
  bool open = args.packs;
  uint32_t fault = kNoFault;
  int64_t value = 0;
  for (int32_t first = 0; first < shape.num_layers; first += shape.layers_per_chunk) {
    const int32_t left = shape.num_layers - first;
    const Chunk chunk = {first, left < shape.layers_per_chunk ? left : shape.layers_per_chunk};
    warp.each([&](int lane) {
      take_chunk(shape, args.lane, row, chunk, placed ? scratch : nullptr, restore, lane);
    });
    if (!placed) continue;
    const uint32_t found =
        warp.smallest([&](int lane) { return check_chunk<LaneId>(args, chunk, scratch, lane); });
    if (fault == kNoFault && found != kNoFault) {
      fault = found;
      const int32_t layer = layer_of_key(found) - first;
      value = scratch_id<LaneId>(scratch, layer * shape.top_k + column_of_key(found));
    }
    if (first == 0 && !args.packs) {
      open = warp.once([&] { return open_slot(stamp, step.step) ? 1u : 0u; }) != 0;
      warp.fence();  // R1
    }
    if (fault == kNoFault && open) {
      std::byte* out = args.target.rows + index * args.target.row_pitch;
      warp.each([&](int lane) { write_chunk<LaneId, Id>(shape, chunk, scratch, out, lane); });
    } else {
      warp.each([](int) {});  // scratch is read by all before the next chunk comes
    }
  }
  if (placed) {
    warp.once([&] {
      close_row(args, to, row, stamp, open, fault, value);
      return 0u;
    });
    return;
  }
  if (mode == StepMode::kRefuse && to.entry >= 0) refuse_slot(warp, args, to);
  if (mode != StepMode::kCommit || to.entry < 0) return;
  counts.no_slot += to.place == Place::kNoSlot ? 1 : 0;
  counts.out_of_range += to.place == Place::kOutOfRange ? 1 : 0;
  if (args.packs) {
    warp.once([&] {
      write_record(args, to, 0);
      return 0u;
    });
  }
}

template <class LaneId, class Id>
MOETAPE_HOST_DEVICE void commit_warp(Warp warp, const CommitArgs& args, int64_t warp_index,
                                     std::byte* scratch) {
  const StepHeader& step = *args.header;
  const int64_t end = step.mode == StepMode::kIdle ? 0 : step.src + step.count;
  const int64_t extent = extent_of(args, step);
  const int64_t num_rows = end < extent ? extent : end;
  const int64_t num_warps = int64_t{args.geometry.num_blocks} * args.geometry.warps_per_block;
  WarpCounts counts;
  for (int64_t row = warp_index; row < num_rows; row += num_warps)
    commit_row<LaneId, Id>(warp, args, step, row, scratch, counts);
  if (counts.no_slot == 0 && counts.out_of_range == 0) return;
  warp.once([&] {
    add(args.tally->num_no_slot, counts.no_slot);
    add(args.tally->num_out_of_range, counts.out_of_range);
    return 0u;
  });
}

// ---- The end of a step, by the thread that finds all blocks done. ----

MOETAPE_HOST_DEVICE inline void write_report(const CommitArgs& args, StepReport& report) {
  const Tally& tally = *args.tally;
  report.num_refused = tally.num_refused;
  report.num_no_slot = tally.num_no_slot;
  report.num_out_of_range = tally.num_out_of_range;
  for (int i = 0; i < kNumRowFaults; ++i) report.num_by_fault[i] = tally.num_by_fault[i];
  report.any_unwritten = tally.any_unwritten;
  report.abandoned = args.abandons ? 1 : 0;
  report.offender_row = kNoOffender;
  if (tally.num_refused > 0) {
    report.offender_row = UINT32_MAX - tally.rows_left;
    const RowRecord& record = args.records[report.offender_row];
    report.offender_layer = record.layer;
    report.offender_fault = record.fault;
    report.offender_value = record.value;
  }
  if (tally.any_unwritten == 0) return;
  auto* unwritten = reinterpret_cast<uint32_t*>(&report + 1);
  for (int32_t layer = 0; layer < args.shape.num_layers; ++layer) {
    unwritten[layer] = args.unwritten[layer];
    args.unwritten[layer] = 0;
  }
}

MOETAPE_HOST_DEVICE inline void finish_step(const CommitArgs& args) {
  StepHeader& step = *args.header;
  if (step.mode != StepMode::kIdle) {
    write_report(args, *step.report);
    fence_system();
    // Behind the last stamp of the last row (R5); a host that sees the serial sees `landed` too.
    if (step.lands != 0 && args.landed != nullptr) store_shared_release(args.landed, step.step);
    store_shared_release(&step.report->serial, step.serial);
  }
  *args.tally = Tally{};
  // A launch that nobody prepared, as a graph's may be, restores whatever was written.
  step.mode = StepMode::kIdle;
  step.extent = args.shape.max_rows;
}

// ---- Captures and poison. ----

template <class T>
MOETAPE_HOST_DEVICE int64_t int_at(const void* data, int64_t index) {
  return static_cast<int64_t>(static_cast<const T*>(data)[index]);
}

MOETAPE_HOST_DEVICE inline int64_t element(const IdsView& ids, int64_t index) {
  switch (ids.type) {
    case IntType::kInt8:
      return int_at<int8_t>(ids.data, index);
    case IntType::kUint8:
      return int_at<uint8_t>(ids.data, index);
    case IntType::kInt16:
      return int_at<int16_t>(ids.data, index);
    case IntType::kUint16:
      return int_at<uint16_t>(ids.data, index);
    case IntType::kInt32:
      return int_at<int32_t>(ids.data, index);
    case IntType::kUint32:
      return int_at<uint32_t>(ids.data, index);
    case IntType::kInt64:
      return int_at<int64_t>(ids.data, index);
    case IntType::kUint64:
      break;
  }
  const uint64_t id = static_cast<const uint64_t*>(ids.data)[index];
  return id > INT64_MAX ? INT64_MAX : static_cast<int64_t>(id);
}

MOETAPE_HOST_DEVICE inline int64_t logical_id(const CaptureArgs& args, int64_t id) {
  if (args.to_logical == nullptr || id < 0) return id;
  const int64_t logical = id < args.map_size ? args.to_logical[id] : -1;
  return logical < 0 ? args.shape.num_experts : logical;
}

// Element `index` of [layers][rows][top_k].
template <class LaneId>
MOETAPE_HOST_DEVICE void capture_element(const CaptureArgs& args, int64_t index) {
  const Shape& shape = args.shape;
  const auto column = static_cast<int32_t>(index % shape.top_k);
  const int64_t row = index / shape.top_k % args.ids.num_rows;
  const int64_t layer = index / shape.top_k / args.ids.num_rows;
  const int64_t start = layer * args.layer_stride + row * args.ids.row_stride;
  const auto id_at = [&](int64_t c) {
    return logical_id(args, element(args.ids, start + c * args.ids.column_stride));
  };
  constexpr int64_t kLargest = sizeof(LaneId) == 2 ? INT16_MAX : INT32_MAX;
  const int64_t id = id_at(column);
  int64_t kept = id < 0 ? kPadding : id > kLargest ? kDidNotFit : id;
  const bool is_expert = id >= 0 && id < shape.num_experts;
  for (int64_t c = shape.top_k; column == 0 && is_expert && c < args.ids.num_columns; ++c) {
    if (id_at(c) < shape.num_experts) kept = kSharedWrong;
  }
  const int64_t lane_row = (args.first_layer + layer) * shape.max_rows + args.offset + row;
  reinterpret_cast<LaneId*>(args.lane)[lane_row * shape.top_k + column] = static_cast<LaneId>(kept);
}

template <class LaneId>
MOETAPE_HOST_DEVICE void poison_element(const PoisonArgs& args, int64_t index) {
  const int64_t per_layer = args.num_rows * args.shape.top_k;
  const int64_t place = index / per_layer * args.shape.max_rows * args.shape.top_k + index % per_layer;
  using Bits = std::make_unsigned_t<LaneId>;
  reinterpret_cast<LaneId*>(args.lane)[place] = static_cast<LaneId>(poison<Bits>(sizeof(LaneId)));
}

}  // namespace moetape::inline v0::cuda
