// Products of what specs, batches, ids and slots can be, and what record/cpu makes of them: for the tests on
// a simulated device and the program that runs on a real one. No test framework.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "record/cuda/cuda_recorder.h"

namespace moetape::inline v0::cuda {

// A test ends here where there is an error.
template <class T>
T must(Result<T> result) {
  if (!result) {
    throw std::runtime_error(std::string(error_name(result.error().code)) + ": " + result.error().message);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Arrays in a device's memory, as long as this lives. Waits.
class DeviceArrays {
 public:
  explicit DeviceArrays(Device& device) : device_(device), event_(must(device.create_event())) {}
  ~DeviceArrays() {
    for (std::byte* array : arrays_) device_.free(array);
    device_.destroy_event(event_);
  }
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;

  std::byte* add(const std::vector<std::byte>& bytes) {
    arrays_.push_back(must(device_.allocate(std::max<int64_t>(std::ssize(bytes), 1))));
    write(arrays_.back(), bytes);
    return arrays_.back();
  }
  void write(void* to, const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return;
    must(device_.copy(to, bytes.data(), std::ssize(bytes), nullptr));
    must(device_.record(event_, nullptr));
    must(device_.synchronize(event_));
  }

 private:
  Device& device_;
  EventHandle event_;
  std::vector<std::byte*> arrays_;
};

enum Dimension { kTokens, kTopK, kExperts, kLayers, kType, kLayout, kBad, kSlots, kPath, kNumDimensions };
using Combination = std::array<size_t, kNumDimensions>;

constexpr std::array<int64_t, 9> kTokenCounts = {0, 1, 15, 16, 17, 255, 256, 257, 8192};  // case A17
constexpr std::array<int32_t, 8> kTopKs = {1, 2, 4, 6, 8, 10, 16, 22};
constexpr std::array<int32_t, 7> kExpertCounts = {8, 128, 256, 257, 384, 512, 896};
constexpr std::array<int32_t, 6> kLayerCounts = {1, 3, 48, 58, 61, 94};
constexpr std::array<IntType, 4> kTypes = {IntType::kInt16, IntType::kInt32, IntType::kInt64,
                                           IntType::kUint32};
constexpr std::array<const char*, 6> kLayouts = {"whole",     "graph_padded", "dp_concat",
                                                 "dp_padded", "tp_shard",     "rows"};
constexpr std::array<const char*, 5> kBadIds = {"none", "padding", "too_large", "repeated", "shared"};
constexpr std::array<const char*, 4> kSlotKinds = {"host", "host_some_without", "device_int32",
                                                   "device_int64"};
constexpr std::array<CommitPath, 2> kPaths = {CommitPath::kMapped, CommitPath::kPacked};
constexpr Combination kSizes = {kTokenCounts.size(), kTopKs.size(),     kExpertCounts.size(),
                                kLayerCounts.size(), kTypes.size(),     kLayouts.size(),
                                kBadIds.size(),      kSlotKinds.size(), kPaths.size()};

inline std::string text_of(const Combination& c) {
  return fmt::format("tokens {} top_k {} experts {} layers {} {} {} bad {} slots {} {}",
                     kTokenCounts[c[kTokens]], kTopKs[c[kTopK]], kExpertCounts[c[kExperts]],
                     kLayerCounts[c[kLayers]], int_type_name(kTypes[c[kType]]), kLayouts[c[kLayout]],
                     kBadIds[c[kBad]], kSlotKinds[c[kSlots]],
                     kPaths[c[kPath]] == CommitPath::kMapped ? "mapped" : "packed");
}

// Combinations in which every value of one dimension meets every value of every other.
inline std::vector<Combination> pairwise(std::mt19937& random) {
  using Pair = std::array<size_t, 4>;  // dimension, value, dimension, value
  std::set<Pair> open;
  for (size_t a = 0; a < kNumDimensions; ++a) {
    for (size_t b = a + 1; b < kNumDimensions; ++b) {
      for (size_t i = 0; i < kSizes[a]; ++i) {
        for (size_t j = 0; j < kSizes[b]; ++j) open.insert({a, i, b, j});
      }
    }
  }
  const auto covered = [&](const Combination& c) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < kNumDimensions; ++a) {
      for (size_t b = a + 1; b < kNumDimensions; ++b) {
        if (const Pair pair = {a, c[a], b, c[b]}; open.contains(pair)) pairs.push_back(pair);
      }
    }
    return pairs;
  };
  std::vector<Combination> result;
  while (!open.empty()) {
    Combination best = {};
    size_t most = 0;
    for (int attempt = 0; attempt < 30; ++attempt) {
      Combination c;
      for (size_t d = 0; d < kNumDimensions; ++d) c[d] = random() % kSizes[d];
      const Pair& wanted = *open.begin();
      c[wanted[0]] = wanted[1];
      c[wanted[2]] = wanted[3];
      if (const size_t count = covered(c).size(); count > most) {
        most = count;
        best = c;
      }
    }
    for (const Pair& pair : covered(best)) open.erase(pair);
    result.push_back(best);
  }
  return result;
}

// All sizes; the other dimensions take turns.
inline std::vector<Combination> full_product(std::mt19937& random) {
  std::vector<Combination> result;
  Combination c = {};
  for (c[kTokens] = 0; c[kTokens] < kSizes[kTokens]; ++c[kTokens]) {
    for (c[kTopK] = 0; c[kTopK] < kSizes[kTopK]; ++c[kTopK]) {
      for (c[kExperts] = 0; c[kExperts] < kSizes[kExperts]; ++c[kExperts]) {
        for (c[kLayers] = 0; c[kLayers] < kSizes[kLayers]; ++c[kLayers]) {
          for (size_t d = kType; d < kNumDimensions; ++d) c[d] = random() % kSizes[d];
          result.push_back(c);
        }
      }
    }
  }
  return result;
}

// One step of an engine: the ids of a batch, and whose they are.
struct Step {
  explicit Step(RouteSpec route_spec) : spec(std::move(route_spec)) {}
  RouteSpec spec;
  int64_t batch_rows = 0;
  int64_t num_columns = 0;
  Layout layout = Layout::whole();
  std::vector<int64_t> slots;
  std::vector<std::vector<int64_t>> ids;  // by layer, [row][column]
};

inline Layout layout_of(std::string_view kind, int64_t num_tokens) {
  if (kind == "graph_padded") return Layout::graph_padded(num_tokens, num_tokens + 5);
  if (kind == "dp_concat") return Layout::dp_concat({3, num_tokens, 2}, 1);
  if (kind == "dp_padded") return Layout::dp_padded({1, num_tokens}, num_tokens + 1, 1);
  if (kind == "tp_shard") return Layout::tp_shard(num_tokens, 2, 1);
  if (kind != "rows") return Layout::whole();
  std::vector<int64_t> index;
  for (int64_t i = num_tokens - 1; i >= 0; --i) {
    index.push_back(i);
    if (i % 7 == 0) index.push_back(-1);
  }
  return Layout::rows(std::move(index));
}

inline Step make_step(const Combination& c, std::mt19937& random) {
  RouteSpecFields fields;
  for (int32_t layer = 0; layer < kLayerCounts[c[kLayers]]; ++layer) fields.layers.push_back(2 * layer + 1);
  fields.top_k = kTopKs[c[kTopK]];
  fields.num_experts = kExpertCounts[c[kExperts]];
  fields.distinct = fields.top_k <= fields.num_experts;
  const std::string_view bad = kBadIds[c[kBad]];
  fields.shared_columns = bad == "shared" ? 2 : 0;
  Step step(must(RouteSpec::create(fields)));
  const int64_t num_tokens = kTokenCounts[c[kTokens]];
  step.layout = layout_of(kLayouts[c[kLayout]], num_tokens);
  step.batch_rows = must(step.layout.batch_rows(num_tokens));
  step.num_columns = fields.top_k + fields.shared_columns;
  for (int64_t token = 0; token < num_tokens; ++token) step.slots.push_back(token * 3 % (num_tokens + 7));
  std::ranges::sort(step.slots);
  step.slots.erase(std::unique(step.slots.begin(), step.slots.end()), step.slots.end());
  for (int64_t slot = num_tokens + 7; static_cast<int64_t>(step.slots.size()) < num_tokens; ++slot)
    step.slots.push_back(slot);
  std::ranges::shuffle(step.slots, random);
  if (kSlotKinds[c[kSlots]] != std::string_view("host")) {
    for (size_t i = 0; i < step.slots.size(); i += 5) step.slots[i] = -1;
  }
  for (int32_t layer = 0; layer < kLayerCounts[c[kLayers]]; ++layer) {
    auto& ids = step.ids.emplace_back();
    for (int64_t row = 0; row < step.batch_rows; ++row) {
      const auto start = static_cast<int64_t>(random() % static_cast<unsigned>(fields.num_experts));
      for (int64_t k = 0; k < fields.top_k; ++k) ids.push_back((start + k) % fields.num_experts);
      for (int32_t s = 0; s < fields.shared_columns; ++s) ids.push_back(fields.num_experts + s);
    }
  }
  for (int64_t i = 0; i < step.batch_rows && bad != "none"; i += 1 + static_cast<int64_t>(random() % 9)) {
    auto& ids = step.ids[random() % step.ids.size()];
    int64_t* row = ids.data() + i * step.num_columns;
    const auto column = static_cast<int64_t>(random() % static_cast<unsigned>(fields.top_k));
    if (bad == "padding") std::fill_n(row, fields.top_k, -1);
    if (bad == "too_large") row[column] = fields.num_experts + static_cast<int64_t>(random() % 100);
    if (bad == "repeated" && fields.top_k > 1) row[column] = row[(column + 1) % fields.top_k];
    if (bad == "shared") row[fields.top_k + 1] = column;
  }
  return step;
}

template <class T>
std::vector<std::byte> as_type(const std::vector<int64_t>& ids) {
  const std::vector<T> values(ids.begin(), ids.end());
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<std::byte> bytes_of(const std::vector<int64_t>& ids, IntType type) {
  if (type == IntType::kInt16) return as_type<int16_t>(ids);
  if (type == IntType::kInt32) return as_type<int32_t>(ids);
  return type == IntType::kInt64 ? as_type<int64_t>(ids) : as_type<uint32_t>(ids);
}

struct Outcome {
  CommitReport report;
  Routes routes;
};

class Runner {
 public:
  Runner(const Combination& combination, const Step& step) : combination_(combination), step_(step) {}

  Outcome on_cpu() {
    auto store = new_store();
    const auto recorder = must(Recorder::create(store, {.max_rows = max_rows()}));
    const IntType type = kTypes[combination_[kType]];
    for (size_t layer = 0; layer < step_.ids.size(); ++layer) {
      const auto bytes = bytes_of(step_.ids[layer], type);
      must(recorder->capture(step_.spec.layers()[layer], view(bytes.data())));
    }
    const Ticket ticket = must(recorder->commit(Slots(step_.slots), step_.layout, {.version = 3}));
    return outcome(*store, ticket);
  }

  // Half of the layers through capture, in two chunks, half straight into the lane.
  // `finish` waits for the default stream where nobody else does its work.
  Outcome on_device(const std::shared_ptr<Device>& device, const std::function<void()>& finish = [] {}) {
    auto store = new_store();
    DeviceArrays arrays(*device);
    RecorderOptions options = {.max_rows = max_rows()};
    options.cuda.emplace().path = kPaths[combination_[kPath]];
    const auto recorder = Recorder::Impl::wrap(must(make_recorder(store, options, device)));
    must(recorder->begin());
    for (size_t layer = 0; layer < step_.ids.size(); ++layer) {
      const int32_t global = step_.spec.layers()[layer];
      if (layer % 2 == 1 && writes_itself()) {
        const LayerBuffer buffer = must(recorder->layer_buffer(global));
        arrays.write(buffer.data, as_type<int16_t>(step_.ids[layer]));
        continue;
      }
      IdsView first = view(arrays.add(bytes_of(step_.ids[layer], kTypes[combination_[kType]])));
      IdsView second = first;
      first.num_rows = step_.batch_rows / 3;
      second.num_rows -= first.num_rows;
      second.data = static_cast<const std::byte*>(first.data) +
                    first.num_rows * first.row_stride * int_type_bytes(first.type);
      must(recorder->capture(global, second, 0, first.num_rows));
      must(recorder->capture(global, first));
    }
    const Ticket ticket = must(commit(*recorder, arrays));
    finish();
    if (!ticket.ready()) finish();  // the first look may ask for packed rows
    must(ticket.wait());
    return outcome(*store, ticket);
  }

 private:
  int64_t max_rows() const { return std::max<int64_t>(1, step_.batch_rows); }
  std::shared_ptr<Store> new_store() const {
    return must(Store::create(step_.spec, {.num_slots = 2 * kTokenCounts[combination_[kTokens]] + 16}));
  }
  // What the lane's int16 cannot show the same must be captured.
  bool writes_itself() const {
    const std::string_view bad = kBadIds[combination_[kBad]];
    return bad != "shared" && !(bad == "padding" && kTypes[combination_[kType]] == IntType::kUint32);
  }
  IdsView view(const std::byte* data) const {
    return {data, kTypes[combination_[kType]], step_.batch_rows, step_.num_columns, step_.num_columns, 1};
  }
  Result<Ticket> commit(Recorder& recorder, DeviceArrays& arrays) const {
    const std::string_view kind = kSlotKinds[combination_[kSlots]];
    const CommitOptions options = {.version = 3};
    if (!kind.starts_with("device")) return recorder.commit(Slots(step_.slots), step_.layout, options);
    const auto size = static_cast<int64_t>(step_.slots.size());
    DeviceSlots slots = {nullptr, IntType::kInt64, size};
    if (kind == "device_int32") slots.type = IntType::kInt32;
    slots.data =
        arrays.add(kind == "device_int32" ? as_type<int32_t>(step_.slots) : as_type<int64_t>(step_.slots));
    return recorder.commit(slots, step_.layout, options);
  }
  static Outcome outcome(const Store& store, const Ticket& ticket) {
    std::vector<int64_t> all(static_cast<size_t>(store.num_slots()));
    std::iota(all.begin(), all.end(), int64_t{0});
    return {ticket.report(), must(store.read(Slots(all)))};
  }

  const Combination& combination_;
  const Step& step_;
};

// What differs, or nothing.
inline std::string difference(const Outcome& device, const Outcome& cpu) {
  const CommitReport& a = device.report;
  const CommitReport& b = cpu.report;
  const auto counts = [](const CommitReport& r) {
    return fmt::format("tokens {} kept {} refused {} no_slot {} elsewhere {} by fault {}", r.num_tokens,
                       r.num_kept, r.num_refused, r.num_no_slot, r.num_elsewhere, r.num_by_fault);
  };
  const auto offender = [](const CommitReport& r) -> std::string {
    if (!r.first_offender) return "none";
    const Offender& o = *r.first_offender;
    // What the lane cannot hold the device cannot show.
    const bool shown = o.fault != RowFault::kShared && o.value >= 0 && o.value <= INT16_MAX;
    return fmt::format("layer {} row {} {} value {}", o.layer, o.row, row_fault_name(o.fault),
                       shown ? o.value : -1);
  };
  if (counts(a) != counts(b)) return fmt::format("device: {}; CPU: {}", counts(a), counts(b));
  const bool wide = b.first_offender && b.first_offender->value > INT16_MAX;
  if (!wide && offender(a) != offender(b))
    return fmt::format("first offender on the device: {}; CPU: {}", offender(a), offender(b));
  return device.routes == cpu.routes ? "" : "the rows differ";
}

}  // namespace moetape::inline v0::cuda
