// Tapes out of tapes.
#include <algorithm>
#include <iterator>

#include "base/fail.h"
#include "moetape/tape.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {

Status merge_tapes(std::span<const Tape> tapes, const std::string& path, const TapeOptions& options) {
  if (tapes.empty()) return fail(ErrorCode::kInvalidArgument, "tapes: expected one or more, got none");
  RouteSpec spec = tapes[0].spec();
  for (size_t i = 1; i < tapes.size(); ++i) {
    MOETAPE_TRY(check_same_spec(fmt::format("tapes[{}]", i), spec, tapes[i].spec()));
    spec = common_spec(spec, tapes[i].spec());
  }
  MOETAPE_ASSIGN(TapeWriter writer, TapeWriter::create(path, spec, options));
  for (const Tape& tape : tapes) {
    for (int64_t i = 0; i < tape.num_sequences(); ++i) MOETAPE_TRY(writer.append(tape, i));
  }
  return writer.finish();
}

Status slice_tape(const Tape& tape, const TapeSelection& selection, const std::string& path,
                  const TapeOptions& options) {
  if (selection.start < 0 || selection.end.value_or(selection.start) < selection.start) {
    return fail(ErrorCode::kOutOfRange, "positions: expected [start, end) from 0 on, got [{}, {})",
                selection.start, selection.end ? fmt::to_string(*selection.end) : "end");
  }
  const RouteSpec& whole = tape.spec();
  MOETAPE_ASSIGN(const RouteSpec spec,
                 selection.layers.empty() ? Result<RouteSpec>(whole) : whole.with_layers(selection.layers));
  MOETAPE_ASSIGN(TapeWriter writer, TapeWriter::create(path, spec, options));
  const auto append = [&](int64_t sequence) -> Status {
    MOETAPE_ASSIGN(const TapeEntry entry, tape.entry(sequence));
    const int64_t start = std::clamp(selection.start, entry.start, entry.end);
    const int64_t end = std::clamp(selection.end.value_or(entry.end), start, entry.end);
    return writer.append(tape, sequence, start, end);
  };
  if (selection.sequences) {
    for (const int64_t sequence : *selection.sequences) MOETAPE_TRY(append(sequence));
  } else {
    for (int64_t sequence = 0; sequence < tape.num_sequences(); ++sequence) MOETAPE_TRY(append(sequence));
  }
  return writer.finish();
}

}  // namespace moetape::inline v0
