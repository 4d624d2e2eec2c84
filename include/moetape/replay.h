// Replay: the rows that one rank's routers need, cut by the trainer's own slicing.
//
// The trainer cuts an int64 array of row ids, (sequence + 1) << 32 | position, with the very code that cuts
// its tokens; what its code pads with (0 or -1) is padding. The plan is then exact by construction. RowIds
// (row_ids.h) makes the same array where the trainer's code has not run yet.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_ids.h"
#include "moetape/row_source.h"
#include "moetape/tape.h"

namespace moetape::inline v0 {

enum class RowUse : uint8_t {
  kFill,      // padding: rotating distinct ids
  kReplayed,  // recorded ids
  kLive,      // no record: the router decides; the ids are rotating distinct ones too
};

// A value; any thread.
//
// Where the routes come from: either sources[s] holds sequence s; or a tape, on which it is sequence
// sequences[s], or s where none are given, and of which only the blocks and layer groups that the plan needs
// are read. A position outside the span of its sequence and a missing row have no record. kInvalidArgument
// where there are no sources, kSpecMismatch when fingerprints differ, kOutOfRange for a sequence without a
// source or a layer not recorded, and what Tape::read fails with.
class Plan {
 public:
  // Layers are 0-based global indices, in the order in which apply() gives them; none given = all of the
  // spec's. kInvalidArgument: an id that is neither padding nor a row id, one that stands twice, a layer
  // below 0 or twice.
  static Result<Plan> from_row_ids(std::span<const int64_t> row_ids,
                                   std::optional<std::vector<int32_t>> layers = {});

  int64_t num_rows() const { return num_rows_; }
  const std::optional<std::vector<int32_t>>& layers() const { return layers_; }
  // What the plan was made from, padding as 0.
  std::vector<int64_t> row_ids() const;
  // The smallest spans that cover what is needed, by sequence and position.
  std::vector<RowSpan> needs() const;

  // Writes ids [layers, rows, k] of `type` (all but int8 and unsigned types narrower than the ids) to `out`
  // and one use a row to `uses`; what is longer stays as it is behind them. Rotating ids: the rows of one use
  // take the experts in turn from first_expert (modulo their number) on, so that no expert gets two more than
  // another; plans that are applied side by side begin at different experts, so that they do not all load the
  // same ones. kOutOfRange for an id that the type cannot hold or a first_expert below 0, kWrongType for
  // another type, kCapacity for a short `out` or `uses`; what stands in `out` then is unspecified. Returns
  // the number of layers written.
  Result<int32_t> apply(std::span<const Routes> sources, IntType type, std::span<std::byte> out,
                        std::span<RowUse> uses, int64_t first_expert = 0) const;
  Result<int32_t> apply(const Tape& tape, std::span<const int64_t> sequences, IntType type,
                        std::span<std::byte> out, std::span<RowUse> uses, int64_t first_expert = 0) const;
  // Of rows that are pulled as they are needed, from a text (decode_rows) or a store, so that nothing of a
  // sequence's size is made between them and `out`.
  Result<int32_t> apply(std::span<RowSource* const> sources, IntType type, std::span<std::byte> out,
                        std::span<RowUse> uses, int64_t first_expert = 0) const;

  // How many recorded rows each expert will get, [layers, num_experts]: to pack micro-batches before a step.
  // Rows without a record are not counted.
  Result<std::vector<int64_t>> expert_load(std::span<const Routes> sources) const;
  Result<std::vector<int64_t>> expert_load(const Tape& tape, std::span<const int64_t> sequences = {}) const;

  // tokens[i] is the token at row i of this rank; kConflict names the first row whose source has another
  // token there, kWrongShape another number of tokens. Returns how many rows this proves: sources without
  // tokens, positions outside their spans, and padding prove nothing.
  Result<int64_t> verify(std::span<const Routes> sources, std::span<const int32_t> tokens) const;
  Result<int64_t> verify(const Tape& tape, std::span<const int64_t> sequences,
                         std::span<const int32_t> tokens) const;

  bool operator==(const Plan&) const = default;

 private:
  struct Sources;

  // Rows [row, row + count) hold positions [start, start + count) of one sequence.
  struct Run {
    int64_t row = 0;
    int64_t sequence = 0;
    int64_t start = 0;
    int64_t count = 0;
    bool operator==(const Run&) const = default;
  };

  Plan(int64_t num_rows, std::vector<Run> runs, std::optional<std::vector<int32_t>> layers)
      : num_rows_(num_rows), runs_(std::move(runs)), layers_(std::move(layers)) {}
  std::vector<Run> sorted_runs() const;  // by sequence and start
  Result<Sources> sources_of(std::span<const RouteSpec> specs) const;
  Result<Sources> find_sources(std::span<const Routes> sources) const;
  Result<Sources> find_sources(std::span<RowSource* const> sources) const;
  static Status take_layers(Sources& sources, std::span<const int32_t> layers);
  Result<Sources> read_sources(const Tape& tape, std::span<const int64_t> sequences) const;
  Result<int32_t> apply_from(const Sources& sources, IntType type, std::span<std::byte> out,
                             std::span<RowUse> uses, int64_t first_expert) const;
  Result<std::vector<int64_t>> load_from(const Sources& sources) const;
  Result<int64_t> verify_from(const Sources& sources, std::span<const int32_t> tokens) const;

  int64_t num_rows_;
  std::vector<Run> runs_;  // ascending rows; all other rows are padding
  std::optional<std::vector<int32_t>> layers_;
};

}  // namespace moetape::inline v0
