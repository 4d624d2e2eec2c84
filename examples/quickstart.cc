// Record a step of an engine, read one request, and ship it.
#include <cstdio>
#include <string>
#include <vector>

#include "moetape/recorder.h"
#include "moetape/wire.h"

using namespace moetape;

static Status run() {
  RouteSpecFields fields;
  fields.layers = {1, 2, 3};  // layer 0 is dense
  fields.top_k = 2;
  fields.num_experts = 64;
  const auto spec = RouteSpec::create(fields);
  if (!spec) return Failure(spec.error());
  auto store = Store::create(*spec, {.num_slots = 1024});
  if (!store) return Failure(store.error());
  auto recorder = Recorder::create(*store, {.max_rows = 128});
  if (!recorder) return Failure(recorder.error());

  const std::vector<int32_t> topk_ids = {5, 9, 63, 0};  // two tokens, two experts each
  const IdsView view = {topk_ids.data(), IntType::kInt32, 2, 2, 2, 1};
  if (const auto begun = (*recorder)->begin(); !begun) return begun;
  for (const int32_t layer : spec->layers()) {  // the routers' hooks
    if (const auto captured = (*recorder)->capture(layer, view); !captured) return captured;
  }
  const std::vector<int64_t> slots = {40, 41};
  const auto ticket = (*recorder)->commit(Slots(slots), Layout::whole(), {.version = 7});
  if (!ticket) return Failure(ticket.error());

  const auto routes = (*store)->read(Slots(slots));  // before the slots are freed
  if (!routes) return Failure(routes.error());
  const auto text = encode(*routes, Dialect::kVllm);
  if (!text) return Failure(text.error());
  std::printf("%lld rows, %zu characters\n", static_cast<long long>(routes->num_rows()), text->size());
  return {};
}

int main() {
  const Status status = run();
  if (!status) std::printf("%s\n", status.error().message.c_str());
  return status ? 0 : 1;
}
