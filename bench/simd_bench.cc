// Room simd on one thread, per instruction set. Shape of DeepSeek-V3: rows of 58 layers x 8 ids.
#include "simd/targets.h"  // before Highway
//
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/checked.h"
#include "hwy/highway.h"
#include "memory/segment.h"
#include "moetape/buffer.h"
#include "simd/base64.h"
#include "simd/bitpack.h"
#include "simd/copy.h"
#include "simd/narrow.h"
#include "simd/widen.h"

namespace moetape::inline v0::simd {
namespace {

constexpr int64_t kNumLayers = 58;
constexpr int64_t kTopK = 8;
constexpr int64_t kRowBytes = kNumLayers * kTopK;
constexpr int64_t kNumSlots = 524'288;
constexpr int64_t kPage = 64;
constexpr int64_t kBlock = 128;  // slots between two fences of a commit

void use_target(int64_t target) { hwy::SetSupportedTargetsForTest(target); }

Segment touched(int64_t bytes) { return *Segment::allocate("bench", bytes, {.populate = true}); }

template <class T>
std::vector<T> router_ids(int64_t num_rows, int64_t num_experts, int64_t top_k) {
  std::mt19937_64 random(1);
  std::vector<T> deck(static_cast<size_t>(num_experts));
  std::iota(deck.begin(), deck.end(), T{0});
  std::vector<T> ids;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      std::swap(deck[static_cast<size_t>(k)], deck[k + random() % static_cast<size_t>(num_experts - k)]);
    }
    ids.insert(ids.end(), deck.begin(), deck.begin() + top_k);
  }
  return ids;
}

template <class T>
constexpr IntType kType = sizeof(T) == 2   ? IntType::kInt16
                          : sizeof(T) == 4 ? IntType::kInt32
                                           : IntType::kInt64;

// All 58 captures of a step into a token-major lane.
template <class T>
void narrow_step(benchmark::State& state, int64_t target, int64_t num_experts, int64_t top_k) {
  use_target(target);
  const int64_t num_rows = state.range(0);
  const auto ids = router_ids<T>(num_rows, num_experts, top_k);
  const int64_t list_bytes = top_k * id_bytes(num_experts);
  const int64_t stride = kNumLayers * list_bytes;
  const Segment lane = touched(num_rows * stride);
  std::vector<uint8_t> faults(static_cast<size_t>(num_rows));
  NarrowJob job;
  job.ids = {ids.data(), kType<T>, num_rows, top_k, top_k, 1};
  job.top_k = static_cast<int>(top_k);
  job.num_experts = static_cast<int>(num_experts);
  job.out_stride = stride;
  job.faults = faults.data();
  const auto step = [&] {
    for (int64_t layer = 0; layer < kNumLayers; ++layer) {
      job.out = lane.data() + layer * list_bytes;
      require(!narrow(job), "fault");
    }
  };
  step();
  for (int64_t i = 0; i < num_rows * top_k; ++i) {
    const std::byte* place = lane.data() + i / top_k * stride + i % top_k * id_bytes(num_experts);
    require(static_cast<T>(std::to_integer<int>(*place)) == (ids[static_cast<size_t>(i)] & 0xFF), "narrow");
  }
  for (auto _ : state) step();
  state.SetBytesProcessed(state.iterations() * num_rows * kNumLayers * top_k * int64_t{sizeof(T)});
  state.counters["ns_per_list"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_rows * kNumLayers) * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// A store, and slots of requests in it: a new set for every round, so that nothing is warm by chance.
class Slots {
 public:
  Slots(int64_t count, bool paged) : count_(count), paged_(paged), random_(7), pages_(kNumSlots / kPage) {
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), random_);
  }

  std::vector<int64_t> next() {
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < count_; ++i) {
      if (i % (paged_ ? kPage : 1) == 0) place_ = (place_ + 1) % pages_.size();
      slots.push_back(pages_[place_] * kPage + (paged_ ? i % kPage : i * 7 % kPage));
    }
    return slots;
  }

 private:
  int64_t count_;
  bool paged_;
  std::mt19937_64 random_;
  std::vector<int64_t> pages_;
  size_t place_ = 0;
};

std::vector<std::vector<int64_t>> many_slots(int64_t count, bool paged) {
  Slots slots(count, paged);
  std::vector<std::vector<int64_t>> sets;
  for (int64_t i = 0; i < std::clamp<int64_t>(kNumSlots / count, 4, 512); ++i) sets.push_back(slots.next());
  return sets;
}

const Segment& rows_of_store() {
  static const Segment& store = *new Segment(touched(kNumSlots * kRowBytes));
  return store;
}

void scatter(benchmark::State& state, int64_t target, bool paged) {
  use_target(target);
  const int64_t count = state.range(0);
  const auto sets = many_slots(count, paged);
  const Segment lane = touched(count * kRowBytes);
  for (int64_t i = 0; i < lane.size(); ++i) lane.data()[i] = static_cast<std::byte>(i % 251);
  std::byte* const store = rows_of_store().data();
  const auto place = [&](const std::vector<int64_t>& slots) {
    for (int64_t first = 0; first < count; first += kBlock) {
      scatter_rows(store, kRowBytes, slots.data() + first, std::min(kBlock, count - first),
                   lane.data() + first * kRowBytes, kRowBytes, kRowBytes);
      store_fence();
    }
  };
  place(sets[0]);
  for (int64_t i = 0; i < count; ++i) {
    require(std::memcmp(store + sets[0][static_cast<size_t>(i)] * kRowBytes, lane.data() + i * kRowBytes,
                        kRowBytes) == 0,
            "scatter");
  }
  size_t round = 0;
  for (auto _ : state) place(sets[round++ % sets.size()]);
  state.SetBytesProcessed(state.iterations() * count * kRowBytes);
}

void gather(benchmark::State& state, int64_t target, bool paged) {
  use_target(target);
  const int64_t count = state.range(0);
  const auto sets = many_slots(count, paged);
  std::byte* const store = rows_of_store().data();
  for (int64_t i = 0; i < rows_of_store().size(); ++i) store[i] = static_cast<std::byte>(i % 251);
  Buffer out = *Buffer::allocate(count * kRowBytes);
  const auto take = [&](const std::vector<int64_t>& slots) {
    for (int64_t first = 0; first < count; first += kBlock) {
      gather_rows(out.mutable_data() + first * kRowBytes, kRowBytes, kRowBytes, store, kRowBytes,
                  slots.data() + first, std::min(kBlock, count - first));
    }
  };
  take(sets[0]);
  for (int64_t i = 0; i < count; ++i) {
    require(std::memcmp(store + sets[0][static_cast<size_t>(i)] * kRowBytes, out.data() + i * kRowBytes,
                        kRowBytes) == 0,
            "gather");
  }
  size_t round = 0;
  for (auto _ : state) take(sets[round++ % sets.size()]);
  state.SetBytesProcessed(state.iterations() * count * kRowBytes);
}

// The bar: the same rows by memcpy, row by row or run by run, without any promise.
void gather_by_memcpy(benchmark::State& state, bool paged, bool in) {
  const int64_t count = state.range(0);
  const auto sets = many_slots(count, paged);
  std::byte* const store = rows_of_store().data();
  const Segment out = touched(count * kRowBytes);
  const int64_t at_once = paged ? kPage : 1;
  size_t round = 0;
  for (auto _ : state) {
    const auto& slots = sets[round++ % sets.size()];
    for (int64_t i = 0; i < count; i += at_once) {
      std::byte* there = store + slots[static_cast<size_t>(i)] * kRowBytes;
      std::byte* here = out.data() + i * kRowBytes;
      std::memcpy(in ? there : here, in ? here : there,
                  static_cast<size_t>(std::min(at_once, count - i) * kRowBytes));
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * count * kRowBytes);
}

std::vector<std::byte> random_bytes(int64_t count) {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void encode(benchmark::State& state, int64_t target) {
  use_target(target);
  const auto bytes = random_bytes(state.range(0));
  std::vector<char> text(base64_size(bytes.size()));
  for (auto _ : state) base64_encode(text.data(), bytes.data(), bytes.size());
  std::vector<std::byte> back(bytes.size());
  require(base64_decode(back.data(), text.data(), text.size()).bad_position == -1 && back == bytes, "base64");
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void decode(benchmark::State& state, int64_t target) {
  use_target(target);
  const auto bytes = random_bytes(state.range(0));
  std::vector<char> text(base64_size(bytes.size()));
  base64_encode(text.data(), bytes.data(), bytes.size());
  std::vector<std::byte> back(bytes.size());
  for (auto _ : state) benchmark::DoNotOptimize(base64_decode(back.data(), text.data(), text.size()));
  require(back == bytes, "base64");
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

// The bar for base64 beyond the caches: as many bytes read and as many written, by memcpy alone. Of each four
// bytes on the text's side, three are copied and one comes from the cache (or goes to it).
void move_like_base64(benchmark::State& state, bool to_text) {
  constexpr size_t kBytes = 12 << 10;
  constexpr size_t kChars = kBytes / 3 * 4;
  const auto bytes = random_bytes(state.range(0));
  const size_t num_blocks = bytes.size() / kBytes;
  std::vector<std::byte> text(num_blocks * kChars);
  std::vector<std::byte> back(bytes.size());
  std::vector<std::byte> warm(kChars - kBytes);
  for (auto _ : state) {
    for (size_t block = 0; block < num_blocks; ++block) {
      std::byte* const chars = text.data() + block * kChars;
      if (to_text) {
        std::memcpy(chars, bytes.data() + block * kBytes, kBytes);
        std::memcpy(chars + kBytes, warm.data(), warm.size());
      } else {
        std::memcpy(back.data() + block * kBytes, chars, kBytes);
        std::memcpy(warm.data(), chars + kBytes, warm.size());
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void widen_ids(benchmark::State& state, int64_t target, IntType type) {
  use_target(target);
  const auto ids = random_bytes(state.range(0));
  std::vector<std::byte> out(ids.size() * static_cast<size_t>(int_type_bytes(type)));
  for (auto _ : state) {
    widen(out.data(), type, ids.data(), 1, state.range(0));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(out.size()));
}

// Bytes per second are those of the ids as they are in memory.
void pack_ids(benchmark::State& state, int64_t target, int64_t num_experts, bool back) {
  use_target(target);
  const int bits = id_bits(num_experts);
  const int num_bytes = id_bytes(num_experts);
  const int64_t num_rows = state.range(0) / (kRowBytes * num_bytes);
  std::vector<std::byte> ids(static_cast<size_t>(num_rows * kRowBytes * num_bytes));
  std::mt19937_64 random(5);
  for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(num_bytes)) {
    const auto id = static_cast<uint16_t>(random() % static_cast<uint64_t>(num_experts));
    std::memcpy(ids.data() + i, &id, static_cast<size_t>(num_bytes));
  }
  std::vector<std::byte> packed(static_cast<size_t>(num_rows * packed_row_bytes(kRowBytes, bits)));
  std::vector<std::byte> unpacked(ids.size());
  bitpack(packed.data(), ids.data(), num_bytes, bits, kRowBytes, num_rows);
  bitunpack(unpacked.data(), packed.data(), num_bytes, bits, kRowBytes, num_rows);
  require(unpacked == ids, "bitpack");
  for (auto _ : state) {
    if (back) {
      bitunpack(unpacked.data(), packed.data(), num_bytes, bits, kRowBytes, num_rows);
    } else {
      bitpack(packed.data(), ids.data(), num_bytes, bits, kRowBytes, num_rows);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * std::ssize(ids));
}

// What a request's result costs: a block from the pool against fresh memory.
void fresh_result(benchmark::State& state, bool pooled) {
  const int64_t bytes = 32'768 * kRowBytes;
  for (auto _ : state) {
    if (pooled) {
      Buffer buffer = *Buffer::allocate(bytes);
      std::memset(buffer.mutable_data(), 1, static_cast<size_t>(bytes));
    } else {
      const Segment segment = *Segment::allocate("bench", bytes);
      std::memset(segment.data(), 1, static_cast<size_t>(bytes));
    }
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void register_for(int64_t target) {
  const std::string name = hwy::TargetName(target);
  const auto add = [&](const std::string& what, auto function) {
    return benchmark::RegisterBenchmark((what + "/" + name).c_str(), function);
  };
  add("narrow_int16_u8_k8", [=](auto& s) { narrow_step<int16_t>(s, target, 256, 8); })->Arg(256)->Arg(8192);
  add("narrow_int32_u8_k8", [=](auto& s) { narrow_step<int32_t>(s, target, 256, 8); })
      ->Arg(32)
      ->Arg(256)
      ->Arg(8192);
  add("narrow_int64_u8_k8", [=](auto& s) { narrow_step<int64_t>(s, target, 256, 8); })->Arg(256)->Arg(8192);
  add("narrow_int32_u16_k8", [=](auto& s) { narrow_step<int32_t>(s, target, 384, 8); })->Arg(8192);
  add("narrow_int32_u16_k10", [=](auto& s) { narrow_step<int32_t>(s, target, 512, 10); })
      ->Arg(256)
      ->Arg(8192);
  add("narrow_int32_u16_k22", [=](auto& s) { narrow_step<int32_t>(s, target, 512, 22); })
      ->Arg(256)
      ->Arg(8192);
  add("narrow_int32_u8_k6", [=](auto& s) { narrow_step<int32_t>(s, target, 64, 6); })->Arg(8192);
  for (const bool paged : {true, false}) {
    const std::string slots = paged ? "_pages" : "_random";
    add("scatter" + slots, [=](auto& s) { scatter(s, target, paged); })->Arg(256)->Arg(8192);
    add("gather" + slots, [=](auto& s) { gather(s, target, paged); })->Arg(256)->Arg(8192)->Arg(32'768);
  }
  add("base64_encode", [=](auto& s) { encode(s, target); })->Arg(48 << 10)->Arg(192 << 20);
  add("base64_decode", [=](auto& s) { decode(s, target); })->Arg(48 << 10)->Arg(192 << 20);
  for (const int64_t experts : {64, 128, 384, 512}) {
    const std::string kind = std::string("_").append(std::to_string(experts));
    add("bitpack" + kind, [=](auto& s) { pack_ids(s, target, experts, false); })
        ->Arg(256 << 10)
        ->Arg(64 << 20);
    add("bitunpack" + kind, [=](auto& s) { pack_ids(s, target, experts, true); })
        ->Arg(256 << 10)
        ->Arg(64 << 20);
  }
  add("widen_int32", [=](auto& s) { widen_ids(s, target, IntType::kInt32); })->Arg(32 << 10);
  add("widen_int64", [=](auto& s) { widen_ids(s, target, IntType::kInt64); })->Arg(32 << 10);
}

void register_all() {
  for (const bool to_text : {true, false}) {
    benchmark::RegisterBenchmark(to_text ? "base64_encode/memcpy" : "base64_decode/memcpy", [=](auto& s) {
      move_like_base64(s, to_text);
    })->Arg(192 << 20);
  }
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) register_for(target);
  for (const bool paged : {true, false}) {
    const std::string slots = paged ? "_pages" : "_random";
    benchmark::RegisterBenchmark(("scatter" + slots + "/memcpy").c_str(),
                                 [=](auto& s) { gather_by_memcpy(s, paged, true); })
        ->Arg(256)
        ->Arg(8192);
    benchmark::RegisterBenchmark(("gather" + slots + "/memcpy").c_str(),
                                 [=](auto& s) { gather_by_memcpy(s, paged, false); })
        ->Arg(256)
        ->Arg(8192)
        ->Arg(32'768);
  }
  benchmark::RegisterBenchmark("result/pooled", [](auto& s) { fresh_result(s, true); });
  benchmark::RegisterBenchmark("result/fresh", [](auto& s) { fresh_result(s, false); });
}

[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace moetape::inline v0::simd
