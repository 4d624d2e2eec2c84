// Layout: which rows of a router's batch are which tokens of this rank's step. Pure integers, a value.
//
// The caller names the layout at commit; nothing is guessed from a row count (but by `infer`, which exists
// for engines' drop-in classes). place() checks the layout's numbers against the batch that arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0 {

// Rows [src, src + count) of the batch are tokens [dst, dst + count) of the step; or, with `token_of_row`
// not null, row i of the batch is token token_of_row[i] (-1 = not ours), src and dst are 0 and count is the
// number of rows of the batch.
struct Placement {
  int64_t src = 0;
  int64_t dst = 0;
  int64_t count = 0;
  const std::vector<int64_t>* token_of_row = nullptr;  // lives as long as the Layout
};

class Layout {
 public:
  // All rows, in order; the batch has as many rows as the step has tokens.
  static Layout whole();
  // The first num_valid rows of a batch padded to num_rows (both checked).
  static Layout graph_padded(int64_t num_valid, int64_t num_rows);
  // All data-parallel ranks' tokens one behind another.
  static Layout dp_concat(std::vector<int64_t> counts, int rank);
  // The same, every rank padded to `padded` rows (a CUDA graph's extent, or the longest rank).
  static Layout dp_padded(std::vector<int64_t> counts, int64_t padded, int rank);
  // Sequence-parallel shards of every rank, in DP-then-TP order; shard_sizes include padding.
  static Layout dp_shards(std::vector<int64_t> counts, std::vector<int64_t> shard_sizes, int rank);
  // This rank's shard of num_tokens, cut by ceil-division and padded (tp_shard) or cut like tensor_split,
  // the first num_tokens % size shards one longer and none padded (tp_split).
  static Layout tp_shard(int64_t num_tokens, int size, int rank);
  static Layout tp_split(int64_t num_tokens, int size, int rank);
  // Row i of the batch is token token_of_row[i]; -1 = not ours; a token twice is an error.
  static Layout rows(std::vector<int64_t> token_of_row);

  // For a batch of batch_rows router rows and a step of num_tokens tokens on this rank. kWrongShape or
  // kOutOfRange with both figures when they do not fit; kInvalidArgument for numbers that no batch fits.
  Result<Placement> place(int64_t batch_rows, int64_t num_tokens) const;
  // The router rows that this layout is of, for a caller who cannot see the batch. kInvalidArgument for
  // numbers that no batch fits; place() checks the rest.
  Result<int64_t> batch_rows(int64_t num_tokens) const;

  std::string to_string() const;  // "dp_concat(counts=[3, 5], rank=1)"

 private:
  struct Whole {};
  struct GraphPadded {
    int64_t num_valid, num_rows;
  };
  struct DpConcat {
    std::vector<int64_t> counts;
    int rank;
  };
  struct DpPadded {
    std::vector<int64_t> counts;
    int64_t padded;
    int rank;
  };
  struct DpShards {
    std::vector<int64_t> counts, shard_sizes;
    int rank;
  };
  struct TpShard {
    int64_t num_tokens;
    int size, rank;
  };
  struct TpSplit {
    int64_t num_tokens;
    int size, rank;
  };
  struct Rows {
    std::vector<int64_t> token_of_row;
  };
  using Kind = std::variant<Whole, GraphPadded, DpConcat, DpPadded, DpShards, TpShard, TpSplit, Rows>;
  explicit Layout(Kind kind) : kind_(std::move(kind)) {}
  Kind kind_;
};

// vLLM's rule from a row count: naive dispatch (all ranks' tokens), local, DP+EP shards, sequence-parallel
// shard. kWrongShape with all figures when none fits, and when two fit and would place rows differently.
struct InferArgs {
  int64_t batch_rows = 0;
  std::vector<int64_t> counts = {};       // tokens per DP rank
  int rank = 0;                           // DP rank
  std::vector<int64_t> shard_sizes = {};  // empty = no shards
  int tp_size = 1;                        // 1 where routers see no sequence-parallel shards
  int tp_rank = 0;
};
Result<Layout> infer_layout(const InferArgs& args);

// Turns physical or dispatch ids into logical ones, where an engine can only be tapped behind its own map.
class IdMap {
 public:
  // to_logical[physical] = logical id, or -1 for a slot that holds no routed expert (a fused shared expert).
  // kInvalidArgument when empty or below -1.
  static Result<IdMap> create(std::vector<int32_t> to_logical);
  // Every rank holds num_experts / num_ranks routed experts followed by shared_per_rank shared slots.
  static Result<IdMap> interleaved_shared(int32_t num_experts, int32_t num_ranks, int32_t shared_per_rank);

  static constexpr int64_t kNoExpert = -1;
  static constexpr int64_t kOutside = -2;
  int64_t size() const { return static_cast<int64_t>(to_logical_.size()); }
  // The logical id, kNoExpert, or kOutside when physical is not in [0, size()).
  int64_t operator()(int64_t physical) const {
    return physical < 0 || physical >= size() ? kOutside : to_logical_[static_cast<size_t>(physical)];
  }

 private:
  explicit IdMap(std::vector<int32_t> to_logical) : to_logical_(std::move(to_logical)) {}
  std::vector<int32_t> to_logical_;
};

}  // namespace moetape::inline v0
