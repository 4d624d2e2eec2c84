// SequenceReader: rows of one sequence of a file, checked, as they stand or in rows of some of its layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moetape/routes.h"
#include "moetape/row_source.h"
#include "moetape/spec.h"
#include "tape/facts.h"
#include "tape/file_reader.h"

namespace moetape::inline v0::tape {

// One thread at a time; keeps its file.
class SequenceReader {
 public:
  // Rows of `layers` of the tape's spec, in its order; empty = all. kOutOfRange for a layer that it does not
  // have or that is out of order.
  static Result<SequenceReader> create(std::shared_ptr<const FileReader> file, int64_t sequence,
                                       std::span<const int32_t> layers);

  const RouteSpec& spec() const { return spec_; }
  const Facts& facts() const { return *facts_; }

  // Rows [first, end) of the sequence.
  Result<Routes> read(int64_t first, int64_t end);
  // The same into the caller's memory.
  Status pull(int64_t first, int64_t end, std::byte* rows, Reason* reasons);
  // Their tokens, of a sequence that has any.
  Result<std::vector<int32_t>> tokens(int64_t first, int64_t end) const;

 private:
  SequenceReader(std::shared_ptr<const FileReader> file, int64_t sequence, RouteSpec spec,
                 std::shared_ptr<const Facts> facts)
      : file_(std::move(file)),
        sequence_(sequence),
        spec_(std::move(spec)),
        facts_(std::move(facts)),
        any_missing_(facts_->num_missing > 0) {}

  // A tensor of which something is wanted.
  struct Part {
    int64_t group;
    std::vector<IdGroup::Move> moves;
    int64_t checked_block = -1;  // the last one, which a pull of a few rows asks for again and again
  };

  bool can_lend() const;
  Status check_lent(int64_t first, int64_t end);
  Status check_blocks(Part& part, int64_t first, int64_t end);
  // The rows are what a Routes may hold: ids below num_experts, zeros where they are missing.
  Status check_rows(int64_t first, int64_t end, const std::byte* rows) const;
  void fill_reasons(int64_t first, int64_t end, Reason* reasons) const;
  Status add_facts(RoutesBuilder& builder, int64_t first, int64_t end) const;

  std::shared_ptr<const FileReader> file_;
  int64_t sequence_;
  RouteSpec spec_;
  std::shared_ptr<const Facts> facts_;
  bool any_missing_;
  std::vector<Part> parts_;
  std::vector<std::byte> scratch_;
};

// A whole sequence, to be pulled in bounded memory.
class TapeSource final : public RowSource {
 public:
  explicit TapeSource(SequenceReader reader) : reader_(std::move(reader)) {}
  const RouteSpec& spec() const override { return reader_.spec(); }
  int64_t start() const override { return reader_.facts().start; }
  int64_t num_rows() const override { return reader_.facts().num_rows(); }
  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override;

 private:
  SequenceReader reader_;
};

}  // namespace moetape::inline v0::tape
