#include "moetape/row_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <numeric>

#include "base/test_util.h"
#include "replay/test_plans.h"

namespace moetape::inline v0 {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

RowIds of_lengths(const Ids& lengths) { return value_of(RowIds::from_lengths(lengths)); }

// Rows of a batch of one sequence as positions, -1 = padding.
Ids positions(const RowIds& rows) {
  Ids positions;
  for (const int64_t id : rows.ids()) positions.push_back(id == 0 ? -1 : id & 0xFFFFFFFF);
  return positions;
}

// case E07
TEST(RowIds, SegmentsAreSequences) {
  const RowIds rows = of_lengths({3, 0, 5});
  EXPECT_THAT(rows.offsets(), ElementsAre(0, 3, 3, 8));
  EXPECT_THAT(rows.ids().first(4), ElementsAre(row_id(0, 0), row_id(0, 1), row_id(0, 2), row_id(2, 0)));
  const RowIds empty = value_of(rows.take(Ids{1}));
  EXPECT_EQ(empty.num_segments(), 1);
  EXPECT_EQ(empty.num_rows(), 0);
  EXPECT_EQ(value_of(RowIds::from_cu_seqlens(Ids{0, 3, 3, 8})), rows);
}

TEST(RowIds, SpansKeepTheirPositions) {
  const RowIds rows = value_of(RowIds::from_spans(std::vector<RowSpan>{{4, 7, 9}, {0, 2, 3}}));
  EXPECT_THAT(rows.ids(), ElementsAre(row_id(4, 7), row_id(4, 8), row_id(0, 2)));
  EXPECT_THAT(make_plan({rows.ids().begin(), rows.ids().end()}).needs(),
              ElementsAre(RowSpan{0, 2, 3}, RowSpan{4, 7, 9}));
}

TEST(RowIds, MicroBatchesAreSomeSegments) {
  const RowIds rows = value_of(of_lengths({2, 1, 3}).take(Ids{2, 0}));
  EXPECT_THAT(rows.ids(), ElementsAre(row_id(2, 0), row_id(2, 1), row_id(2, 2), row_id(0, 0), row_id(0, 1)));
  EXPECT_THAT(rows.offsets(), ElementsAre(0, 3, 5));
}

TEST(RowIds, PaddingStandsLeftOrRight) {
  const RowIds rows = of_lengths({3, 4});
  EXPECT_THAT(positions(value_of(rows.pad_each(4))), ElementsAre(0, 1, 2, -1, 0, 1, 2, 3));
  EXPECT_THAT(positions(value_of(rows.pad_each_to(Ids{5}, Side::kLeft))),
              ElementsAre(-1, -1, 0, 1, 2, -1, 0, 1, 2, 3));
  EXPECT_THAT(positions(value_of(rows.pad_each_to(Ids{4, 6}))), ElementsAre(0, 1, 2, -1, 0, 1, 2, 3, -1, -1));
}

// case I05
TEST(RowIds, ABatchIsPaddedAsItsTokensAre) {
  const RowIds rows = value_of(of_lengths({3, 5}).pad(16));
  EXPECT_EQ(rows.num_rows(), 16);
  EXPECT_EQ(std::ranges::count(rows.ids(), 0), 8);
  EXPECT_THAT(rows.offsets(), ElementsAre(0, 3, 16));
  EXPECT_THAT(value_of(of_lengths({}).pad_to(2)).offsets(), ElementsAre(0, 2));
  EXPECT_THAT(value_of(of_lengths({}).pad(2)).offsets(), ElementsAre(0));
}

// case I10
TEST(RowIds, ZigZagCutsEachSequence) {
  const RowIds one = of_lengths({8});
  EXPECT_THAT(positions(value_of(one.zigzag_each(2, 0))), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(positions(value_of(one.zigzag_each(2, 1))), ElementsAre(2, 3, 4, 5));
  // Two sequences of 4 are rows 0..3 and 4..7 of the batch.
  const RowIds two = of_lengths({4, 4});
  const auto batch_rows = [&](int64_t rank) {
    const RowIds part = value_of(two.zigzag_each(2, rank));
    Ids found;
    for (const int64_t id : part.ids()) {
      found.push_back(std::ranges::find(two.ids(), id) - two.ids().begin());
    }
    return found;
  };
  EXPECT_THAT(batch_rows(0), ElementsAre(0, 3, 4, 7));
  EXPECT_THAT(batch_rows(1), ElementsAre(1, 2, 5, 6));
  EXPECT_EQ(value_of(of_lengths({3}).zigzag_each(1, 0)), of_lengths({3}));
}

TEST(RowIds, ContiguousPartsAreOfEachSequenceOrOfAll) {
  const RowIds rows = of_lengths({4, 2});
  EXPECT_THAT(value_of(rows.split_each(2, 1)).ids(), ElementsAre(row_id(0, 2), row_id(0, 3), row_id(1, 1)));
  const RowIds part = value_of(rows.split(2, 1));
  EXPECT_THAT(part.ids(), ElementsAre(row_id(0, 3), row_id(1, 0), row_id(1, 1)));
  EXPECT_THAT(part.offsets(), ElementsAre(0, 1, 3));
}

// case I20
TEST(RowIds, AnOddLengthIsPaddedThenCut) {
  const RowIds rows = of_lengths({5});
  expect_error(rows.split(2, 0), ErrorCode::kWrongShape, "rows: expected a multiple of 2 (pad), got 5");
  EXPECT_THAT(positions(value_of(value_of(rows.pad(2)).split(2, 1))), ElementsAre(3, 4, -1));
}

// case C10
TEST(RowIds, LengthsAreThoseOfTheTokensNotOfThePadding) {
  const RowIds padded = value_of(of_lengths({7}).pad_each(4));
  int64_t tokens = 0;
  for (const int64_t rank : {0, 1}) {
    const RowIds part = value_of(padded.zigzag_each(2, rank));
    EXPECT_EQ(part.num_rows(), 4);
    tokens += 4 - std::ranges::count(part.ids(), 0);
  }
  EXPECT_EQ(tokens, 7);
}

TEST(RowIds, RowOrdersOfAPaddedBatch) {
  const RowIds batch_major = value_of(of_lengths({2, 3}).pad_each_to(Ids{3}));
  const RowIds rows = value_of(batch_major.sequence_major());
  EXPECT_THAT(rows.ids(),
              ElementsAre(row_id(0, 0), row_id(1, 0), row_id(0, 1), row_id(1, 1), 0, row_id(1, 2)));
  EXPECT_THAT(rows.offsets(), ElementsAre(0, 6));
  expect_error(of_lengths({2, 3}).sequence_major(), ErrorCode::kWrongShape, "segment 1: expected 2 rows");
}

TEST(RowIds, AnExplicitListNamesRowsOfTheBatch) {
  const RowIds rows = of_lengths({2, 2});
  EXPECT_THAT(value_of(rows.gather(Ids{3, -1, 0})).ids(), ElementsAre(row_id(1, 1), 0, row_id(0, 0)));
  expect_error(rows.gather(Ids{0, 4}), ErrorCode::kOutOfRange,
               "index: expected -1 (padding) to 3, got 4 at 1");
}

// case E06
TEST(RowIds, AStageNeedsThePackedRowsOfItsLayersOnly) {
  const RouteSpec spec = make_spec({.layers = {0, 1, 2, 3}, .top_k = 2, .num_experts = 8});
  const std::vector sources = {random_routes(spec, 0, 3, 1), random_routes(spec, 0, 5, 2)};
  const RowIds rows = of_lengths({3, 5});
  const Plan plan = value_of(Plan::from_row_ids(rows.ids(), {{2, 3}}));
  const Applied applied = run(plan, sources);
  EXPECT_EQ(applied.num_rows, 8);
  EXPECT_EQ(applied.ids.size(), 8u * 2 * 2);
  EXPECT_EQ(applied.at(1, 7), recorded(sources[1], 4, 3));
}

TEST(RowIds, RefusesWhatNoRowIdCanSay) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  expect_error(RowIds::from_lengths(Ids{3, -1}), ErrorCode::kInvalidArgument, "got -1 at 1");
  expect_error(RowIds::from_lengths(Ids{kMax}), ErrorCode::kInvalidArgument, "lengths");
  expect_error(RowIds::from_lengths(Ids{kMaxPositions}), ErrorCode::kCapacity, "rows: expected at most");
  const auto spans = [](RowSpan span) { return RowIds::from_spans(std::span(&span, 1)); };
  expect_error(spans({-1, 0, 1}), ErrorCode::kInvalidArgument, "sequences");
  expect_error(spans({kMaxSequences, 0, 1}), ErrorCode::kInvalidArgument, "sequences");
  expect_error(spans({0, 3, 2}), ErrorCode::kInvalidArgument, "[3, 2) at 0");
  expect_error(spans({0, kMaxPositions, kMaxPositions + 1}), ErrorCode::kInvalidArgument, "positions");
  EXPECT_EQ(spans({kMaxSequences - 1, kMaxPositions - 1, kMaxPositions}).value().ids()[0], kMax);
  for (const Ids& cu_seqlens : {Ids{}, Ids{1, 2}, Ids{0, 3, 2}}) {
    expect_error(RowIds::from_cu_seqlens(cu_seqlens), ErrorCode::kInvalidArgument, "cu_seqlens");
  }
}

TEST(RowIds, RefusesPartsThatDoNotExist) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const RowIds rows = of_lengths({4, 6});
  expect_error(rows.take(Ids{2}), ErrorCode::kOutOfRange, "segments: expected indices below 2, got 2");
  expect_error(rows.pad_each(0), ErrorCode::kInvalidArgument, "multiple");
  expect_error(rows.pad_each(kMax), ErrorCode::kCapacity, "rows");
  expect_error(rows.pad(-1), ErrorCode::kInvalidArgument, "multiple");
  expect_error(rows.pad(kMax), ErrorCode::kCapacity, "rows");
  expect_error(rows.pad_each_to(Ids{5}), ErrorCode::kWrongShape,
               "segment 1: expected at most 5 rows to pad, got 6");
  expect_error(rows.pad_each_to(Ids{6, 6, 6}), ErrorCode::kWrongShape, "2 segments, got 3");
  expect_error(rows.pad_to(9), ErrorCode::kWrongShape, "expected 10 or more, got 9");
  expect_error(rows.zigzag_each(2, 0), ErrorCode::kWrongShape,
               "segment 1: expected a multiple of 4 rows (pad_each), got 6");
  expect_error(rows.split_each(4, 0), ErrorCode::kWrongShape, "segment 1");
  for (const auto& [size, rank] : {std::pair<int64_t, int64_t>{2, 2}, {2, -1}}) {
    expect_error(rows.split(size, rank), ErrorCode::kOutOfRange, "rank: expected 0 to 1");
    expect_error(rows.zigzag_each(size, rank), ErrorCode::kOutOfRange, "rank");
    expect_error(rows.split_each(size, rank), ErrorCode::kOutOfRange, "rank");
  }
  for (const int64_t size : {int64_t{0}, int64_t{-2}, kMax}) {
    expect_error(rows.zigzag_each(size, 0), ErrorCode::kInvalidArgument, "size");
  }
}

// Every geometry against a slow, plain reference: a list of (sequence, position) for every row of the whole
// batch, of which a rank keeps the rows that a formula gives it.
struct Reference {
  std::vector<Ids> segments;

  Ids joined() const {
    Ids rows;
    for (const Ids& segment : segments) rows.insert(rows.end(), segment.begin(), segment.end());
    return rows;
  }

  template <class Owner>  // the rank that holds row `at` of a list of `length`
  static Ids kept(const Ids& rows, int64_t rank, Owner owner) {
    Ids mine;
    for (int64_t at = 0; at < std::ssize(rows); ++at) {
      if (owner(at, std::ssize(rows)) == rank) mine.push_back(rows[static_cast<size_t>(at)]);
    }
    return mine;
  }
};

int64_t zigzag_owner(int64_t at, int64_t length, int64_t size) {
  const int64_t part = at * 2 * size / length;
  return part < size ? part : 2 * size - 1 - part;
}

RC_GTEST_PROP(RowIdsRandom, AgreeWithAFormulaForEveryRow, ()) {
  const int64_t cp = *rc::gen::element(1, 2, 3, 4);
  const int64_t tp = *rc::gen::element(1, 2, 3, 8);
  const bool left = *rc::gen::arbitrary<bool>();
  const int64_t way =
      *rc::gen::inRange(0, 4);  // zig-zag, contiguous, contiguous on all, padded to one length
  const auto lengths = *rc::gen::container<Ids>(*rc::gen::inRange(0, 6), rc::gen::inRange<int64_t>(0, 40));

  const int64_t multiple = 2 * cp * *rc::gen::inRange(1, 4);
  const int64_t longest = lengths.empty() ? 0 : std::ranges::max(lengths);
  const auto rounded = [&](int64_t length) { return (length + multiple - 1) / multiple * multiple; };
  Reference reference;
  for (int64_t sequence = 0; sequence < std::ssize(lengths); ++sequence) {
    const int64_t length = lengths[static_cast<size_t>(sequence)];
    const int64_t padded = rounded(way == 3 ? longest : length);
    Ids segment(static_cast<size_t>(padded), 0);
    for (int64_t position = 0; position < length; ++position) {
      segment[static_cast<size_t>(left ? padded - length + position : position)] = row_id(sequence, position);
    }
    reference.segments.push_back(segment);
  }

  const Side side = left ? Side::kLeft : Side::kRight;
  const RowIds rows = of_lengths(lengths);
  const RowIds padded = way == 3 ? value_of(rows.pad_each_to(Ids{rounded(longest)}, side))
                                 : value_of(rows.pad_each(multiple, side));
  RC_ASSERT(Ids(padded.ids().begin(), padded.ids().end()) == reference.joined());

  Ids seen;
  for (int64_t cp_rank = 0; cp_rank < cp; ++cp_rank) {
    RowIds local = padded;
    Ids expected;
    if (way == 2) {
      local = value_of(local.split(cp, cp_rank));
      expected = Reference::kept(reference.joined(), cp_rank,
                                 [&](int64_t at, int64_t length) { return at * cp / length; });
    } else {
      local = value_of(way == 1 ? local.split_each(cp, cp_rank) : local.zigzag_each(cp, cp_rank));
      for (const Ids& segment : reference.segments) {
        const Ids mine = Reference::kept(segment, cp_rank, [&](int64_t at, int64_t length) {
          return way == 1 ? at * cp / length : zigzag_owner(at, length, cp);
        });
        expected.insert(expected.end(), mine.begin(), mine.end());
      }
    }
    if (way == 3) {
      local = value_of(local.sequence_major());
      const auto batch = std::ssize(lengths);
      const int64_t each = batch == 0 ? 0 : std::ssize(expected) / batch;
      Ids transposed(expected.size());
      for (int64_t row = 0; row < std::ssize(expected); ++row) {
        transposed[static_cast<size_t>(row % each * batch + row / each)] = expected[static_cast<size_t>(row)];
      }
      expected = transposed;
    }
    local = value_of(local.pad(tp));
    expected.resize(static_cast<size_t>((std::ssize(expected) + tp - 1) / tp * tp), 0);
    for (int64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
      const RowIds mine = value_of(local.split(tp, tp_rank));
      RC_ASSERT(
          Ids(mine.ids().begin(), mine.ids().end()) ==
          Reference::kept(expected, tp_rank, [&](int64_t at, int64_t length) { return at * tp / length; }));
      RC_ASSERT(mine.offsets().front() == 0);
      RC_ASSERT(mine.offsets().back() == mine.num_rows());
      std::ranges::copy_if(mine.ids(), std::back_inserter(seen), [](int64_t id) { return id != 0; });
    }
  }
  std::ranges::sort(seen);
  RC_ASSERT(seen == Ids(rows.ids().begin(), rows.ids().end()));
}

}  // namespace
}  // namespace moetape::inline v0
