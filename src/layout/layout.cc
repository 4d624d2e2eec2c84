#include "moetape/layout.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"

namespace moetape::inline v0 {
namespace {

using Counts = std::vector<int64_t>;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

Status check_rank(int rank, int64_t num_ranks) {
  if (num_ranks < 1)
    return fail(ErrorCode::kInvalidArgument, "ranks: expected at least 1, got {}", num_ranks);
  if (rank < 0 || rank >= num_ranks) {
    return fail(ErrorCode::kInvalidArgument, "rank: expected 0 to {}, got {}", num_ranks - 1, rank);
  }
  return {};
}

// The sum of numbers that may be neither negative nor too large together.
Result<int64_t> sum_of(std::string_view name, std::span<const int64_t> numbers) {
  int64_t sum = 0;
  for (const int64_t number : numbers) {
    const std::optional<int64_t> next = checked_add(sum, number);
    if (number < 0 || !next) {
      return fail(ErrorCode::kInvalidArgument, "{}: expected numbers of 0 or more that can be added, got {}",
                  name, numbers);
    }
    sum = *next;
  }
  return sum;
}

Status check_batch(int64_t expected, int64_t batch_rows) {
  if (expected == batch_rows) return {};
  return fail(ErrorCode::kWrongShape, "batch: expected {} rows, got {}", expected, batch_rows);
}

Status check_tokens(int64_t expected, int64_t num_tokens) {
  if (expected == num_tokens) return {};
  return fail(ErrorCode::kWrongShape, "step: expected {} tokens on this rank, got {}", expected, num_tokens);
}

Result<Placement> place_whole(int64_t batch_rows, int64_t num_tokens) {
  MOETAPE_TRY(check_batch(num_tokens, batch_rows));
  return Placement{.count = batch_rows};
}

Result<Placement> place_graph_padded(int64_t num_valid, int64_t num_rows, int64_t batch_rows,
                                     int64_t num_tokens) {
  if (num_valid < 0 || num_valid > num_rows) {
    return fail(ErrorCode::kInvalidArgument, "num_valid: expected 0 to {} (the padded rows), got {}",
                num_rows, num_valid);
  }
  MOETAPE_TRY(check_batch(num_rows, batch_rows));
  MOETAPE_TRY(check_tokens(num_valid, num_tokens));
  return Placement{.count = num_valid};
}

Result<Placement> place_dp_concat(const Counts& counts, int rank, int64_t batch_rows, int64_t num_tokens) {
  MOETAPE_TRY(check_rank(rank, std::ssize(counts)));
  MOETAPE_ASSIGN(const int64_t total, sum_of("counts", counts));
  MOETAPE_TRY(check_batch(total, batch_rows));
  const int64_t own = counts[static_cast<size_t>(rank)];
  MOETAPE_TRY(check_tokens(own, num_tokens));
  return Placement{.src = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}), .count = own};
}

Result<Placement> place_dp_padded(const Counts& counts, int64_t padded, int rank, int64_t batch_rows,
                                  int64_t num_tokens) {
  MOETAPE_TRY(check_rank(rank, std::ssize(counts)));
  MOETAPE_TRY(sum_of("counts", counts));
  const int64_t longest = *std::ranges::max_element(counts);
  const std::optional<int64_t> total = checked_multiply(padded, std::ssize(counts));
  if (padded < longest || !total) {
    return fail(ErrorCode::kInvalidArgument,
                "padded: expected rows per rank, at least {} (the longest), got {}", longest, padded);
  }
  MOETAPE_TRY(check_batch(*total, batch_rows));
  const int64_t own = counts[static_cast<size_t>(rank)];
  MOETAPE_TRY(check_tokens(own, num_tokens));
  return Placement{.src = rank * padded, .count = own};
}

Result<Placement> place_dp_shards(const Counts& counts, const Counts& shard_sizes, int rank,
                                  int64_t batch_rows, int64_t num_tokens) {
  MOETAPE_TRY(check_rank(rank, std::ssize(counts)));
  MOETAPE_TRY(sum_of("counts", counts));
  if (shard_sizes.empty() || shard_sizes.size() % counts.size() != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "shard_sizes: expected a multiple of {} (the ranks), got {} shards", counts.size(),
                shard_sizes.size());
  }
  MOETAPE_ASSIGN(const int64_t total, sum_of("shard_sizes", shard_sizes));
  const size_t shards_per_rank = shard_sizes.size() / counts.size();
  int64_t src = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto group = std::span(shard_sizes).subspan(r * shards_per_rank, shards_per_rank);
    const int64_t group_rows = std::accumulate(group.begin(), group.end(), int64_t{0});
    if (group_rows < counts[r]) {
      return fail(ErrorCode::kInvalidArgument, "shard_sizes: expected at least {} rows for rank {}, got {}",
                  counts[r], r, group);
    }
    if (r < static_cast<size_t>(rank)) src += group_rows;
  }
  MOETAPE_TRY(check_batch(total, batch_rows));
  const int64_t own = counts[static_cast<size_t>(rank)];
  MOETAPE_TRY(check_tokens(own, num_tokens));
  return Placement{.src = src, .count = own};
}

// A share of a sequence of num_tokens that begins at token `dst`; `rows` router rows, `count` of them tokens.
struct Share {
  int64_t rows, dst, count;
};

Share padded_share(int64_t num_tokens, int size, int rank) {
  const int64_t rows = num_tokens / size + (num_tokens % size != 0 ? 1 : 0);
  // Compared by division: rows * rank may be more than an int64 holds.
  const int64_t dst = rank > 0 && rows > num_tokens / rank ? num_tokens : rows * rank;
  return {rows, dst, std::min(rows, num_tokens - dst)};
}

Share even_share(int64_t num_tokens, int size, int rank) {
  const int64_t longer = num_tokens % size;
  const int64_t rows = num_tokens / size + (rank < longer ? 1 : 0);
  return {rows, num_tokens / size * rank + std::min<int64_t>(rank, longer), rows};
}

Result<Placement> place_share(Share (*share_of)(int64_t, int, int), int64_t expected_tokens, int size,
                              int rank, int64_t batch_rows, int64_t num_tokens) {
  MOETAPE_TRY(check_rank(rank, size));
  if (expected_tokens < 0) {
    return fail(ErrorCode::kInvalidArgument, "num_tokens: expected 0 or more, got {}", expected_tokens);
  }
  MOETAPE_TRY(check_tokens(expected_tokens, num_tokens));
  const Share share = share_of(num_tokens, size, rank);
  MOETAPE_TRY(check_batch(share.rows, batch_rows));
  return Placement{.dst = share.dst, .count = share.count};
}

Result<int64_t> rows_of_share(Share (*share_of)(int64_t, int, int), int64_t num_tokens, int size, int rank) {
  MOETAPE_TRY(check_rank(rank, size));
  return share_of(num_tokens, size, rank).rows;
}

Result<Placement> place_rows(const Counts& token_of_row, int64_t batch_rows, int64_t num_tokens) {
  MOETAPE_TRY(check_batch(std::ssize(token_of_row), batch_rows));
  int64_t largest = -1;
  for (size_t row = 0; row < token_of_row.size(); ++row) {
    const int64_t token = token_of_row[row];
    if (token < -1 || token >= num_tokens) {
      return fail(ErrorCode::kOutOfRange, "token_of_row[{}]: expected -1 to {}, got {}", row, num_tokens - 1,
                  token);
    }
    largest = std::max(largest, token);
  }
  const size_t num_words = static_cast<size_t>(largest + 1) / 64 + 1;
  const std::unique_ptr<uint64_t[]> seen(new (std::nothrow) uint64_t[num_words]());
  if (!seen) {
    return fail(ErrorCode::kOutOfMemory, "token_of_row: no memory to check tokens up to {}", largest);
  }
  for (size_t row = 0; row < token_of_row.size(); ++row) {
    if (token_of_row[row] < 0) continue;
    const auto token = static_cast<uint64_t>(token_of_row[row]);
    const uint64_t bit = uint64_t{1} << token % 64;
    if ((seen[token / 64] & bit) != 0) {
      const auto first = std::ranges::find(token_of_row, token_of_row[row]) - token_of_row.begin();
      return fail(ErrorCode::kInvalidArgument,
                  "token_of_row: expected every token once, got {} in rows {} and {}", token, first, row);
    }
    seen[token / 64] |= bit;
  }
  return Placement{.count = batch_rows, .token_of_row = &token_of_row};
}

}  // namespace

Layout Layout::whole() { return Layout(Whole{}); }
Layout Layout::graph_padded(int64_t num_valid, int64_t num_rows) {
  return Layout(GraphPadded{num_valid, num_rows});
}
Layout Layout::dp_concat(Counts counts, int rank) { return Layout(DpConcat{std::move(counts), rank}); }
Layout Layout::dp_padded(Counts counts, int64_t padded, int rank) {
  return Layout(DpPadded{std::move(counts), padded, rank});
}
Layout Layout::dp_shards(Counts counts, Counts shard_sizes, int rank) {
  return Layout(DpShards{std::move(counts), std::move(shard_sizes), rank});
}
Layout Layout::tp_shard(int64_t num_tokens, int size, int rank) {
  return Layout(TpShard{num_tokens, size, rank});
}
Layout Layout::tp_split(int64_t num_tokens, int size, int rank) {
  return Layout(TpSplit{num_tokens, size, rank});
}
Layout Layout::rows(Counts token_of_row) { return Layout(Rows{std::move(token_of_row)}); }

Result<Placement> Layout::place(int64_t batch_rows, int64_t num_tokens) const {
  if (batch_rows < 0 || num_tokens < 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected 0 or more rows and tokens, got {} and {}",
                to_string(), batch_rows, num_tokens);
  }
  using Placed = Result<Placement>;
  const auto by_kind = Overloaded{
      [&](const Whole&) { return place_whole(batch_rows, num_tokens); },
      [&](const GraphPadded& kind) {
        return place_graph_padded(kind.num_valid, kind.num_rows, batch_rows, num_tokens);
      },
      [&](const DpConcat& kind) { return place_dp_concat(kind.counts, kind.rank, batch_rows, num_tokens); },
      [&](const DpPadded& kind) {
        return place_dp_padded(kind.counts, kind.padded, kind.rank, batch_rows, num_tokens);
      },
      [&](const DpShards& kind) {
        return place_dp_shards(kind.counts, kind.shard_sizes, kind.rank, batch_rows, num_tokens);
      },
      [&](const TpShard& kind) {
        return place_share(padded_share, kind.num_tokens, kind.size, kind.rank, batch_rows, num_tokens);
      },
      [&](const TpSplit& kind) {
        return place_share(even_share, kind.num_tokens, kind.size, kind.rank, batch_rows, num_tokens);
      },
      [&](const Rows& kind) { return place_rows(kind.token_of_row, batch_rows, num_tokens); },
  };
  Placed placement = std::visit(by_kind, kind_);
  if (!placement) return fail(placement.error().code, "{}: {}", to_string(), placement.error().message);
  return placement;
}

Result<int64_t> Layout::batch_rows(int64_t num_tokens) const {
  using BatchRows = Result<int64_t>;
  const auto by_kind = Overloaded{
      [&](const Whole&) { return BatchRows(num_tokens); },
      [&](const GraphPadded& kind) { return BatchRows(kind.num_rows); },
      [&](const DpConcat& kind) { return sum_of("counts", kind.counts); },
      [&](const DpPadded& kind) -> BatchRows {
        const std::optional<int64_t> total = checked_multiply(kind.padded, std::ssize(kind.counts));
        if (total) return *total;
        return fail(ErrorCode::kInvalidArgument, "padded: {} rows per rank are more than can be",
                    kind.padded);
      },
      [&](const DpShards& kind) { return sum_of("shard_sizes", kind.shard_sizes); },
      [&](const TpShard& kind) { return rows_of_share(padded_share, num_tokens, kind.size, kind.rank); },
      [&](const TpSplit& kind) { return rows_of_share(even_share, num_tokens, kind.size, kind.rank); },
      [&](const Rows& kind) { return BatchRows(std::ssize(kind.token_of_row)); },
  };
  BatchRows rows = std::visit(by_kind, kind_);
  if (!rows) return fail(rows.error().code, "{}: {}", to_string(), rows.error().message);
  return rows;
}

std::string Layout::to_string() const {
  const auto by_kind = Overloaded{
      [](const Whole&) { return std::string("whole()"); },
      [](const GraphPadded& kind) {
        return fmt::format("graph_padded(num_valid={}, num_rows={})", kind.num_valid, kind.num_rows);
      },
      [](const DpConcat& kind) {
        return fmt::format("dp_concat(counts={}, rank={})", kind.counts, kind.rank);
      },
      [](const DpPadded& kind) {
        return fmt::format("dp_padded(counts={}, padded={}, rank={})", kind.counts, kind.padded, kind.rank);
      },
      [](const DpShards& kind) {
        return fmt::format("dp_shards(counts={}, shard_sizes={}, rank={})", kind.counts, kind.shard_sizes,
                           kind.rank);
      },
      [](const TpShard& kind) {
        return fmt::format("tp_shard(num_tokens={}, size={}, rank={})", kind.num_tokens, kind.size,
                           kind.rank);
      },
      [](const TpSplit& kind) {
        return fmt::format("tp_split(num_tokens={}, size={}, rank={})", kind.num_tokens, kind.size,
                           kind.rank);
      },
      [](const Rows& kind) {
        const size_t num_shown = std::min<size_t>(kind.token_of_row.size(), 8);
        return fmt::format("rows([{}{}])", fmt::join(std::span(kind.token_of_row).first(num_shown), ", "),
                           num_shown < kind.token_of_row.size()
                               ? fmt::format(", … {} in all", kind.token_of_row.size())
                               : "");
      },
  };
  return std::visit(by_kind, kind_);
}

}  // namespace moetape::inline v0
