#include "fuzz.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "moetape/buffer.h"

namespace moetape::fuzz {
namespace {

RouteSpec make_spec(RouteSpecFields fields) { return taken(RouteSpec::create(std::move(fields))); }

}  // namespace

void expect(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "expected otherwise: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

const std::vector<RouteSpec>& specs() {
  static const std::vector<RouteSpec> kSpecs = {
      make_spec({.layers = {1, 2, 4}, .top_k = 2, .num_experts = 8}),
      make_spec({.layers = {0, 1}, .top_k = 3, .num_experts = 300, .num_layers = 3}),
      make_spec({.layers = {0, 1}, .top_k = 2, .num_experts = 2, .distinct = false}),
  };
  return kSpecs;
}

}  // namespace moetape::fuzz

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION

#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>

namespace {

// What a run holds now, and the most that it held. Targets are of one thread.
int64_t held = 0;
int64_t most_held = 0;
bool counting = false;

void count(int64_t bytes) {
  if (!counting) return;
  held += bytes;
  most_held = std::max(most_held, held);
}

}  // namespace

// The linker sends the library's calls of mmap and munmap here.
extern "C" void* __real_mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset);
extern "C" int __real_munmap(void* address, size_t bytes);
extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  void* mapping = __real_mmap(address, bytes, protection, flags, file, offset);
  if (mapping != MAP_FAILED && (flags & MAP_ANONYMOUS) != 0) count(static_cast<int64_t>(bytes));
  return mapping;
}
extern "C" int __wrap_munmap(void* address, size_t bytes) {
  count(-static_cast<int64_t>(bytes));
  return __real_munmap(address, bytes);
}

namespace moetape::fuzz {

bool run(std::string_view input) {
  // Of any call: parsers' first buffers, blocks of rows, messages; and pages of 2 MiB around large results.
  constexpr int64_t kFixed = int64_t{6} << 20;
  static const bool kHooked = [] {
    buffer_pool_set_limit(0);
    specs();
    return __sanitizer_install_malloc_and_free_hooks(
               [](const volatile void*, size_t bytes) { count(static_cast<int64_t>(bytes)); },
               [](const volatile void* block) {
                 const void* plain = const_cast<const void*>(block);
                 if (block != nullptr) count(-static_cast<int64_t>(__sanitizer_get_allocated_size(plain)));
               }) > 0;
  }();
  expect(kHooked, "hooks for malloc");
  held = most_held = 0;
  counting = true;
  const bool taken = take(input);
  counting = false;
  const int64_t justified = kJustified * static_cast<int64_t>(input.size());
  expect(most_held <= 2 * justified + kFixed, "no more memory than the input justifies");
  return taken;
}

}  // namespace moetape::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moetape::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

#else

bool moetape::fuzz::run(std::string_view input) { return take(input); }

#endif
