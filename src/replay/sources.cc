#include "replay/sources.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

Result<std::vector<int32_t>> columns_of(std::span<const int32_t> layers, const RouteSpec& spec) {
  std::vector<int32_t> columns;
  for (const int32_t layer : layers) {
    MOETAPE_ASSIGN(const int32_t column, spec.column_of(layer));
    columns.push_back(column);
  }
  return columns;
}

// What a sequence of a tape has of these positions.
Result<Routes> read_part(const Tape& tape, int64_t sequence, const RowSpan& need,
                         std::span<const int32_t> layers, const RouteSpec& spec) {
  MOETAPE_ASSIGN(const TapeEntry entry, tape.entry(sequence));
  const int64_t start = std::max(need.start, entry.start);
  const int64_t end = std::min(need.end, entry.end);
  return start < end ? tape.read(sequence, start, end, layers) : Routes::empty(spec, need.start);
}

// Its index: the last that does not begin behind the position.
int64_t need_that_holds(std::span<const RowSpan> needs, int64_t sequence, int64_t position) {
  const auto behind =
      std::ranges::upper_bound(needs, std::pair(sequence, position), {},
                               [](const RowSpan& need) { return std::pair(need.sequence, need.start); });
  return behind - needs.begin() - 1;
}

}  // namespace

// Pulls the plan's layers only, where all sources can.
Status Plan::take_layers(Sources& sources, std::span<const int32_t> layers) {
  std::vector<std::unique_ptr<RowSource>> parts;
  std::vector<RowSource*> pulled;
  for (const RowSource* source : sources.pulled) {
    MOETAPE_ASSIGN(std::unique_ptr<RowSource> part, source->of_layers(layers));
    if (part == nullptr) return {};
    parts.push_back(std::move(part));
    pulled.push_back(parts.back().get());
  }
  MOETAPE_ASSIGN(sources.columns, columns_of(layers, parts.front()->spec()));
  sources.spec = parts.front()->spec();
  sources.owned_rows = std::move(parts);
  sources.pulled = std::move(pulled);
  return {};
}

Result<Plan::Sources> Plan::sources_of(std::span<const RouteSpec> specs) const {
  if (specs.empty()) return fail(ErrorCode::kInvalidArgument, "sources: expected one or more, got none");
  for (size_t i = 1; i < specs.size(); ++i) {
    MOETAPE_TRY(check_same_spec(fmt::format("sources[{}]", i), specs.front(), specs[i]));
  }
  MOETAPE_ASSIGN(std::vector<int32_t> columns,
                 columns_of(layers_ ? *layers_ : specs.front().layers(), specs.front()));
  std::vector<int64_t> of_run;
  of_run.reserve(runs_.size());
  for (const Run& run : runs_) {
    if (run.sequence >= std::ssize(specs)) {
      return fail(ErrorCode::kOutOfRange, "sources: row {} is of sequence {}, expected one of {} sources",
                  run.row, run.sequence, specs.size());
    }
    of_run.push_back(run.sequence);
  }
  return Sources{specs.front(), std::move(columns), std::move(of_run)};
}

Result<Plan::Sources> Plan::find_sources(std::span<const Routes> sources) const {
  std::vector<RouteSpec> specs;
  for (const Routes& source : sources) specs.push_back(source.spec());
  MOETAPE_ASSIGN(Sources found, sources_of(specs));
  found.routes = sources;
  return found;
}

Result<Plan::Sources> Plan::find_sources(std::span<RowSource* const> sources) const {
  std::vector<RouteSpec> specs;
  for (const RowSource* source : sources) {
    if (source == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "sources[{}]: expected rows, got null", specs.size());
    }
    specs.push_back(source->spec());
  }
  MOETAPE_ASSIGN(Sources found, sources_of(specs));
  found.pulled.assign(sources.begin(), sources.end());
  if (layers_) MOETAPE_TRY(take_layers(found, *layers_));
  return found;
}

Result<Plan::Sources> Plan::read_sources(const Tape& tape, std::span<const int64_t> sequences) const {
  const std::span<const int32_t> wanted = layers_ ? *layers_ : tape.spec().layers();
  // A stage without layers asks only what its rows are used for, which any layer tells.
  const std::span<const int32_t> read = wanted.empty() ? tape.spec().layers().first(1) : wanted;
  std::vector<int32_t> layers(read.begin(), read.end());
  std::ranges::sort(layers);
  MOETAPE_ASSIGN(RouteSpec spec, tape.spec().with_layers(layers));
  MOETAPE_ASSIGN(std::vector<int32_t> columns, columns_of(wanted, spec));

  const std::vector<RowSpan> needs = this->needs();
  std::vector<Routes> owned;
  for (const RowSpan& need : needs) {
    if (!sequences.empty() && need.sequence >= std::ssize(sequences)) {
      return fail(ErrorCode::kOutOfRange, "sequences: expected one for sequence {} of the plan, got {}",
                  need.sequence, sequences.size());
    }
    const int64_t sequence =
        sequences.empty() ? need.sequence : sequences[static_cast<size_t>(need.sequence)];
    MOETAPE_ASSIGN(Routes part, read_part(tape, sequence, need, layers, spec));
    owned.push_back(std::move(part));
  }
  Sources found{std::move(spec), std::move(columns), {}, std::move(owned)};
  found.routes = found.owned;
  found.of_run.reserve(runs_.size());
  for (const Run& run : runs_) found.of_run.push_back(need_that_holds(needs, run.sequence, run.start));
  return found;
}

}  // namespace moetape::inline v0
