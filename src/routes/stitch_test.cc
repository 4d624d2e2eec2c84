#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "base/test_util.h"
#include "moetape/routes.h"
#include "routes/routes_random.h"
#include "routes/routes_reference.h"

namespace moetape::inline v0 {
namespace {

using reference::build;
using reference::make_spec;
using reference::one_in;
using reference::pick;
using reference::read_back;
using reference::Row;
using reference::Table;
using testing::ElementsAre;

using Tokens = std::vector<int32_t>;

constexpr int kNobody = -1;

RouteSpec id_spec() { return make_spec({0}, 1, 65'536); }

// Rows that name their capture and position: id = 1000 * capture + position.
Row row_of(int capture, int64_t position, std::optional<int32_t> token) {
  return {
      Reason::kValid, {1000 * capture + static_cast<int>(position)}, static_cast<uint32_t>(capture), token};
}

Capture capture_of(int capture, int64_t start, const Tokens& tokens, int64_t sampled_from,
                   const std::set<int64_t>& missing = {}) {
  Table table{.start = start};
  for (const int32_t token : tokens) {
    const int64_t position = table.end();
    if (missing.contains(position)) {
      table.rows.push_back({Reason::kLost, {}, {}, token});
    } else {
      table.rows.push_back(row_of(capture, position, token));
    }
  }
  const Routes routes = build(id_spec(), table);
  return {tokens.empty() ? value_of(routes.with_tokens({})) : routes, sampled_from};
}

// The capture that every row came from.
std::vector<int> sources(const Routes& routes) {
  std::vector<int> captures;
  int64_t position = 0;
  for (const Row& row : read_back(routes).rows) {
    captures.push_back(row.reason == Reason::kValid ? row.ids[0] / 1000 : kNobody);
    if (row.reason == Reason::kValid) {
      EXPECT_EQ(row.ids[0] % 1000, position);
      EXPECT_EQ(row.version, static_cast<uint32_t>(captures.back()));
    }
    ++position;
  }
  return captures;
}

std::vector<int> stitched(const Tokens& tokens, const std::vector<Capture>& captures) {
  const Result<Routes> routes = stitch(tokens, captures);
  EXPECT_TRUE(routes) << routes.error().message;
  if (!routes) return {};
  EXPECT_EQ(routes->start(), 0);
  EXPECT_THAT(routes->tokens(), testing::ElementsAreArray(tokens));
  return sources(*routes);
}

void expect_refused(const std::vector<Capture>& captures, ErrorCode code, const std::string& words) {
  expect_error(stitch(Tokens{1, 2, 3, 4, 5, 6}, captures), code, words);
}

// Turn 0: prompt 1 2 3, reply 4 5 6 (6 was never fed). Turn 1: all of it, a tool's result 7 8, reply 9 10.
TEST(Stitch, TwoTurns) {
  const Capture first = capture_of(0, 0, {1, 2, 3, 4, 5}, 3);
  const Capture second = capture_of(1, 0, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 8);
  const Tokens all = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  // Rows 2..4 sampled the reply in turn 0; row 5 (token 6) was first fed in turn 1; row 9 never.
  EXPECT_EQ(stitched(all, {first, second}), (std::vector<int>{1, 1, 0, 0, 0, 1, 1, 1, 1, kNobody}));
  EXPECT_EQ(stitched({1, 2, 3, 4, 5, 6}, {first}), (std::vector<int>{0, 0, 0, 0, 0, kNobody}));
}

// The client decoded the reply and encoded it again: 4 5 became 40, so positions have moved.
TEST(Stitch, ARetokenisedHistory) {
  const Capture first = capture_of(0, 0, {1, 2, 3, 4, 5}, 3);
  const Capture second = capture_of(1, 0, {1, 2, 3, 40, 6, 7, 8, 9}, 7);
  // The conversation as turn 1 saw it: row 2 sampled in turn 0, all behind the change is turn 1's.
  EXPECT_EQ(stitched({1, 2, 3, 40, 6, 7, 8, 9, 10}, {first, second}),
            (std::vector<int>{1, 1, 0, 1, 1, 1, 1, 1, kNobody}));
  // The conversation as turn 0 saw it: turn 1 has equal tokens before position 3 only.
  EXPECT_EQ(stitched({1, 2, 3, 4, 5, 6}, {first, second}), (std::vector<int>{1, 1, 0, 0, 0, kNobody}));
  // Token 5 alone, at the same position after another prefix, is another token.
  EXPECT_EQ(stitched({1, 2, 9, 4, 5}, {first, second}), (std::vector<int>{1, 1, kNobody, kNobody, kNobody}));
}

// Of two replies to one prompt the row that sampled this one counts.
TEST(Stitch, ARetriedTurn) {
  const Capture kept = capture_of(0, 0, {1, 2, 3, 4, 5}, 3);
  const Capture retried = capture_of(1, 0, {1, 2, 3, 9, 5}, 3);
  EXPECT_EQ(stitched({1, 2, 3, 4, 5, 6}, {kept, retried}), (std::vector<int>{1, 1, 0, 0, 0, kNobody}));
  EXPECT_EQ(stitched({1, 2, 3, 9, 5, 6}, {kept, retried}), (std::vector<int>{1, 1, 1, 1, 1, kNobody}));
  EXPECT_EQ(stitched({1, 2, 3, 7}, {kept, retried}), (std::vector<int>{1, 1, 1, kNobody}));
}

// Turn 1 gives only rows from the end of turn 0 on, turn 2 from within turn 1.
TEST(Stitch, CapturesThatContinueOthers) {
  const Capture first = capture_of(0, 0, {1, 2, 3, 4, 5}, 3);
  const Capture second = capture_of(1, 5, {6, 7, 8, 9}, 8);
  const Capture third = capture_of(2, 8, {9, 10, 11, 12}, 11);
  EXPECT_EQ(stitched({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {first, second, third}),
            (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, kNobody}));
  EXPECT_EQ(stitched({1, 2, 3, 4, 0, 6, 7, 8, 9}, {first, second, third}),
            (std::vector<int>{0, 0, 0, 0, kNobody, kNobody, kNobody, kNobody, kNobody}));
  EXPECT_EQ(stitched({1, 2}, {first, second, third}), (std::vector<int>{0, 0}));
  EXPECT_EQ(stitched({}, {first, second, third}), (std::vector<int>{}));
  expect_refused({second, first}, ErrorCode::kInvalidArgument,
                 "captures[0]: expected a start of 0 or one that an earlier capture reaches, got 5");
  expect_refused({first, third}, ErrorCode::kInvalidArgument, "captures[1]: expected a start of 0");
}

// Both replies reach position 5 and only one of them is this conversation's: which one does the third
// continue?
TEST(Stitch, RefusesToGuessWhichCaptureIsContinued) {
  const Capture kept = capture_of(0, 0, {1, 2, 3, 4, 5}, 3);
  const Capture retried = capture_of(1, 0, {1, 2, 3, 9, 5}, 3);
  const Capture more = capture_of(2, 5, {6}, 6);
  expect_refused({kept, retried, more}, ErrorCode::kInvalidArgument,
                 "captures[2]: starts at 5 and may continue captures[0] or captures[1], which differ before");
  const Capture whole = {value_of(kept.routes.extend(more.routes)), 6};
  EXPECT_TRUE(stitch(Tokens{1, 2, 3, 4, 5, 6}, std::vector{kept, retried, whole}));
  // Where both are the same up to there it does not matter.
  const Capture from_prompt = capture_of(2, 3, {4, 5, 6}, 6);
  EXPECT_EQ(stitched({1, 2, 3, 4, 5, 6}, {kept, retried, from_prompt}), (std::vector<int>{1, 1, 0, 0, 0, 2}));
}

TEST(Stitch, ValidRowsGoBeforeMissingOnes) {
  const Capture sampled = capture_of(0, 0, {1, 2, 3, 4, 5}, 2, {1, 2, 3});
  const Capture refed = capture_of(1, 0, {1, 2, 3, 4, 5, 6}, 9, {0, 3});
  const Result<Routes> routes = stitch(Tokens{1, 2, 3, 4, 5, 6, 7}, std::vector{sampled, refed});
  ASSERT_TRUE(routes);
  EXPECT_EQ(sources(*routes), (std::vector<int>{0, 1, 1, kNobody, 0, 1, kNobody}));
  EXPECT_EQ(routes->reasons()[3], Reason::kLost);
  EXPECT_EQ(routes->reasons()[6], Reason::kGap);
}

// case C03: nodes of 3 + 2 + 4 tokens over a record of 8 rows: the last row is missing, the sample is not.
TEST(Stitch, AMissingLastRowIsOneMissingRow) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Routes routes = value_of(stitch(tokens, std::vector{capture_of(0, 0, {1, 2, 3, 4, 5, 6, 7, 8}, 5)}));
  EXPECT_EQ(value_of(routes.slice(0, 3)).num_missing(), 0);
  EXPECT_EQ(value_of(routes.slice(3, 5)).num_missing(), 0);
  EXPECT_EQ(value_of(routes.slice(5, 9)).num_rows(), 4);
  EXPECT_EQ(value_of(routes.slice(5, 9)).num_missing(), 1);
}

// case C14: prompt 4 and 3 generated for 8 valid tokens: 7 rows; with 2 generated one of the 7 is missing.
TEST(Stitch, CountsWhatIsMissing) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto missing_of_seven = [&](const Tokens& fed) {
    return value_of(value_of(stitch(tokens, std::vector{capture_of(0, 0, fed, 4)})).slice(0, 7))
        .num_missing();
  };
  EXPECT_EQ(missing_of_seven({1, 2, 3, 4, 5, 6, 7}), 0);
  EXPECT_EQ(missing_of_seven({1, 2, 3, 4, 5, 6}), 1);
  EXPECT_EQ(value_of(stitch(Tokens(), std::vector{capture_of(0, 0, {1}, 1)})).num_rows(), 0);
}

TEST(Stitch, RefusesCapturesItCannotPlace) {
  const Capture first = capture_of(0, 0, {1, 2, 3}, 2);
  const Routes nameless = build(id_spec(), {.rows = {row_of(1, 0, {})}});
  expect_refused({}, ErrorCode::kInvalidArgument, "captures: expected at least one, got none");
  expect_refused({first, {nameless, 0}}, ErrorCode::kInvalidArgument,
                 "captures[1]: expected routes with tokens, got none");
  expect_refused({{first.routes, -1}}, ErrorCode::kOutOfRange,
                 "captures[0]: sampled_from: expected a position of 0");
  expect_refused({first, {value_of(Routes::empty(make_spec({1}, 1, 65'536), 0)), 0}},
                 ErrorCode::kSpecMismatch, "captures[1]: expected routes of spec");
  EXPECT_EQ(stitched({1, 2, 3}, {first, {value_of(Routes::empty(id_spec(), 3)), 0}}),
            (std::vector<int>{0, 0, 0}));
}

TEST(Stitch, PromisesDistinctIdsOnlyIfAllCapturesDo) {
  RouteSpecFields fields = id_spec().fields();
  fields.distinct = false;
  const Capture first = capture_of(0, 0, {1, 2}, 1);
  const Routes more = build(value_of(RouteSpec::create(fields)), {.start = 2, .rows = {row_of(1, 2, 3)}});
  EXPECT_TRUE(value_of(stitch(Tokens{1, 2, 3}, std::vector{first})).spec().distinct());
  EXPECT_FALSE(value_of(stitch(Tokens{1, 2, 3}, std::vector{first, {more, 3}})).spec().distinct());
}

// The definition, taken word by word. All full token lists that a capture may have, by every way to continue.
class Reference {
 public:
  Reference(Tokens tokens, std::vector<Table> tables, std::vector<int64_t> sampled_from)
      : tokens_(std::move(tokens)), tables_(std::move(tables)), sampled_from_(std::move(sampled_from)) {}

  bool placeable() {
    for (size_t c = 0; c < tables_.size(); ++c) {
      std::set<Tokens> prefixes;
      if (tables_[c].start == 0) prefixes.insert(Tokens());
      for (size_t d = 0; d < c && tables_[c].start != 0; ++d) {
        if (tables_[d].end() < tables_[c].start) continue;
        for (const Tokens& full : full_[d]) prefixes.insert({full.begin(), full.begin() + tables_[c].start});
      }
      const auto as_here = [&](const Tokens& prefix) { return equal_to_here(prefix, std::ssize(prefix)); };
      const auto num_as_here = std::ranges::count_if(prefixes, as_here);
      if (prefixes.empty() || (num_as_here != 0 && num_as_here != std::ssize(prefixes))) return false;
      full_.emplace_back();
      for (Tokens full : prefixes) {
        for (const Row& row : tables_[c].rows) full.push_back(*row.token);
        full_.back().insert(full);
      }
    }
    return true;
  }

  Row row_at(int64_t t) const {
    Row best{.token = tokens_[static_cast<size_t>(t)]};
    int best_rank = -1;
    for (size_t c = 0; c < tables_.size(); ++c) {
      const Row* row = tables_[c].find(t);
      const Tokens& full = *full_[c].begin();
      if (!row || !std::ranges::all_of(full_[c], [&](const Tokens& f) { return equal_to_here(f, t + 1); }))
        continue;
      const bool sampled = sampled_from_[c] - 1 <= t;
      const bool next_differs =
          t + 1 < std::ssize(full) && t + 1 < std::ssize(tokens_) && !equal_to_here(full, t + 2);
      const int rank = (row->reason == Reason::kValid ? 10 : 0) + (sampled ? (next_differs ? 1 : 2) : 0);
      if (rank < best_rank) continue;
      best_rank = rank;
      best = *row;
    }
    return best;
  }

 private:
  bool equal_to_here(const Tokens& full, int64_t length) const {
    return length <= std::ssize(tokens_) && length <= std::ssize(full) &&
           std::equal(full.begin(), full.begin() + length, tokens_.begin());
  }

  Tokens tokens_;
  std::vector<Table> tables_;
  std::vector<int64_t> sampled_from_;
  std::vector<std::set<Tokens>> full_;
};

// Tokens 0, 1 (seldom), so that prefixes often agree and sometimes part.
Tokens random_tokens(int64_t count) {
  Tokens tokens;
  while (std::ssize(tokens) < count) tokens.push_back(one_in(8) ? 1 : 0);
  return tokens;
}

struct Conversation {
  std::vector<Table> tables;
  std::vector<int64_t> sampled_from;
  std::vector<Capture> captures;
};

Conversation random_conversation() {
  Conversation turns;
  int64_t reach = 0;
  const int64_t num_captures = pick(1, 6);
  for (int c = 0; c < num_captures; ++c) {
    Table table;
    if (c > 0 && one_in(2)) table.start = pick(0, reach + (one_in(10) ? 2 : 1));
    for (const int32_t token : random_tokens(pick(0, 10))) {
      table.rows.push_back(one_in(5) ? Row{Reason::kLost, {}, {}, token} : row_of(c, table.end(), token));
    }
    reach = std::max(reach, table.end());
    turns.sampled_from.push_back(pick(0, 12));
    turns.captures.push_back({build(id_spec(), table), turns.sampled_from.back()});
    turns.tables.push_back(std::move(table));
  }
  return turns;
}

RC_GTEST_PROP(StitchRandom, IsTheReference, ()) {
  for (int round = 0; round < 20; ++round) {
    const Conversation turns = random_conversation();
    const Tokens tokens = random_tokens(pick(0, 14));
    const Result<Routes> routes = stitch(tokens, turns.captures);
    Reference expected(tokens, turns.tables, turns.sampled_from);
    RC_ASSERT(routes.has_value() == expected.placeable());
    if (!routes) {
      RC_ASSERT(routes.error().code == ErrorCode::kInvalidArgument);
      continue;
    }
    Table table;
    for (int64_t t = 0; t < std::ssize(tokens); ++t) table.rows.push_back(expected.row_at(t));
    RC_ASSERT(read_back(*routes) == table);
  }
}

}  // namespace
}  // namespace moetape::inline v0
