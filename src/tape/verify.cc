// Looking at every byte of a tape.
#include <algorithm>
#include <iterator>
#include <string>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "moetape/tape.h"
#include "routes/narrow_rows.h"
#include "tape/sequence_reader.h"
#include "tape/tape_impl.h"

namespace moetape::inline v0 {

using tape::Facts;
using tape::FileReader;
using tape::SequenceReader;

namespace {

// The bits behind the ids of packed rows.
Status check_spare_bits(const FileReader& file, int64_t sequence, const Facts& facts) {
  for (int64_t group = 0; group < std::ssize(file.groups()); ++group) {
    const int spare = file.groups()[static_cast<size_t>(group)].spare_bits();
    for (int64_t row = 0; row < facts.num_rows() && spare > 0; ++row) {
      const std::byte* last = file.rows(facts, group, row) + file.row_bytes(group) - 1;
      if (std::to_integer<int>(*last) >> (8 - spare) == 0) continue;
      return fail(ErrorCode::kCorruptData,
                  "{}: sequence {}: row {}, byte {} of the file: expected {} zero bits, got 0x{:02x}",
                  file.name(), sequence, row, file.offset_of(last), spare, std::to_integer<int>(*last));
    }
  }
  return {};
}

// Valid rows are what their spec asks for.
class RowCheck {
 public:
  RowCheck(const FileReader& file, int64_t sequence, SequenceReader& reader)
      : file_(file), sequence_(sequence), reader_(reader), spec_(reader.spec()) {}

  Status run() {
    const int64_t num_rows = reader_.facts().num_rows();
    const int64_t block = std::min(num_rows, tape::kBlockRows);
    rows_.resize(static_cast<size_t>(block * spec_.row_bytes()));
    narrowed_.resize(rows_.size());
    reasons_.resize(static_cast<size_t>(block));
    faults_.resize(static_cast<size_t>(block * spec_.num_moe_layers()));
    for (int64_t first = 0; first < num_rows; first += block) {
      MOETAPE_TRY(check(first, std::min(num_rows, first + block)));
    }
    return {};
  }

 private:
  Status check(int64_t first, int64_t end) {
    MOETAPE_TRY(reader_.pull(first, end, rows_.data(), reasons_.data()));
    const auto valid = [](Reason reason) { return reason == Reason::kValid; };
    const auto behind = reasons_.begin() + (end - first);
    for (auto begin = reasons_.begin(); (begin = std::find_if(begin, behind, valid)) != behind;) {
      const auto stop = std::find_if_not(begin, behind, valid);
      MOETAPE_TRY(check_run(first, begin - reasons_.begin(), stop - begin));
      begin = stop;
    }
    return {};
  }

  Status check_run(int64_t first, int64_t index, int64_t count) {
    const IntType type = spec_.id_bytes() == 1 ? IntType::kUint8 : IntType::kUint16;
    const std::optional<BadId> bad = narrow_rows(spec_, rows_.data() + index * spec_.row_bytes(), type, count,
                                                 narrowed_.data(), faults_.data());
    if (!bad) return {};
    const int64_t row = first + index + bad->row;
    return fail(ErrorCode::kCorruptData,
                "{}: sequence {}: row {} (position {}), layer {}: expected {}, got {}{}", file_.name(),
                sequence_, row, reader_.facts().start + row, bad->layer,
                bad->repeated ? fmt::format("{} different ids", spec_.top_k())
                              : fmt::format("ids in [0, {})", spec_.num_experts()),
                bad->value, bad->repeated ? " twice" : "");
  }

  const FileReader& file_;
  int64_t sequence_;
  SequenceReader& reader_;
  RouteSpec spec_;
  std::vector<std::byte> rows_;
  std::vector<std::byte> narrowed_;
  std::vector<Reason> reasons_;
  std::vector<uint8_t> faults_;
};

}  // namespace

Status Tape::verify(int64_t sequence) const {
  MOETAPE_ASSIGN(const Impl::Place place, impl_->place(sequence));
  return guard_memory(impl_->name_, [&]() -> Status {
    MOETAPE_ASSIGN(SequenceReader reader, SequenceReader::create(place.file, place.sequence, {}));
    const Facts& facts = reader.facts();
    for (int64_t column = 0; column < place.file->num_columns(); ++column) {
      MOETAPE_TRY(place.file->check_blocks(place.sequence, facts, column, 0, facts.num_rows()));
    }
    MOETAPE_TRY(check_spare_bits(*place.file, place.sequence, facts));
    return RowCheck(*place.file, place.sequence, reader).run();
  });
}

std::vector<TapeFault> Tape::verify() const {
  std::vector<TapeFault> faults;
  for (int64_t sequence = 0; sequence < num_sequences(); ++sequence) {
    if (Status status = verify(sequence); !status) faults.push_back({sequence, std::move(status).error()});
  }
  for (const auto& file : impl_->files_) {
    for (Error& error : file->check_between()) faults.push_back({-1, std::move(error)});
  }
  return faults;
}

}  // namespace moetape::inline v0
