// Replay: the rows that one rank's routers need, cut by the trainer's own slicing.
//
// The trainer cuts an int64 array of row ids, (sequence + 1) << 32 | position, with the very code that cuts its
// tokens; what its code pads with (0 or -1) is padding. The plan is then exact by construction.
#pragma once

#include <cstdint>
#include <span>
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
  // kInvalidArgument: an id that is neither padding nor a row id, one that stands twice, a layer twice.
  static Result<Plan> from_row_ids(std::span<const int64_t> row_ids, std::vector<int32_t> layers = {});

  int64_t num_rows() const { return static_cast<int64_t>(row_ids_.size()); }
  std::span<const int32_t> layers() const { return layers_; }
  // The smallest spans that cover what is needed, by sequence.
  std::vector<Need> needs() const;

  // Writes ids [layers, rows, k] of `type` (all but int8 and unsigned types narrower than the ids) to `out` and
  // one use a row to `uses`. sources[s] holds sequence s; positions outside its span and missing rows are kLive.
  // kSpecMismatch when fingerprints differ, kOutOfRange for a sequence without a source, a layer not recorded, or
  // an id that the type cannot hold. Returns the number of layers written.
  Result<int32_t> apply(std::span<const Routes> sources, IntType type, std::span<std::byte> out,
                        std::span<RowUse> uses) const;

  // tokens[i] is the token at row i of this rank; kConflict names the first row whose source has another
  // token there. Sources without tokens and padding prove nothing and are passed over.
  Status verify(std::span<const Routes> sources, std::span<const int32_t> tokens) const;

 private:
  Plan(std::vector<int64_t> row_ids, std::vector<int32_t> layers)
      : row_ids_(std::move(row_ids)), layers_(std::move(layers)) {}
  std::vector<int64_t> row_ids_;
  std::vector<int32_t> layers_;
};

}  // namespace moetape::inline v0
