// Routes::extend and merge_rows: rows of one spec, joined by position.

#include <algorithm>
#include <cstring>
#include <string>

#include "base/fail.h"
#include "moetape/routes.h"
#include "routes/assembly.h"
#include "routes/spec_check.h"

namespace moetape::inline v0 {
namespace {

class Join {
 public:
  Join(Assembly assembly, int64_t start, int64_t num_rows, OnOverlap on_overlap)
      : rows_(std::move(assembly)),
        start_(start),
        on_overlap_(on_overlap),
        tokens_(static_cast<size_t>(num_rows)),
        covered_(static_cast<size_t>(num_rows)) {}

  Status add(const Routes& part) {
    MOETAPE_TRY(add_tokens(part));
    const std::vector<uint32_t> versions = row_versions(part);
    for (int64_t first = part.start(), end = first; first < part.end(); first = end) {
      const Action action = action_at(part, first);
      while (end < part.end() && action_at(part, end) == action) ++end;
      MOETAPE_TRY(apply(action, part, versions, first, end));
    }
    return {};
  }

  Routes finish() && {
    const bool no_gap = std::ranges::find(covered_, uint8_t{0}) == covered_.end();
    if (any_carries_tokens_ && all_carry_tokens_ && no_gap) rows_.set_tokens(std::move(tokens_));
    return std::move(rows_).finish();
  }

 private:
  enum class Action { kNothing, kTakeReason, kTakeRow, kCompare };

  Action action_at(const Routes& part, int64_t position) {
    const bool have = *rows_.reasons(position) == Reason::kValid;
    const bool given = part.reasons()[static_cast<size_t>(position - part.start())] == Reason::kValid;
    if (!given) return *rows_.reasons(position) == Reason::kGap ? Action::kTakeReason : Action::kNothing;
    if (!have || on_overlap_ == OnOverlap::kKeepLast) return Action::kTakeRow;
    return on_overlap_ == OnOverlap::kMustAgree ? Action::kCompare : Action::kNothing;
  }

  Status apply(Action action, const Routes& part, std::span<const uint32_t> versions, int64_t first,
               int64_t end) {
    switch (action) {
      case Action::kNothing:
        break;
      case Action::kTakeReason:
        std::copy_n(part.reasons().begin() + (first - part.start()), end - first, rows_.reasons(first));
        break;
      case Action::kTakeRow:
        rows_.copy(part, versions, first, end);
        break;
      case Action::kCompare:
        return compare(part, versions, first, end);
    }
    return {};
  }

  Status compare(const Routes& part, std::span<const uint32_t> versions, int64_t first, int64_t end) {
    for (int64_t position = first; position < end; ++position) {
      const int64_t index = position - part.start();
      const std::span<const std::byte> given = part.row(index);
      if (std::memcmp(rows_.row(position), given.data(), given.size()) != 0) {
        return explain(part.spec(), position, given);
      }
      const uint32_t version = versions[static_cast<size_t>(index)];
      uint32_t& have = rows_.version(position);
      if (have == kNoVersion) have = version;
      if (version != kNoVersion && have != version) {
        return fail(ErrorCode::kConflict, "position {}: expected one version, got {} and {}", position, have,
                    version);
      }
    }
    return {};
  }

  Failure explain(const RouteSpec& spec, int64_t position, std::span<const std::byte> given) {
    const int64_t list_bytes = int64_t{spec.top_k()} * spec.id_bytes();
    const std::byte* have = rows_.row(position);
    int64_t column = 0;
    while (std::memcmp(have + column * list_bytes, given.data() + column * list_bytes,
                       static_cast<size_t>(list_bytes)) == 0) {
      ++column;
    }
    return fail(ErrorCode::kConflict, "position {}, layer {}: expected records that agree, got {} and {}",
                position, spec.layers()[static_cast<size_t>(column)],
                list_at(spec, have + column * list_bytes), list_at(spec, given.data() + column * list_bytes));
  }

  static std::vector<int> list_at(const RouteSpec& spec, const std::byte* ids) {
    std::vector<int> list;
    list.reserve(static_cast<size_t>(spec.top_k()));
    for (int32_t k = 0; k < spec.top_k(); ++k) {
      list.push_back(spec.id_bytes() == 1 ? id_at<uint8_t>(ids, k) : id_at<uint16_t>(ids, k));
    }
    return list;
  }

  template <class Id>
  static int id_at(const std::byte* ids, int32_t k) {
    Id id;
    std::memcpy(&id, ids + k * sizeof(Id), sizeof(Id));
    return id;
  }

  // covered_: 0 = by no part yet, 1 = by a part without tokens, 2 = its token is known.
  Status add_tokens(const Routes& part) {
    any_carries_tokens_ = any_carries_tokens_ || part.has_tokens();
    if (part.num_rows() == 0) return {};
    all_carry_tokens_ = all_carry_tokens_ && part.has_tokens();
    const auto offset = static_cast<size_t>(part.start() - start_);
    for (size_t i = 0; i < static_cast<size_t>(part.num_rows()); ++i) {
      uint8_t& covered = covered_[offset + i];
      if (!part.has_tokens()) {
        covered = std::max<uint8_t>(covered, 1);
        continue;
      }
      const int32_t token = part.tokens()[i];
      if (covered == 2 && tokens_[offset + i] != token) {
        return fail(ErrorCode::kConflict, "position {}: expected one token, got {} and {}",
                    part.start() + static_cast<int64_t>(i), tokens_[offset + i], token);
      }
      tokens_[offset + i] = token;
      covered = 2;
    }
    return {};
  }

  Assembly rows_;
  int64_t start_;
  OnOverlap on_overlap_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> covered_;
  bool any_carries_tokens_ = false;
  bool all_carry_tokens_ = true;  // empty parts lack none
};

// Calls name(i) for the word that an error has for parts[i].
template <class Name>
Result<Routes> join(std::span<const Routes* const> parts, OnOverlap on_overlap, Name name) {
  RouteSpec spec = parts[0]->spec();
  int64_t start = parts[0]->start();
  int64_t end = parts[0]->end();
  for (size_t i = 1; i < parts.size(); ++i) {
    MOETAPE_TRY(check_same_spec(name(i), spec, parts[i]->spec()));
    spec = common_spec(spec, parts[i]->spec());
    start = std::min(start, parts[i]->start());
    end = std::max(end, parts[i]->end());
  }
  MOETAPE_ASSIGN(Assembly assembly, Assembly::create(spec, start, end - start));
  Join join(std::move(assembly), start, end - start, on_overlap);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (Status added = join.add(*parts[i]); !added) {
      return fail(added.error().code, "{}: {}", name(i), added.error().message);
    }
  }
  return std::move(join).finish();
}

}  // namespace

Result<Routes> Routes::extend(const Routes& other, OnOverlap on_overlap) const {
  return join(std::to_array<const Routes*>({this, &other}), on_overlap,
              [](size_t) { return std::string("other"); });
}

Result<Routes> merge_rows(std::span<const Routes> parts) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "parts: expected at least one, got none");
  std::vector<const Routes*> pointers;
  for (const Routes& part : parts) pointers.push_back(&part);
  return join(pointers, OnOverlap::kMustAgree, [](size_t i) { return fmt::format("parts[{}]", i); });
}

}  // namespace moetape::inline v0
