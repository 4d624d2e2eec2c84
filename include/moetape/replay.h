// Replay: the rows that one rank's routers need, cut by the trainer's own slicing.
//
// The trainer cuts an int64 array of row ids, (sequence + 1) << 32 | position, with the very code that cuts
// its tokens; what its code pads with (0 or -1) is padding. The plan is then exact by construction.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moetape/array.h"
#include "moetape/error.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

constexpr int64_t row_id(int64_t sequence, int64_t position) { return (sequence + 1) << 32 | position; }

enum class RowUse : uint8_t {
  kFill,      // padding: rotating distinct ids
  kReplayed,  // recorded ids
  kLive,      // no record: the router decides; the ids are rotating distinct ones too
};

// Rows [start, end) (positions) of a sequence that this rank must have.
struct Need {
  int64_t sequence = 0;
  int64_t start = 0;
  int64_t end = 0;
  bool operator==(const Need&) const = default;
};

// A value; any thread.
class Plan {
 public:
  // Layers are 0-based global indices, in the order in which apply() gives them; empty = all of the spec's.
  // kInvalidArgument: an id that is neither padding nor a row id, one that stands twice, a layer below 0 or
  // twice.
  static Result<Plan> from_row_ids(std::span<const int64_t> row_ids, std::vector<int32_t> layers = {});

  int64_t num_rows() const { return num_rows_; }
  std::span<const int32_t> layers() const { return layers_; }
  // The smallest spans that cover what is needed, by sequence and position.
  std::vector<Need> needs() const;

  // Writes ids [layers, rows, k] of `type` (all but int8 and unsigned types narrower than the ids) to `out`
  // and one use a row to `uses`; what is longer stays as it is behind them. sources[s] holds sequence s;
  // positions outside its span and missing rows are kLive. Rotating ids: the rows of one use take the experts
  // in turn, so that no expert gets two more than another. kSpecMismatch when fingerprints differ,
  // kOutOfRange for a sequence without a source, a layer not recorded, or an id that the type cannot hold,
  // kWrongType for another type, kCapacity for a short `out` or `uses`; what stands in `out` then is
  // unspecified. Returns the number of layers written.
  Result<int32_t> apply(std::span<const Routes> sources, IntType type, std::span<std::byte> out,
                        std::span<RowUse> uses) const;

  // tokens[i] is the token at row i of this rank; kConflict names the first row whose source has another
  // token there. Sources without tokens and padding prove nothing and are passed over.
  Status verify(std::span<const Routes> sources, std::span<const int32_t> tokens) const;

 private:
  // Rows [row, row + count) hold positions [start, start + count) of one sequence.
  struct Run {
    int64_t row = 0;
    int64_t sequence = 0;
    int64_t start = 0;
    int64_t count = 0;
  };

  Plan(int64_t num_rows, std::vector<Run> runs, std::vector<int32_t> layers)
      : num_rows_(num_rows), runs_(std::move(runs)), layers_(std::move(layers)) {}
  std::vector<Run> sorted_runs() const;  // by sequence and start
  Status check_sources(std::span<const Routes> sources) const;
  Result<std::vector<int32_t>> columns(const RouteSpec& spec) const;

  int64_t num_rows_;
  std::vector<Run> runs_;  // ascending rows; all other rows are padding
  std::vector<int32_t> layers_;
};

}  // namespace moetape::inline v0
