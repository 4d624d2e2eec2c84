#include "moetape/spans.h"

#include <algorithm>

#include "base/checked.h"
#include "base/fail.h"

namespace moetape::inline v0 {
namespace {

// Rows [start, end) are what the tokens have.
struct Span {
  int64_t start = 0;
  int64_t end = 0;
};

Result<Span> span_of(int64_t num_tokens, int64_t start) {
  if (num_tokens < 0 || start < 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected 0 or more, got {}",
                start < 0 ? "start" : "num_tokens", start < 0 ? start : num_tokens);
  }
  return Span{start, std::max(start, num_tokens - 1)};
}

}  // namespace

Result<Routes> splice(const Routes& prefill, const Routes& decoded, int64_t prompt_tokens) {
  if (prefill.end() != prompt_tokens) {
    return fail(ErrorCode::kWrongShape, "prefill: expected rows up to position {}, got up to {}",
                prompt_tokens, prefill.end());
  }
  if (!prefill.complete()) {
    return fail(ErrorCode::kMissingRows, "prefill: expected all of {} rows, got {} missing",
                prefill.num_rows(), prefill.num_missing());
  }
  if (decoded.start() > prompt_tokens || decoded.end() < prompt_tokens) {
    return fail(ErrorCode::kWrongShape, "decoded: expected rows on both sides of position {}, got [{}, {})",
                prompt_tokens, decoded.start(), decoded.end());
  }
  return prefill.extend(decoded);
}

Result<Routes> resume(const Routes& history, const Routes& continuation) {
  if (continuation.start() != history.start()) {
    return fail(ErrorCode::kWrongShape,
                "continuation: expected rows from position {}, as the history has, got {}", history.start(),
                continuation.start());
  }
  if (continuation.num_rows() < history.num_rows() - 1) {
    return fail(ErrorCode::kWrongShape,
                "continuation: expected {} rows or more, since the history has {}, got {}",
                history.num_rows() - 1, history.num_rows(), continuation.num_rows());
  }
  return history.extend(continuation, OnOverlap::kKeepFirst);
}

Result<Alignment> align(const Routes& routes, int64_t num_tokens, int64_t start) {
  MOETAPE_ASSIGN(const Span span, span_of(num_tokens, start));
  const int64_t first = std::clamp(span.start, routes.start(), routes.end());
  const int64_t last = std::clamp(span.end, first, routes.end());
  const auto rows = routes.reasons().subspan(static_cast<size_t>(first - routes.start()),
                                             static_cast<size_t>(last - first));
  Alignment alignment;
  alignment.expected = span.end - span.start;
  alignment.found = std::ranges::count(rows, Reason::kValid);
  alignment.missing = alignment.expected - alignment.found;
  alignment.surplus = routes.num_rows() - (last - first);
  return alignment;
}

Result<Routes> fit(const Routes& routes, int64_t num_tokens, int64_t start) {
  MOETAPE_ASSIGN(const Span span, span_of(num_tokens, start));
  if (routes.num_rows() > 0 && (routes.start() < span.start || routes.end() > span.end)) {
    return fail(ErrorCode::kWrongShape, "rows: expected some of [{}, {}), got [{}, {})", span.start, span.end,
                routes.start(), routes.end());
  }
  MOETAPE_ASSIGN(const Routes front, Routes::empty(routes.spec(), span.start));
  MOETAPE_ASSIGN(const Routes back, Routes::empty(routes.spec(), span.end));
  if (routes.num_rows() == 0) return front.extend(back);
  MOETAPE_ASSIGN(const Routes from_start, routes.extend(front));
  return from_start.extend(back);
}

Result<RouteStream> RouteStream::create(const RouteSpec& spec, int64_t prompt_tokens, int64_t start) {
  if (prompt_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "prompt_tokens: expected 1 or more, got {}", prompt_tokens);
  }
  if (start < 0 || start > prompt_tokens) {
    return fail(ErrorCode::kOutOfRange, "start: expected 0 to {}, the prompt's tokens, got {}", prompt_tokens,
                start);
  }
  return RouteStream(spec, prompt_tokens, start);
}

Status RouteStream::add(int64_t num_new_tokens, const std::optional<Routes>& rows) {
  const std::optional<int64_t> num_tokens = checked_add(num_tokens_, num_new_tokens);
  if (num_new_tokens < 0 || !num_tokens) {
    return fail(ErrorCode::kInvalidArgument, "num_new_tokens: expected 0 or more, got {}", num_new_tokens);
  }
  if (rows && rows->num_rows() > 0) {
    if (rows->spec().fingerprint() != spec_.fingerprint()) {
      return fail(ErrorCode::kSpecMismatch, "chunk: expected routes of the stream's spec, got another");
    }
    if (rows->start() != next_) {
      return fail(ErrorCode::kWrongShape, "chunk: expected rows from position {} on, got from {}", next_,
                  rows->start());
    }
    const int64_t end = std::max(start_, *num_tokens - 1);
    if (rows->end() > end) {
      return fail(
          ErrorCode::kWrongShape,
          "chunk: expected at most {} rows, up to position {} of {} tokens, got {}: rows that were sent "
          "before, or of tokens that were not",
          end - next_, end, *num_tokens, rows->num_rows());
    }
    next_ = rows->end();
    chunks_.push_back(*rows);
  }
  num_tokens_ = *num_tokens;
  return {};
}

Result<Routes> RouteStream::finish() const {
  const int64_t end = std::max(start_, num_tokens_ - 1);
  if (next_ != end) {
    return fail(ErrorCode::kMissingRows, "stream: expected rows up to position {} of {} tokens, got up to {}",
                end, num_tokens_, next_);
  }
  if (chunks_.empty()) return Routes::empty(spec_, start_);
  return merge_rows(chunks_);
}

Result<Packed> pack(std::span<const Routes> sequences) {
  if (sequences.empty())
    return fail(ErrorCode::kInvalidArgument, "sequences: expected one or more, got none");
  const RouteSpec& spec = sequences.front().spec();
  std::vector<int64_t> offsets = {0};
  for (const Routes& routes : sequences) {
    if (routes.spec().fingerprint() != spec.fingerprint()) {
      return fail(ErrorCode::kSpecMismatch,
                  "sequence {}: expected routes of the first one's spec, got another", offsets.size() - 1);
    }
    offsets.push_back(offsets.back() + routes.num_rows());
  }
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(spec, 0, offsets.back()));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Routes& routes = sequences[i];
    if (routes.num_rows() == 0) continue;
    std::ranges::copy(routes.ids(), builder.ids() + offsets[i] * spec.row_bytes());
    std::ranges::copy(routes.reasons(), builder.reasons() + offsets[i]);
    for (const VersionRun& run : routes.versions()) {
      builder.add_version(offsets[i] + run.start - routes.start(), run.end - run.start, run.version);
    }
  }
  return Packed{std::move(builder).finish(), std::move(offsets)};
}

}  // namespace moetape::inline v0
