#include "moetape/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <ostream>
#include <span>

#include "base/test_util.h"

namespace moetape::inline v0 {
namespace {

using Counts = std::vector<int64_t>;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

struct Triple {
  int64_t src, dst, count;
  bool operator==(const Triple&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Triple& t) {
  return out << "(src " << t.src << ", dst " << t.dst << ", count " << t.count << ")";
}

Triple placed(const Layout& layout, int64_t batch_rows, int64_t num_tokens) {
  const Result<Placement> placement = layout.place(batch_rows, num_tokens);
  EXPECT_TRUE(placement) << placement.error().message;
  return placement ? Triple{placement->src, placement->dst, placement->count} : Triple{-1, -1, -1};
}

void expect_refused(const Layout& layout, int64_t batch_rows, int64_t num_tokens, ErrorCode code,
                    const std::string& words) {
  SCOPED_TRACE(layout.to_string());
  expect_error(layout.place(batch_rows, num_tokens), code, words);
}

TEST(Layout, WholeTakesAllRows) {
  EXPECT_EQ(placed(Layout::whole(), 4, 4), (Triple{0, 0, 4}));
  EXPECT_EQ(placed(Layout::whole(), 0, 0), (Triple{0, 0, 0}));
  expect_refused(Layout::whole(), 8, 5, ErrorCode::kWrongShape, "expected 5 rows, got 8");
}

// case A10: 5 tokens in a graph of 8; rows 5..7 are nobody's, whatever they hold.
// case A18
TEST(Layout, GraphPaddingIsNobodys) {
  EXPECT_EQ(placed(Layout::graph_padded(5, 8), 8, 5), (Triple{0, 0, 5}));
  EXPECT_EQ(placed(Layout::graph_padded(0, 8), 8, 0), (Triple{0, 0, 0}));
  expect_refused(Layout::graph_padded(5, 8), 6, 5, ErrorCode::kWrongShape, "expected 8 rows, got 6");
  expect_refused(Layout::graph_padded(5, 8), 8, 6, ErrorCode::kWrongShape,
                 "expected 5 tokens on this rank, got 6");
  expect_refused(Layout::graph_padded(9, 8), 8, 9, ErrorCode::kInvalidArgument, "got 9");
  expect_refused(Layout::graph_padded(-1, 8), 8, 0, ErrorCode::kInvalidArgument, "got -1");
}

// case A01: rank 2 of [11, 13, 17, 19], eager and in a graph of 32 rows a rank.
TEST(Layout, RowsOfADataParallelRank) {
  const Counts counts = {11, 13, 17, 19};
  EXPECT_EQ(placed(Layout::dp_concat(counts, 2), 60, 17), (Triple{24, 0, 17}));
  EXPECT_EQ(placed(Layout::dp_padded(counts, 32, 2), 128, 17), (Triple{64, 0, 17}));
  expect_refused(Layout::dp_padded(counts, 0, 2), 60, 17, ErrorCode::kInvalidArgument, "at least 19");
  expect_refused(Layout::dp_concat(counts, 4), 60, 17, ErrorCode::kInvalidArgument,
                 "rank: expected 0 to 3, got 4");
  expect_refused(Layout::dp_concat(counts, -1), 60, 17, ErrorCode::kInvalidArgument, "got -1");
  expect_refused(Layout::dp_concat({}, 0), 0, 0, ErrorCode::kInvalidArgument, "ranks");
}

// case A02: two ranks, graphs of 8 rows: rank 1's rows are [8, 16) of a batch of 16.
// case A03
TEST(Layout, PaddedRanksNeedTheWholeBatch) {
  EXPECT_EQ(placed(Layout::dp_padded({8, 8}, 8, 1), 16, 8), (Triple{8, 0, 8}));
  expect_refused(Layout::dp_padded({8, 8}, 8, 1), 8, 8, ErrorCode::kWrongShape, "expected 16 rows, got 8");
}

// case A05: behind DeepEP rank 1 sees its own 5 rows; the global slice [3, 8) must not fit them.
TEST(Layout, AGatheredLocalBatchIsNotSlicedASecondTime) {
  EXPECT_EQ(placed(Layout::whole(), 5, 5), (Triple{0, 0, 5}));
  EXPECT_EQ(placed(Layout::tp_shard(5, 2, 0), 3, 5), (Triple{0, 0, 3}));
  EXPECT_EQ(placed(Layout::tp_shard(5, 2, 1), 3, 5), (Triple{0, 3, 2}));
  expect_refused(Layout::dp_concat({3, 5}, 1), 5, 5, ErrorCode::kWrongShape, "expected 8 rows, got 5");
}

// case A07: an all-gather of ranks padded to the longest, or to a graph.
TEST(Layout, PaddedAllGather) {
  EXPECT_EQ(placed(Layout::dp_padded({3, 5}, 5, 0), 10, 3), (Triple{0, 0, 3}));
  EXPECT_EQ(placed(Layout::dp_padded({3, 5}, 5, 1), 10, 5), (Triple{5, 0, 5}));
  EXPECT_EQ(placed(Layout::dp_padded({3, 5}, 8, 0), 16, 3), (Triple{0, 0, 3}));
  EXPECT_EQ(placed(Layout::dp_padded({3, 5}, 8, 1), 16, 5), (Triple{8, 0, 5}));
}

TEST(Layout, ShardsOfAllRanks) {
  // Two ranks of two shards; the first rank's 3 tokens are padded to 4 rows, the second's 5 to 6.
  const Counts shards = {2, 2, 3, 3};
  EXPECT_EQ(placed(Layout::dp_shards({3, 5}, shards, 0), 10, 3), (Triple{0, 0, 3}));
  EXPECT_EQ(placed(Layout::dp_shards({3, 5}, shards, 1), 10, 5), (Triple{4, 0, 5}));
  expect_refused(Layout::dp_shards({3, 5}, shards, 1), 8, 5, ErrorCode::kWrongShape,
                 "expected 10 rows, got 8");
  expect_refused(Layout::dp_shards({3, 5}, {2, 2, 3}, 1), 7, 5, ErrorCode::kInvalidArgument, "got 3 shards");
  expect_refused(Layout::dp_shards({3, 5}, {}, 1), 0, 5, ErrorCode::kInvalidArgument, "got 0 shards");
  expect_refused(Layout::dp_shards({3, 5}, {2, 2, 2, 2}, 0), 8, 3, ErrorCode::kInvalidArgument,
                 "at least 5 rows for rank 1");
}

// case A09: one of two ranks holds the only token, the other one nothing but padding.
TEST(Layout, SequenceShards) {
  EXPECT_EQ(placed(Layout::tp_shard(1, 2, 0), 1, 1), (Triple{0, 0, 1}));
  EXPECT_EQ(placed(Layout::tp_shard(1, 2, 1), 1, 1), (Triple{0, 1, 0}));
  EXPECT_EQ(placed(Layout::tp_shard(5, 8, 7), 1, 5), (Triple{0, 5, 0}));
  EXPECT_EQ(placed(Layout::tp_split(5, 3, 0), 2, 5), (Triple{0, 0, 2}));
  EXPECT_EQ(placed(Layout::tp_split(5, 3, 1), 2, 5), (Triple{0, 2, 2}));
  EXPECT_EQ(placed(Layout::tp_split(5, 3, 2), 1, 5), (Triple{0, 4, 1}));
  expect_refused(Layout::tp_shard(5, 2, 1), 2, 5, ErrorCode::kWrongShape, "expected 3 rows, got 2");
  expect_refused(Layout::tp_split(5, 3, 2), 2, 5, ErrorCode::kWrongShape, "expected 1 rows, got 2");
  expect_refused(Layout::tp_shard(5, 2, 1), 3, 6, ErrorCode::kWrongShape,
                 "expected 5 tokens on this rank, got 6");
  expect_refused(Layout::tp_shard(5, 2, 2), 3, 5, ErrorCode::kInvalidArgument,
                 "rank: expected 0 to 1, got 2");
  expect_refused(Layout::tp_split(5, 0, 0), 3, 5, ErrorCode::kInvalidArgument, "at least 1, got 0");
  expect_refused(Layout::tp_split(-5, 2, 0), 3, 5, ErrorCode::kInvalidArgument, "got -5");
}

TEST(Layout, ExplicitRows) {
  const Layout layout = Layout::rows({2, -1, 0});
  const Result<Placement> placement = layout.place(3, 4);
  ASSERT_TRUE(placement);
  ASSERT_NE(placement->token_of_row, nullptr);
  EXPECT_EQ(*placement->token_of_row, (Counts{2, -1, 0}));
  EXPECT_EQ((Triple{placement->src, placement->dst, placement->count}), (Triple{0, 0, 3}));
  expect_refused(layout, 4, 4, ErrorCode::kWrongShape, "expected 3 rows, got 4");
  expect_refused(layout, 3, 2, ErrorCode::kOutOfRange, "token_of_row[0]: expected -1 to 1, got 2");
  expect_refused(Layout::rows({0, -2}), 2, 4, ErrorCode::kOutOfRange,
                 "token_of_row[1]: expected -1 to 3, got -2");
  expect_refused(Layout::rows({1, 0, -1, -1, 1}), 5, 4, ErrorCode::kInvalidArgument, "got 1 in rows 0 and 4");
}

// case A19: the rows of a layer captured in chunks of 3 and 2 are one batch of 5.
TEST(Layout, ChunksAreOneBatch) { EXPECT_EQ(placed(Layout::whole(), 5, 5), (Triple{0, 0, 5})); }

TEST(Layout, NumbersThatOverflowAreRefused) {
  expect_refused(Layout::dp_concat({kHuge, kHuge}, 0), 8, 8, ErrorCode::kInvalidArgument, "counts");
  expect_refused(Layout::dp_concat({-1, 9}, 0), 8, 8, ErrorCode::kInvalidArgument, "counts");
  expect_refused(Layout::dp_padded({1, 1}, kHuge, 1), 8, 1, ErrorCode::kInvalidArgument, "padded");
  expect_refused(Layout::dp_padded({1, 1}, -4, 1), 8, 1, ErrorCode::kInvalidArgument, "padded");
  expect_refused(Layout::dp_shards({1, 1}, {kHuge, kHuge}, 1), 8, 1, ErrorCode::kInvalidArgument,
                 "shard_sizes");
  expect_refused(Layout::whole(), -1, -1, ErrorCode::kInvalidArgument, "-1");
  EXPECT_EQ(placed(Layout::tp_shard(kHuge, 2, 1), kHuge / 2 + 1, kHuge),
            (Triple{0, kHuge / 2 + 1, kHuge / 2}));
  const int ranks = std::numeric_limits<int>::max();
  EXPECT_EQ(placed(Layout::tp_shard(kHuge, ranks, ranks - 1), kHuge / ranks + 1, kHuge).count,
            kHuge - (kHuge / ranks + 1) * (ranks - 1));
  EXPECT_EQ(placed(Layout::tp_shard(3, ranks, ranks - 1), 1, 3), (Triple{0, 3, 0}));
  expect_refused(Layout::rows({kHuge - 1}), 1, kHuge, ErrorCode::kOutOfMemory, "token_of_row");
}

TEST(Layout, NamesItself) {
  EXPECT_EQ(Layout::whole().to_string(), "whole()");
  EXPECT_EQ(Layout::graph_padded(5, 8).to_string(), "graph_padded(num_valid=5, num_rows=8)");
  EXPECT_EQ(Layout::dp_concat({3, 5}, 1).to_string(), "dp_concat(counts=[3, 5], rank=1)");
  EXPECT_EQ(Layout::dp_padded({3, 5}, 8, 1).to_string(), "dp_padded(counts=[3, 5], padded=8, rank=1)");
  EXPECT_EQ(Layout::dp_shards({3}, {2, 2}, 0).to_string(),
            "dp_shards(counts=[3], shard_sizes=[2, 2], rank=0)");
  EXPECT_EQ(Layout::tp_shard(5, 2, 1).to_string(), "tp_shard(num_tokens=5, size=2, rank=1)");
  EXPECT_EQ(Layout::tp_split(5, 2, 1).to_string(), "tp_split(num_tokens=5, size=2, rank=1)");
  EXPECT_EQ(Layout::rows({2, -1}).to_string(), "rows([2, -1])");
  EXPECT_EQ(Layout::rows(Counts(9, -1)).to_string(), "rows([-1, -1, -1, -1, -1, -1, -1, -1, … 9 in all])");
}

// What the engine does, with a name for every token: rank * 1000 + token, and -1 for padding.
class Engine {
 public:
  explicit Engine(Counts counts) : counts_(std::move(counts)) {}

  Counts concat() const {
    Counts batch;
    for (size_t rank = 0; rank < counts_.size(); ++rank) append(rank, counts_[rank], &batch);
    return batch;
  }

  Counts padded(int64_t extent) const {
    Counts batch;
    for (size_t rank = 0; rank < counts_.size(); ++rank) append(rank, extent, &batch);
    return batch;
  }

  // Every rank's tokens padded to a multiple of tp and cut into tp shards.
  Counts sharded(int64_t tp, Counts* shard_sizes) const {
    Counts batch;
    for (size_t rank = 0; rank < counts_.size(); ++rank) {
      const int64_t shard = (counts_[rank] + tp - 1) / tp;
      append(rank, shard * tp, &batch);
      shard_sizes->insert(shard_sizes->end(), static_cast<size_t>(tp), shard);
    }
    return batch;
  }

  Counts tokens_of(int rank) const {
    Counts tokens;
    append(static_cast<size_t>(rank), counts_[static_cast<size_t>(rank)], &tokens);
    return tokens;
  }

  // The tokens of the step that the placement fills, -1 where it fills none.
  Counts fill(const Counts& batch, const Placement& placement, int64_t num_tokens) const {
    Counts step(static_cast<size_t>(num_tokens), -1);
    for (int64_t i = 0; i < placement.count; ++i) {
      step.at(static_cast<size_t>(placement.dst + i)) = batch.at(static_cast<size_t>(placement.src + i));
    }
    return step;
  }

 private:
  void append(size_t rank, int64_t extent, Counts* batch) const {
    for (int64_t token = 0; token < extent; ++token) {
      batch->push_back(token < counts_[rank] ? static_cast<int64_t>(rank) * 1000 + token : -1);
    }
  }

  Counts counts_;
};

void check_fill(const Engine& engine, const Layout& layout, const Counts& batch, int rank) {
  const Counts own = engine.tokens_of(rank);
  const Result<Placement> placement = layout.place(std::ssize(batch), std::ssize(own));
  RC_ASSERT(placement);
  RC_ASSERT(engine.fill(batch, *placement, std::ssize(own)) == own);
  RC_ASSERT(!layout.place(std::ssize(batch) + 1, std::ssize(own)));
  RC_ASSERT(!layout.place(std::ssize(batch), std::ssize(own) + 1));
}

RC_GTEST_PROP(LayoutRandom, DataParallelRanksGetTheirTokens, ()) {
  const auto counts = *rc::gen::nonEmpty(rc::gen::container<Counts>(rc::gen::inRange<int64_t>(0, 20)));
  const int rank = *rc::gen::inRange(0, static_cast<int>(counts.size()));
  const int64_t extra = *rc::gen::inRange<int64_t>(0, 9);
  const int64_t tp = *rc::gen::inRange<int64_t>(1, 5);
  const Engine engine(counts);
  const int64_t extent = *std::ranges::max_element(counts) + extra;
  Counts shard_sizes;
  const Counts sharded = engine.sharded(tp, &shard_sizes);
  check_fill(engine, Layout::dp_concat(counts, rank), engine.concat(), rank);
  check_fill(engine, Layout::dp_padded(counts, extent, rank), engine.padded(extent), rank);
  check_fill(engine, Layout::dp_shards(counts, shard_sizes, rank), sharded, rank);
}

RC_GTEST_PROP(LayoutRandom, SharesCoverTheSequenceOnce, ()) {
  const int64_t num_tokens = *rc::gen::inRange<int64_t>(0, 100);
  const int size = *rc::gen::inRange(1, 12);
  Counts sequence(static_cast<size_t>(num_tokens));
  std::iota(sequence.begin(), sequence.end(), 0);
  const int64_t extent = (num_tokens + size - 1) / size;
  Counts padded = sequence;
  padded.resize(static_cast<size_t>(extent * size), -1);

  Counts from_shards(sequence.size(), -1), from_split(sequence.size(), -1);
  int64_t split_first = 0;
  for (int rank = 0; rank < size; ++rank) {
    const Triple shard = placed(Layout::tp_shard(num_tokens, size, rank), extent, num_tokens);
    for (int64_t i = 0; i < shard.count; ++i) {
      from_shards.at(static_cast<size_t>(shard.dst + i)) =
          padded.at(static_cast<size_t>(rank * extent + shard.src + i));
    }
    const int64_t split_rows = num_tokens / size + (rank < num_tokens % size ? 1 : 0);
    const Triple split = placed(Layout::tp_split(num_tokens, size, rank), split_rows, num_tokens);
    RC_ASSERT(split == (Triple{0, split_first, split_rows}));
    std::iota(from_split.begin() + split_first, from_split.begin() + split_first + split_rows, split_first);
    split_first += split_rows;
  }
  RC_ASSERT(from_shards == sequence);
  RC_ASSERT(from_split == sequence);
}

RC_GTEST_PROP(LayoutRandom, RowsNameEveryTokenAtMostOnce, ()) {
  const auto index = *rc::gen::container<Counts>(rc::gen::inRange<int64_t>(-2, 12));
  const int64_t num_tokens = *rc::gen::inRange<int64_t>(0, 12);
  Counts named;
  for (const int64_t token : index) {
    if (token != -1) named.push_back(token);
  }
  std::ranges::sort(named);
  const bool in_range = named.empty() || (named.front() >= 0 && named.back() < num_tokens);
  const bool once = std::ranges::adjacent_find(named) == named.end();
  RC_ASSERT(Layout::rows(index).place(std::ssize(index), num_tokens).has_value() == (in_range && once));
}

Triple inferred(const InferArgs& args) {
  const Result<Layout> layout = infer_layout(args);
  EXPECT_TRUE(layout) << layout.error().message;
  return layout ? placed(*layout, args.batch_rows, args.counts[static_cast<size_t>(args.rank)])
                : Triple{-1, -1, -1};
}

void expect_not_inferred(const InferArgs& args, ErrorCode code, const std::string& words) {
  expect_error(infer_layout(args), code, words);
}

// case A06
TEST(InferLayout, TellsLayoutsApartByRowCount) {
  EXPECT_EQ(inferred({.batch_rows = 8, .counts = {3, 5}, .rank = 1}), (Triple{3, 0, 5}));
  EXPECT_EQ(inferred({.batch_rows = 5, .counts = {3, 5}, .rank = 1}), (Triple{0, 0, 5}));
  EXPECT_EQ(inferred({.batch_rows = 5, .counts = {5, 0}, .rank = 1}), (Triple{5, 0, 0}));
  expect_not_inferred({.batch_rows = 6, .counts = {3, 5}, .rank = 1}, ErrorCode::kWrongShape,
                      "expected 8 (all ranks), 5 (this rank) rows, got 6");
}

TEST(InferLayout, KnowsShards) {
  const Counts shards = {2, 2, 3, 3};
  EXPECT_EQ(inferred({.batch_rows = 10, .counts = {3, 5}, .rank = 1, .shard_sizes = shards}),
            (Triple{4, 0, 5}));
  EXPECT_EQ(inferred({.batch_rows = 3, .counts = {3, 5}, .rank = 1, .tp_size = 2, .tp_rank = 0}),
            (Triple{0, 0, 3}));
  EXPECT_EQ(inferred({.batch_rows = 3, .counts = {3, 5}, .rank = 1, .tp_size = 2, .tp_rank = 1}),
            (Triple{0, 3, 2}));
  expect_not_inferred({.batch_rows = 6, .counts = {3, 5}, .rank = 1, .shard_sizes = shards, .tp_size = 2},
                      ErrorCode::kWrongShape,
                      "expected 8 (all ranks), 5 (this rank), 10 (shards), 3 (one shard) rows, got 6 "
                      "(counts [3, 5], rank 1, shards [2, 2, 3, 3], tp_size 2, tp_rank 0)");
}

TEST(InferLayout, RefusesToChooseBetweenLayoutsThatDiffer) {
  // One row is this rank's only token, or one of two shards, the second of which is padding.
  expect_not_inferred({.batch_rows = 1, .counts = {1, 1}, .rank = 1, .tp_size = 2, .tp_rank = 1},
                      ErrorCode::kWrongShape, "both fit and differ");
  EXPECT_EQ(inferred({.batch_rows = 1, .counts = {1, 1}, .rank = 1, .tp_size = 2, .tp_rank = 0}),
            (Triple{0, 0, 1}));
  // Layouts that come to the same are no conflict.
  EXPECT_EQ(inferred({.batch_rows = 5, .counts = {0, 5}, .rank = 1}), (Triple{0, 0, 5}));
  EXPECT_EQ(inferred({.batch_rows = 0, .counts = {5, 0}, .rank = 1, .tp_size = 2, .tp_rank = 1}).count, 0);
  EXPECT_EQ(inferred({.batch_rows = 8, .counts = {4, 4}, .rank = 1, .shard_sizes = {2, 2, 2, 2}}),
            (Triple{4, 0, 4}));
}

TEST(InferLayout, RefusesNumbersThatNoBatchFits) {
  expect_not_inferred({.batch_rows = 8, .counts = {}, .rank = 0}, ErrorCode::kInvalidArgument, "rank");
  expect_not_inferred({.batch_rows = 8, .counts = {3, 5}, .rank = 2}, ErrorCode::kInvalidArgument, "got 2");
  expect_not_inferred({.batch_rows = 8, .counts = {3, -5}, .rank = 0}, ErrorCode::kInvalidArgument, "counts");
  expect_not_inferred({.batch_rows = 8, .counts = {3, -5}, .rank = 1}, ErrorCode::kInvalidArgument, "-5");
  expect_not_inferred({.batch_rows = 8, .counts = {3, 5}, .rank = 0, .tp_size = 0},
                      ErrorCode::kInvalidArgument, "tp_size");
  expect_not_inferred({.batch_rows = 3, .counts = {3, 5}, .rank = 1, .tp_size = 2, .tp_rank = 2},
                      ErrorCode::kInvalidArgument, "rank: expected 0 to 1, got 2");
  expect_not_inferred({.batch_rows = 8, .counts = {3, 5}, .rank = 1, .shard_sizes = {1, 1, 1}},
                      ErrorCode::kInvalidArgument, "shard_sizes");
  expect_not_inferred({.batch_rows = -1, .counts = {3, 5}, .rank = 1}, ErrorCode::kInvalidArgument, "-1");
}

}  // namespace
}  // namespace moetape::inline v0
