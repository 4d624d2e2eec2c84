#include "moetape/diagnose.h"

#include "base/fail.h"
#include "base/memory_guard.h"
#include "diagnose/records.h"
#include "diagnose/search.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

Status check_specs(std::string_view what, const RouteSpec& expected, std::span<const Routes> records) {
  for (const Routes& routes : records) MOETAPE_TRY(check_same_spec(what, expected, routes.spec()));
  return {};
}

std::string move_text(const RowMove& move) {
  const auto positions = [&](int64_t first) {
    return move.num_rows == 1 ? fmt::format("position {}", first)
                              : fmt::format("positions {}-{}", first, first + move.num_rows - 1);
  };
  return fmt::format("  sequence {} {} of b: sequence {} {} of a\n", move.sequence, positions(move.position),
                     move.from_sequence, positions(move.from_position));
}

}  // namespace

std::string_view cause_name(CauseKind kind) {
  switch (kind) {
    case CauseKind::kRowsShifted:
      return "rows_shifted";
    case CauseKind::kRowsElsewhere:
      return "rows_elsewhere";
    case CauseKind::kRowsTransposed:
      return "rows_transposed";
    case CauseKind::kZigzag:
      return "zigzag";
    case CauseKind::kContiguous:
      return "contiguous";
    case CauseKind::kLayersShifted:
      return "layers_shifted";
    case CauseKind::kLayersElsewhere:
      return "layers_elsewhere";
    case CauseKind::kLayersConstant:
      return "layers_constant";
    case CauseKind::kExpertsMapped:
      return "experts_mapped";
    case CauseKind::kColumnsReordered:
      return "columns_reordered";
  }
  return "unknown";
}

std::string Diagnosis::text() const {
  std::string text = fmt::format("{} of {} rows in place", num_in_place, num_rows);
  if (num_rows_only_in_a + num_rows_only_in_b > 0) {
    text += fmt::format(", {} only in a, {} only in b", num_rows_only_in_a, num_rows_only_in_b);
  }
  if (num_rows_left_out > 0) text += fmt::format(", {} not looked at", num_rows_left_out);
  text += '\n';
  if (in_place()) return text + "nothing is out of place\n";
  for (const Cause& cause : causes) {
    text += fmt::format("{}: {}\n  explains {} of {} rows ({:.1f}%)", cause_name(cause.kind), cause.text,
                        cause.num_explained, cause.num_rows, 100 * cause.share());
    const bool some_layers = !cause.layers.empty() && cause.kind != CauseKind::kLayersConstant;
    if (some_layers) {
      text += fmt::format(", layers {}-{} of b", cause.layers.front().first, cause.layers.back().first);
    }
    text += '\n';
    for (const RowMove& move : cause.moves) text += move_text(move);
  }
  if (num_unexplained > 0) {
    text += fmt::format("{} rows are out of place: {} found\n", num_unexplained,
                        causes.empty() ? "no cause was" : "no other cause was");
  }
  if (!unexplained_layers.empty()) {
    text += fmt::format("layers {} differ where others agree: no cause was found\n",
                        fmt::join(unexplained_layers, ", "));
  }
  return text;
}

Result<Diagnosis> diagnose(std::span<const Routes> a, std::span<const Routes> b,
                           const DiagnoseOptions& options) {
  if (a.size() != b.size()) {
    return fail(ErrorCode::kWrongShape, "b: expected as many records as a, {}, got {}", a.size(), b.size());
  }
  if (a.empty()) return fail(ErrorCode::kInvalidArgument, "a, b: expected at least one record, got none");
  if (options.max_rows < 1) {
    return fail(ErrorCode::kInvalidArgument, "max_rows: expected 1 or more, got {}", options.max_rows);
  }
  MOETAPE_TRY(check_specs("a", a.front().spec(), a));
  MOETAPE_TRY(check_specs("b", b.front().spec(), b));
  if (a.front().spec().top_k() != b.front().spec().top_k()) {
    return fail(ErrorCode::kSpecMismatch, "b: expected top_k {} as in a, got {}", a.front().spec().top_k(),
                b.front().spec().top_k());
  }
  return guard_memory("diagnosis", [&]() -> Result<Diagnosis> {
    Records records = lay_out(a, b, options.max_rows);
    const int64_t num_left_out = records.num_left_out;
    Diagnosis diagnosis = Search(std::move(records)).run();
    diagnosis.num_rows_left_out = num_left_out;
    return diagnosis;
  });
}

}  // namespace moetape::inline v0
