#include "moetape/canary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "diagnose/list_code.h"
#include "moetape/row_ids.h"

namespace moetape::inline v0 {

struct Canary::Data {
  RouteSpec spec;
  ListCode code;
  int64_t max_length;
  int64_t num_sequences;

  uint64_t number(const CanaryPlace& place, int32_t column) const {
    const auto token = static_cast<uint64_t>(place.sequence * max_length + place.position);
    return token * static_cast<uint64_t>(spec.num_moe_layers()) + static_cast<uint64_t>(column);
  }
  std::optional<CanaryPlace> place(uint64_t number) const {
    const auto num_layers = static_cast<uint64_t>(spec.num_moe_layers());
    const auto token = static_cast<int64_t>(number / num_layers);
    if (token / max_length >= num_sequences) return {};
    return CanaryPlace{token / max_length, token % max_length,
                       spec.layers()[static_cast<size_t>(number % num_layers)]};
  }
};

namespace {

constexpr int64_t kDefaultMaxLength = int64_t{1} << 20;
constexpr int64_t kDefaultSequences = 64;

template <class Int>
class Checker {
 public:
  Checker(const ListCode& code, const ListsView& view)
      : code_(code), view_(view), ids_(static_cast<size_t>(view.top_k)), scratch_(ids_), wanted_(ids_) {}

  std::optional<uint64_t> read(int64_t row, int64_t column) {
    const Int* list =
        static_cast<const Int*>(view_.data) + row * view_.strides[0] + column * view_.strides[1];
    for (size_t k = 0; k < ids_.size(); ++k) {
      const Int id = list[static_cast<int64_t>(k) * view_.strides[2]];
      ids_[k] = std::in_range<int32_t>(id) ? static_cast<int32_t>(id) : -1;
    }
    return code_.decode(ids_, scratch_);
  }
  // Whether the list read last has the ids in the order of the canary.
  bool in_order(uint64_t number) {
    code_.encode(number, wanted_);
    return ids_ == wanted_;
  }

 private:
  const ListCode& code_;
  const ListsView& view_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> scratch_;
  std::vector<int32_t> wanted_;
};

// Whether what was found `rows` behind the first of a run goes on as the run does.
bool continues(const CanaryRun& run, const CanaryPlace& wanted, const std::optional<CanaryPlace>& found) {
  const int64_t rows = run.num_rows;
  if (wanted.sequence != run.wanted.sequence || wanted.position != run.wanted.position + rows) return false;
  if (!found || !run.found) return !found && !run.found;
  return found->sequence == run.found->sequence && found->layer == run.found->layer &&
         found->position == run.found->position + rows;
}

void note(CanaryReport& report, std::optional<CanaryRun>& open, int64_t max_runs) {
  if (open && std::ssize(report.runs) < max_runs) report.runs.push_back(*open);
  open.reset();
}

// One view, its rows' places, and the global layers of its columns.
struct Job {
  const ListsView& ids;
  std::span<const int64_t> row_ids;
  std::span<const int32_t> layers;
  std::span<const int32_t> columns;  // of the spec
  int64_t max_runs;
};

template <class Int, class Data>
CanaryReport check_lists(const Data& data, const Job& job) {
  CanaryReport report;
  Checker<Int> checker(data.code, job.ids);
  for (size_t column = 0; column < job.layers.size(); ++column) {
    std::optional<CanaryRun> open;
    for (int64_t row = 0; row < job.ids.num_rows; ++row) {
      const int64_t row_id = job.row_ids[static_cast<size_t>(row)];
      if (row_id <= 0) {
        if (column == 0) ++report.num_padding;
        note(report, open, job.max_runs);
        continue;
      }
      const CanaryPlace wanted{(row_id >> 32) - 1, row_id & 0xFFFFFFFF, job.layers[column]};
      const std::optional<uint64_t> number = checker.read(row, static_cast<int64_t>(column));
      if (number == data.number(wanted, job.columns[column])) {
        ++(checker.in_order(*number) ? report.num_right : report.num_reordered);
        note(report, open, job.max_runs);
        continue;
      }
      const std::optional<CanaryPlace> found = number ? data.place(*number) : std::nullopt;
      ++(found ? report.num_misplaced : report.num_unreadable);
      if (open && continues(*open, wanted, found)) {
        ++open->num_rows;
        continue;
      }
      note(report, open, job.max_runs);
      open = CanaryRun{job.layers[column], row, 1, wanted, found};
      ++report.num_runs;
    }
    note(report, open, job.max_runs);
  }
  return report;
}

std::string place_text(const CanaryPlace& found, const CanaryPlace& wanted) {
  std::string text;
  if (found.sequence != wanted.sequence) text += fmt::format(" sequence {}", found.sequence);
  if (found.sequence != wanted.sequence || found.position != wanted.position) {
    text += fmt::format(" position {}", found.position);
  }
  if (found.layer != wanted.layer) text += fmt::format(" layer {}", found.layer);
  return text;
}

}  // namespace

const RouteSpec& Canary::spec() const { return data_->spec; }
int64_t Canary::max_length() const { return data_->max_length; }
int64_t Canary::num_sequences() const { return data_->num_sequences; }

Result<Canary> Canary::create(const RouteSpec& spec, std::optional<int64_t> max_length) {
  MOETAPE_ASSIGN(ListCode code, ListCode::create(spec.num_experts(), spec.top_k()));
  const auto num_tokens =
      static_cast<int64_t>(code.capacity() / static_cast<uint64_t>(spec.num_moe_layers()));
  if (max_length && (*max_length < 1 || *max_length > kMaxPositions)) {
    return fail(ErrorCode::kInvalidArgument, "max_length: expected 1 to {}, got {}", kMaxPositions,
                *max_length);
  }
  const auto fitting = static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(num_tokens / kDefaultSequences, 1))));
  const int64_t length = max_length.value_or(std::min(kDefaultMaxLength, fitting));
  if (num_tokens < length) {
    return fail(ErrorCode::kCapacity,
                "canary: lists of {} of {} experts carry {} tokens of {} layers, and no sequence of {}",
                spec.top_k(), spec.num_experts(), num_tokens, spec.num_moe_layers(), length);
  }
  return guard_memory("canary", [&]() -> Result<Canary> {
    return Canary(std::make_shared<Data>(
        Data{spec, std::move(code), length, std::min(num_tokens / length, kMaxSequences)}));
  });
}

Result<Routes> Canary::routes(int64_t sequence, int64_t length, int64_t start) const {
  const Data& data = *data_;
  if (sequence < 0 || length < 0 || start < 0) {
    return fail(ErrorCode::kOutOfRange,
                "canary: expected a sequence, length and start of 0 or more, got {}, {} and {}", sequence,
                length, start);
  }
  if (sequence >= data.num_sequences || start > data.max_length || length > data.max_length - start) {
    return fail(ErrorCode::kCapacity,
                "canary: lists of {} of {} experts and {} layers carry {} sequences of {} positions, got "
                "sequence {} of {} rows at {}",
                data.spec.top_k(), data.spec.num_experts(), data.spec.num_moe_layers(), data.num_sequences,
                data.max_length, sequence, length, start);
  }
  return guard_memory("canary", [&]() -> Result<Routes> {
    MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(data.spec, start, length));
    std::vector<int32_t> ids(static_cast<size_t>(data.spec.top_k()));
    std::byte* out = builder.ids();
    for (int64_t row = 0; row < length; ++row) {
      builder.reasons()[row] = Reason::kValid;
      for (int32_t column = 0; column < data.spec.num_moe_layers(); ++column) {
        data.code.encode(data.number({sequence, start + row}, column), ids);
        for (const int32_t id : ids) {  // ids are kept in the byte order of the machine
          const auto narrow = static_cast<uint16_t>(id);
          const auto byte = static_cast<uint8_t>(id);
          const bool wide = data.spec.id_bytes() == 2;
          std::memcpy(out, wide ? static_cast<const void*>(&narrow) : &byte, wide ? 2 : 1);
          out += data.spec.id_bytes();
        }
      }
    }
    return std::move(builder).finish();
  });
}

std::optional<CanaryPlace> Canary::decode(std::span<const int32_t> ids) const {
  if (std::ssize(ids) != data_->spec.top_k()) return {};
  std::vector<int32_t> scratch(ids.size());
  const std::optional<uint64_t> number = data_->code.decode(ids, scratch);
  return number ? data_->place(*number) : std::nullopt;
}

Result<CanaryReport> Canary::check(const ListsView& ids, std::span<const int64_t> row_ids,
                                   std::span<const int32_t> layers, int64_t max_runs) const {
  const Data& data = *data_;
  if (layers.empty()) layers = data.spec.layers();
  if (ids.num_layers != std::ssize(layers) || ids.top_k != data.spec.top_k()) {
    return fail(ErrorCode::kWrongShape, "ids: expected [rows, {}, {}], got [{}, {}, {}]", layers.size(),
                data.spec.top_k(), ids.num_rows, ids.num_layers, ids.top_k);
  }
  if (ids.num_rows != std::ssize(row_ids)) {
    return fail(ErrorCode::kWrongShape, "row_ids: expected one for each of {} rows, got {}", ids.num_rows,
                row_ids.size());
  }
  for (size_t row = 0; row < row_ids.size(); ++row) {
    const int64_t id = row_ids[row];
    if (id == 0 || id == -1) continue;
    if (id > 0 && id >> 32 >= 1 && (id >> 32) <= data.num_sequences && (id & 0xFFFFFFFF) < data.max_length) {
      continue;
    }
    return fail(ErrorCode::kOutOfRange,
                "row_ids: row {}: expected (sequence + 1) << 32 | position of {} sequences of {} positions, "
                "got {}",
                row, data.num_sequences, data.max_length, id);
  }
  return guard_memory("canary", [&]() -> Result<CanaryReport> {
    std::vector<int32_t> columns;
    for (const int32_t layer : layers) {
      MOETAPE_ASSIGN(const int32_t column, data.spec.column_of(layer));
      columns.push_back(column);
    }
    const Job job{ids, row_ids, layers, columns, std::max<int64_t>(max_runs, 0)};
    switch (ids.type) {
      case IntType::kInt8:
        return check_lists<int8_t>(data, job);
      case IntType::kUint8:
        return check_lists<uint8_t>(data, job);
      case IntType::kInt16:
        return check_lists<int16_t>(data, job);
      case IntType::kUint16:
        return check_lists<uint16_t>(data, job);
      case IntType::kInt32:
        return check_lists<int32_t>(data, job);
      case IntType::kUint32:
        return check_lists<uint32_t>(data, job);
      case IntType::kInt64:
        return check_lists<int64_t>(data, job);
      case IntType::kUint64:
        return check_lists<uint64_t>(data, job);
    }
    return fail(ErrorCode::kWrongType, "ids: expected a type of integers, got {}",
                static_cast<int>(ids.type));
  });
}

std::string CanaryReport::text() const {
  std::string text = fmt::format("{} lists right, {} reordered, {} misplaced, {} unreadable\n", num_right,
                                 num_reordered, num_misplaced, num_unreadable);
  for (const CanaryRun& run : runs) {
    const bool many = run.num_rows > 1;
    text += fmt::format("layer {} {}: {} sequence {} position {}, got{}\n", run.layer,
                        many ? fmt::format("rows {}-{}", run.first_row, run.first_row + run.num_rows - 1)
                             : fmt::format("row {}", run.first_row),
                        many ? "want" : "wants", run.wanted.sequence, run.wanted.position,
                        run.found ? place_text(*run.found, run.wanted) : " no list of the canary");
  }
  if (num_runs > std::ssize(runs)) text += fmt::format("and {} more\n", num_runs - std::ssize(runs));
  return text;
}

Result<Routes> canary(const RouteSpec& spec, int64_t sequence, int64_t length) {
  MOETAPE_ASSIGN(const Canary canary, Canary::create(spec));
  return canary.routes(sequence, length);
}

}  // namespace moetape::inline v0
