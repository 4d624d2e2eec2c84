#include "plan_sources.h"

#include "sequences.h"

namespace moetape::bindings {

PlanSources::PlanSources(SourcesArg sources, OptionalArrayArg sequences) {
  if (const Tape* tape = ObjectArg<Tape>{{sources.object}}.get_if()) {
    tape_ = *tape;
    if (sequences.object.is_none()) return;
    const Integers<int64_t> list(sequences.object, "sequences");
    sequences_.assign(list.span().begin(), list.span().end());
    if (sequences_.empty()) raise(ErrorCode::kInvalidArgument, "sequences: expected None or some, got none");
    return;
  }
  if (!sequences.object.is_none()) {
    raise(ErrorCode::kInvalidArgument, "sequences: expected None, since they are those of a Tape, got some");
  }
  Items items(sources.object, "sources", "a Tape or a list of Routes");
  while (const nb::object source = items.next()) add(source, items.item_name().c_str());
  if (items.count() == 0) {
    raise(ErrorCode::kInvalidArgument, "sources: expected at least one Routes, got none");
  }
}

void PlanSources::add(const nb::object& source, const char* name) {
  RowsHandle* const rows = ObjectArg<RowsHandle>{{source}}.get_if();
  if (rows == nullptr) {
    routes_.push_back(ObjectArg<Routes>{{source}}.get(name));
    if (pulled_.empty()) return;
    pulled_.push_back(wrapped_.emplace_back(std::make_unique<RoutesSource>(routes_.back())).get());
    return;
  }
  if (pulled_.empty()) {
    for (const Routes& routes : routes_) {
      pulled_.push_back(wrapped_.emplace_back(std::make_unique<RoutesSource>(routes)).get());
    }
  }
  busy_.push_back(std::make_unique<Busy>(&rows->busy, name));
  owners_.push_back(source);
  pulled_.push_back(rows->source.get());
}

const RouteSpec& PlanSources::spec() const {
  if (tape_) return tape_->spec();
  return pulled_.empty() ? routes_.front().spec() : pulled_.front()->spec();
}

}  // namespace moetape::bindings
