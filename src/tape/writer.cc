#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "moetape/tape.h"
#include "routes/spec_check.h"
#include "tape/file_writer.h"
#include "tape/files_writer.h"
#include "tape/metadata.h"
#include "tape/output.h"
#include "tape/schema.h"
#include "tape/sequence_reader.h"
#include "tape/tape_impl.h"

namespace moetape::inline v0 {

using tape::FileWriter;
using tape::SequenceInput;
using tape::SequenceReader;

TapeWriter::TapeWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TapeWriter::TapeWriter(TapeWriter&&) noexcept = default;
TapeWriter& TapeWriter::operator=(TapeWriter&&) noexcept = default;
TapeWriter::~TapeWriter() = default;

Result<TapeWriter> TapeWriter::create(const std::string& path, const RouteSpec& spec, TapeOptions options) {
  MOETAPE_ASSIGN(std::unique_ptr<Impl> impl, Impl::create(path, spec, std::move(options)));
  return TapeWriter(std::move(impl));
}

int64_t TapeWriter::num_sequences() const { return impl_->num_sequences(); }
int64_t TapeWriter::num_rows() const { return impl_->num_rows(); }
Status TapeWriter::finish() { return impl_->finish(); }

namespace {

const TapeSequence kNameless;

SequenceInput input_of(const Routes& routes, const TapeSequence& sequence) {
  SequenceInput input{.id = sequence.id,
                      .meta = sequence.meta,
                      .start = routes.start(),
                      .num_rows = routes.num_rows(),
                      .versions = routes.versions()};
  if (routes.has_tokens()) input.tokens = routes.tokens();
  input.rows = [&routes](int64_t first, int64_t) -> Result<SequenceInput::Rows> {
    return SequenceInput::Rows{routes.ids().data() + first * routes.spec().row_bytes(),
                               routes.reasons().data() + first};
  };
  return input;
}

}  // namespace

Status TapeWriter::append(const Routes& routes, const TapeSequence& sequence) {
  MOETAPE_TRY(check_fits("routes", impl_->spec(), routes.spec()));
  return impl_->append(input_of(routes, sequence));
}

Status TapeWriter::append(RowSource& rows, const TapeSequence& sequence, std::span<const int32_t> tokens,
                          std::span<const VersionRun> versions) {
  MOETAPE_TRY(check_fits("rows", impl_->spec(), rows.spec()));
  SequenceInput input{.id = sequence.id,
                      .meta = sequence.meta,
                      .start = rows.start(),
                      .num_rows = rows.num_rows(),
                      .versions = {versions.begin(), versions.end()}};
  if (!tokens.empty()) input.tokens = tokens;
  const int64_t room = std::min(rows.num_rows(), tape::kBlockRows);
  MOETAPE_ASSIGN(Buffer ids, Buffer::allocate(room * rows.spec().row_bytes()));
  std::vector<Reason> reasons(static_cast<size_t>(room));
  input.rows = [&](int64_t first, int64_t count) -> Result<SequenceInput::Rows> {
    MOETAPE_TRY(rows.pull(first, count, ids.mutable_data(), reasons.data()));
    return SequenceInput::Rows{ids.data(), reasons.data()};
  };
  return impl_->append(input);
}

Status TapeWriter::append(const Tape& tape, int64_t sequence, std::optional<int64_t> start,
                          std::optional<int64_t> end) {
  MOETAPE_TRY(impl_->check_open());
  const RouteSpec& spec = impl_->spec();
  MOETAPE_ASSIGN(const Tape::Impl::Place place, tape.impl_->place(sequence));
  MOETAPE_ASSIGN(SequenceReader reader, SequenceReader::create(place.file, place.sequence, spec.layers()));
  MOETAPE_TRY(check_fits("tape", spec, reader.spec()));
  const tape::Facts& facts = reader.facts();
  const int64_t from = start.value_or(facts.start);
  const int64_t to = end.value_or(facts.end());
  MOETAPE_TRY(tape.impl_->check_positions(sequence, facts, from, to));
  const int64_t skipped = from - facts.start;

  SequenceInput input{.id = facts.id,
                      .meta = facts.meta,
                      .start = from,
                      .num_rows = to - from,
                      .versions = facts.versions(from, to),
                      .channels = place.file->channels()};
  return guard_memory("tape", [&]() -> Status {
    std::vector<int32_t> tokens;
    if (facts.token_offset >= 0) {
      MOETAPE_ASSIGN(tokens, reader.tokens(skipped, skipped + input.num_rows));
      input.tokens = tokens;
    }
    std::vector<std::byte> ids(
        static_cast<size_t>(std::min(input.num_rows, tape::kBlockRows) * spec.row_bytes()));
    std::vector<Reason> reasons(static_cast<size_t>(std::min(input.num_rows, tape::kBlockRows)));
    input.rows = [&](int64_t first, int64_t count) -> Result<SequenceInput::Rows> {
      MOETAPE_TRY(reader.pull(skipped + first, skipped + first + count, ids.data(), reasons.data()));
      return SequenceInput::Rows{ids.data(), reasons.data()};
    };
    input.channel_rows = [&](int64_t channel, int64_t first, int64_t count) -> Result<const std::byte*> {
      const int64_t column = place.file->channel_column(channel);
      const int64_t row = skipped + first;
      MOETAPE_TRY(place.file->check_blocks(place.sequence, facts, column, row, row + count));
      return place.file->rows(facts, column, row);
    };
    return impl_->append(input);
  });
}

Result<Buffer> tape_bytes(const RouteSpec& spec, std::span<const Routes> routes,
                          std::span<const TapeSequence> sequences, const TapeOptions& options) {
  if (!sequences.empty() && sequences.size() != routes.size()) {
    return fail(ErrorCode::kWrongShape, "sequences: expected one for each of {} routes, got {}",
                routes.size(), sequences.size());
  }
  return guard_memory("tape", [&]() -> Result<Buffer> {
    MOETAPE_ASSIGN(tape::Description description, tape::describe(spec, options));
    auto output = std::make_unique<tape::MemoryOutput>();
    tape::MemoryOutput& memory = *output;
    MOETAPE_ASSIGN(std::unique_ptr<FileWriter> writer,
                   FileWriter::create(std::move(description), std::move(output), std::nullopt));
    int64_t most_bytes = writer->most_bytes();
    for (size_t i = 0; i < routes.size(); ++i) {
      most_bytes += writer->most_bytes_of(input_of(routes[i], sequences.empty() ? kNameless : sequences[i]));
    }
    MOETAPE_TRY(memory.reserve(most_bytes));
    for (size_t i = 0; i < routes.size(); ++i) {
      MOETAPE_TRY(check_fits(fmt::format("routes[{}]", i), spec, routes[i].spec()));
      MOETAPE_TRY(writer->append(input_of(routes[i], sequences.empty() ? kNameless : sequences[i])));
    }
    MOETAPE_TRY(writer->finish());
    return std::move(memory).take();
  });
}

}  // namespace moetape::inline v0
