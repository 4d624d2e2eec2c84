// Records two tokens, ships them and gets them back, with nothing but the installed library.
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "moetape/recorder.h"
#include "moetape/store.h"
#include "moetape/wire.h"

namespace {

moetape::Status run() {
  auto spec = moetape::RouteSpec::create({.layers = {1}, .top_k = 2, .num_experts = 8});
  if (!spec) return moetape::Failure(spec.error());
  auto store = moetape::Store::create(*spec, {.num_slots = 16});
  if (!store) return moetape::Failure(store.error());
  auto recorder = moetape::Recorder::create(*store, {.max_rows = 4});
  if (!recorder) return moetape::Failure(recorder.error());

  const std::array<int32_t, 4> ids = {3, 7, 0, 5};
  const std::array<int64_t, 2> places = {4, 9};
  const moetape::Slots slots{std::span<const int64_t>(places)};
  auto captured = (*recorder)->capture(1, {ids.data(), moetape::IntType::kInt32, 2, 2, 2});
  if (!captured) return captured;
  auto ticket = (*recorder)->commit(slots);
  if (!ticket) return moetape::Failure(ticket.error());

  auto routes = (*store)->read(slots);
  if (!routes) return moetape::Failure(routes.error());
  auto text = moetape::encode(*routes, moetape::Dialect::kSglang);
  if (!text) return moetape::Failure(text.error());
  auto back = moetape::decode(*text, moetape::Dialect::kSglang, *spec);
  if (!back) return moetape::Failure(back.error());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (static_cast<int32_t>(back->ids()[i]) != ids[i]) {
      return moetape::Failure(moetape::Error{moetape::ErrorCode::kConflict, "ids came back changed"});
    }
  }
  return {};
}

}  // namespace

int main() {
  const moetape::Status status = run();
  std::puts(status ? "consumer: ok" : status.error().message.c_str());
  return status ? 0 : 1;
}
