#include "tape/sequence_reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "simd/narrow.h"

namespace moetape::inline v0::tape {
namespace {

Result<RouteSpec> spec_of(const RouteSpec& spec, std::span<const int32_t> layers) {
  if (layers.empty() || std::ranges::equal(layers, spec.layers())) return spec;
  return spec.with_layers({layers.begin(), layers.end()});
}

}  // namespace

Result<SequenceReader> SequenceReader::create(std::shared_ptr<const FileReader> file, int64_t sequence,
                                              std::span<const int32_t> layers) {
  const RouteSpec& whole = file->description().spec;
  MOETAPE_ASSIGN(RouteSpec spec, spec_of(whole, layers));
  MOETAPE_ASSIGN(std::shared_ptr<const Facts> facts, file->facts(sequence));
  std::vector<int32_t> columns;
  for (const int32_t layer : spec.layers()) {
    MOETAPE_ASSIGN(const int32_t column, whole.column_of(layer));
    columns.push_back(column);
  }
  SequenceReader reader(std::move(file), sequence, std::move(spec), std::move(facts));
  const std::span<const IdGroup> groups = reader.file_->groups();
  for (int64_t group = 0; group < std::ssize(groups); ++group) {
    std::vector<IdGroup::Move> moves = groups[static_cast<size_t>(group)].moves_to(columns);
    if (!moves.empty()) reader.parts_.push_back({group, std::move(moves)});
  }
  return reader;
}

// What is asked for stands in the file as it is.
bool SequenceReader::can_lend() const {
  if (parts_.size() != 1 || parts_[0].moves.size() != 1) return false;
  const IdGroup& group = file_->groups()[static_cast<size_t>(parts_[0].group)];
  const std::byte* rows = file_->rows(*facts_, parts_[0].group, 0);
  return group.stores_ids_as_they_are() && group.stored_row_bytes() == spec_.row_bytes() &&
         parts_[0].moves[0].bytes == spec_.row_bytes() &&
         reinterpret_cast<uintptr_t>(rows) % static_cast<uintptr_t>(spec_.id_bytes()) == 0;
}

Result<Routes> SequenceReader::read(int64_t first, int64_t end) {
  return guard_memory(file_->name(), [&]() -> Result<Routes> {
    const int64_t count = end - first;
    const bool lends = can_lend();
    Buffer lent;
    if (lends) {
      lent = Buffer::wrap(file_->rows(*facts_, parts_[0].group, first), count * spec_.row_bytes(),
                          file_->owner());
    }
    MOETAPE_ASSIGN(RoutesBuilder builder,
                   lends ? RoutesBuilder::wrap(spec_, facts_->start + first, count, std::move(lent))
                         : RoutesBuilder::create(spec_, facts_->start + first, count));
    if (lends) {
      MOETAPE_TRY(check_lent(first, end));
      fill_reasons(first, end, builder.reasons());
    } else {
      MOETAPE_TRY(pull(first, end, builder.ids(), builder.reasons()));
    }
    MOETAPE_TRY(add_facts(builder, first, end));
    return std::move(builder).finish();
  });
}

// Block by block, so that what is looked at twice is still in the cache.
Status SequenceReader::check_lent(int64_t first, int64_t end) {
  const int64_t block_rows = file_->description().block_rows;
  for (int64_t row = first; row < end;) {
    const int64_t block_end = std::min(end, (row / block_rows + 1) * block_rows);
    MOETAPE_TRY(check_blocks(parts_[0], row, block_end));
    MOETAPE_TRY(check_rows(row, block_end, file_->rows(*facts_, parts_[0].group, row)));
    row = block_end;
  }
  return {};
}

Status SequenceReader::pull(int64_t first, int64_t end, std::byte* rows, Reason* reasons) {
  const int64_t block_rows = file_->description().block_rows;
  const int64_t row_bytes = spec_.row_bytes();
  std::byte* to = rows;
  for (int64_t row = first; row < end;) {
    const int64_t block_end = std::min(end, (row / block_rows + 1) * block_rows);
    for (Part& part : parts_) {
      MOETAPE_TRY(check_blocks(part, row, block_end));
      const IdGroup& group = file_->groups()[static_cast<size_t>(part.group)];
      group.restore(file_->rows(*facts_, part.group, row), block_end - row, part.moves, to, row_bytes,
                    scratch_);
    }
    MOETAPE_TRY(check_rows(row, block_end, to));
    to += (block_end - row) * row_bytes;
    row = block_end;
  }
  fill_reasons(first, end, reasons);
  return {};
}

Status SequenceReader::check_blocks(Part& part, int64_t first, int64_t end) {
  if (first >= end) return {};
  const int64_t block_rows = file_->description().block_rows;
  const int64_t last_block = (end - 1) / block_rows;
  if (first / block_rows == part.checked_block && last_block == part.checked_block) return {};
  MOETAPE_TRY(file_->check_blocks(sequence_, *facts_, part.group, first, end));
  part.checked_block = last_block;
  return {};
}

Status SequenceReader::check_rows(int64_t first, int64_t end, const std::byte* rows) const {
  const int64_t row_bytes = spec_.row_bytes();
  const int64_t num_ids = row_bytes / spec_.id_bytes();
  const auto damaged = [&](int64_t row, const std::string& what) {
    return fail(ErrorCode::kCorruptData, "{}: sequence {}: row {} (position {}): {}", file_->name(),
                sequence_, row, facts_->start + row, what);
  };
  if (spec_.num_experts() < 1 << (8 * spec_.id_bytes()) &&
      simd::largest_id(rows, spec_.id_bytes(), (end - first) * num_ids) >= spec_.num_experts()) {
    int64_t row = first;
    int64_t largest = 0;
    while ((largest = simd::largest_id(rows + (row - first) * row_bytes, spec_.id_bytes(), num_ids)) <
           spec_.num_experts()) {
      ++row;
    }
    return damaged(row, fmt::format("expected ids in [0, {}), got {}", spec_.num_experts(), largest));
  }
  if (!any_missing_) return {};
  for (int64_t row = first; row < end; ++row) {
    const std::span bytes(rows + (row - first) * row_bytes, static_cast<size_t>(row_bytes));
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (!facts_->is_valid(row) && !std::ranges::all_of(bytes, is_zero)) {
      return damaged(row, "expected the zeros of a missing row, got something else");
    }
  }
  return {};
}

void SequenceReader::fill_reasons(int64_t first, int64_t end, Reason* reasons) const {
  if (!any_missing_) {
    std::fill_n(reasons, end - first, Reason::kValid);
    return;
  }
  for (int64_t row = first; row < end; ++row) {
    *reasons++ = facts_->is_valid(row) ? Reason::kValid : Reason::kNotSent;
  }
}

Result<std::vector<int32_t>> SequenceReader::tokens(int64_t first, int64_t end) const {
  const int64_t column = file_->token_column();
  MOETAPE_TRY(file_->check_blocks(sequence_, *facts_, column, first, end));
  std::vector<int32_t> tokens(static_cast<size_t>(end - first));
  if (!tokens.empty()) {
    std::memcpy(tokens.data(), file_->rows(*facts_, column, first), tokens.size() * sizeof(int32_t));
  }
  return tokens;
}

Status SequenceReader::add_facts(RoutesBuilder& builder, int64_t first, int64_t end) const {
  const int64_t start = facts_->start + first;
  for (const VersionRun& run : facts_->versions(start, facts_->start + end)) {
    builder.add_version(run.start - start, run.end - run.start, run.version);
  }
  if (facts_->token_offset < 0) return {};
  MOETAPE_ASSIGN(std::vector<int32_t> found, tokens(first, end));
  builder.set_tokens(std::move(found));
  return {};
}

Status TapeSource::pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) {
  MOETAPE_TRY(check_part(first, count));
  return guard_memory("tape", [&] { return reader_.pull(first, first + count, rows, reasons); });
}

}  // namespace moetape::inline v0::tape
