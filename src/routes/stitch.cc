// stitch: the routes of one conversation out of its turns, where a row belongs to a token after a prefix.

#include <algorithm>
#include <string>

#include "base/fail.h"
#include "moetape/routes.h"
#include "routes/assembly.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

using Tokens = std::span<const int32_t>;

int64_t equal_length(Tokens a, Tokens b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }

// For every capture the number of tokens, from position 0 on, that it has in common with `tokens`.
class Matcher {
 public:
  Matcher(Tokens tokens, std::span<const Capture> captures) : tokens_(tokens), captures_(captures) {}

  Result<std::vector<int64_t>> match() {
    for (size_t i = 0; i < captures_.size(); ++i) {
      const Routes& routes = captures_[i].routes;
      MOETAPE_ASSIGN(const int64_t before, match_before(i));
      if (before < routes.start()) {
        matched_.push_back(before);
      } else {
        const Tokens rest = tokens_.subspan(static_cast<size_t>(routes.start()));
        matched_.push_back(before + equal_length(rest, routes.tokens()));
      }
    }
    return std::move(matched_);
  }

 private:
  // The same up to where the capture starts, which an earlier one must have seen.
  Result<int64_t> match_before(size_t index) const {
    const int64_t start = captures_[index].routes.start();
    if (start == 0) return 0;
    std::optional<size_t> parent;
    for (size_t i = 0; i < index; ++i) {
      if (captures_[i].routes.end() < start) continue;
      if (parent && (matched_[i] >= start) != (matched_[*parent] >= start)) {
        return fail(
            ErrorCode::kInvalidArgument,
            "captures[{}]: starts at {} and may continue captures[{}] or captures[{}], which differ before: "
            "extend the right one by it first",
            index, start, *parent, i);
      }
      if (!parent) parent = i;
    }
    if (!parent) {
      return fail(ErrorCode::kInvalidArgument,
                  "captures[{}]: expected a start of 0 or one that an earlier capture reaches, got {}", index,
                  start);
    }
    return std::min(matched_[*parent], start);
  }

  Tokens tokens_;
  std::span<const Capture> captures_;
  std::vector<int64_t> matched_;
};

// Which capture every row comes from. A later choice covers earlier ones, but a missing row no valid one.
class Choice {
 public:
  Choice(std::span<const Capture> captures, std::span<const int64_t> matched, int64_t num_rows)
      : captures_(captures),
        matched_(matched),
        valid_(static_cast<size_t>(num_rows), kNone),
        any_(static_cast<size_t>(num_rows), kNone) {
    for (size_t i = 0; i < captures.size(); ++i) choose(i, captures[i].routes.start(), matched[i]);
    // A capture that sampled another token than the one that follows here yields to one that sampled it.
    for (size_t i = 0; i < captures.size(); ++i)
      choose(i, std::max(first_sampled(i), same_next_end(i)), matched[i]);
    for (size_t i = 0; i < captures.size(); ++i) choose(i, first_sampled(i), same_next_end(i));
  }

  bool valid_from(int64_t position, size_t index) const {
    return valid_[static_cast<size_t>(position)] == static_cast<int64_t>(index);
  }
  bool missing_from(int64_t position, size_t index) const {
    const auto at = static_cast<size_t>(position);
    return valid_[at] == kNone && any_[at] == static_cast<int64_t>(index);
  }

 private:
  static constexpr int64_t kNone = -1;

  int64_t first_sampled(size_t index) const {
    return std::max(captures_[index].routes.start(), captures_[index].sampled_from - 1);
  }
  // Rows below this one have the same next token, as far as it is known.
  int64_t same_next_end(size_t index) const {
    const bool differs =
        matched_[index] < captures_[index].routes.end() && matched_[index] < std::ssize(any_);
    return differs ? matched_[index] - 1 : matched_[index];
  }

  void choose(size_t index, int64_t first, int64_t end) {
    const Routes& routes = captures_[index].routes;
    for (int64_t position = first; position < end; ++position) {
      const auto at = static_cast<size_t>(position);
      any_[at] = static_cast<int64_t>(index);
      if (routes.reasons()[static_cast<size_t>(position - routes.start())] == Reason::kValid) {
        valid_[at] = static_cast<int64_t>(index);
      }
    }
  }

  std::span<const Capture> captures_;
  std::span<const int64_t> matched_;
  std::vector<int64_t> valid_;
  std::vector<int64_t> any_;
};

void take_rows(const Routes& routes, size_t index, int64_t matched, const Choice& choice,
               Assembly* stitched) {
  const std::vector<uint32_t> versions = row_versions(routes);
  for (int64_t first = routes.start(), end = first; first < matched; first = end) {
    while (end < matched && choice.valid_from(end, index)) ++end;
    if (end > first) {
      stitched->copy(routes, versions, first, end);
    } else {
      if (choice.missing_from(first, index)) {
        *stitched->reasons(first) = routes.reasons()[static_cast<size_t>(first - routes.start())];
      }
      ++end;
    }
  }
}

Status check_captures(std::span<const Capture> captures) {
  if (captures.empty()) return fail(ErrorCode::kInvalidArgument, "captures: expected at least one, got none");
  for (size_t i = 0; i < captures.size(); ++i) {
    const auto& [routes, sampled_from] = captures[i];
    MOETAPE_TRY(check_same_spec(fmt::format("captures[{}]", i), captures[0].routes.spec(), routes.spec()));
    if (routes.num_rows() != 0 && !routes.has_tokens()) {
      return fail(ErrorCode::kInvalidArgument, "captures[{}]: expected routes with tokens, got none", i);
    }
    if (sampled_from < 0) {
      return fail(ErrorCode::kOutOfRange,
                  "captures[{}]: sampled_from: expected a position of 0 or more, got {}", i, sampled_from);
    }
  }
  return {};
}

}  // namespace

Result<Routes> stitch(Tokens tokens, std::span<const Capture> captures) {
  MOETAPE_TRY(check_captures(captures));
  MOETAPE_ASSIGN(const std::vector<int64_t> matched, Matcher(tokens, captures).match());
  RouteSpec spec = captures[0].routes.spec();
  for (const Capture& capture : captures) spec = common_spec(spec, capture.routes.spec());
  MOETAPE_ASSIGN(Assembly stitched, Assembly::create(spec, 0, std::ssize(tokens)));
  const Choice choice(captures, matched, std::ssize(tokens));
  for (size_t i = 0; i < captures.size(); ++i)
    take_rows(captures[i].routes, i, matched[i], choice, &stitched);
  stitched.set_tokens({tokens.begin(), tokens.end()});
  return std::move(stitched).finish();
}

}  // namespace moetape::inline v0
