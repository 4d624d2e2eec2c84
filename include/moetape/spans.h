// Spans: rows of one request that come in parts, put together and held against the number of its tokens.
//
// N tokens have N - 1 rows: the last sampled token was never fed. A request asked from position `start` on
// has N - 1 - start. Free functions over values, any thread; RouteStream is used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

// Disaggregated serving: the prefill worker's rows [start, prompt_tokens), then those of the decode worker.
// What the decode worker knows of the prompt (see DecodeOptions::known_from) must agree (kConflict). Errors:
// kWrongShape, naming the ends, unless prefill ends at prompt_tokens, without a missing row (kMissingRows),
// and decoded begins no later and ends no earlier.
Result<Routes> splice(const Routes& prefill, const Routes& decoded, int64_t prompt_tokens);

// A request that was stopped and went on: `history`, then what `continuation`, which holds all rows from the
// same start, has beyond it. Rows of the history stay, whatever the continuation computed for them again.
// kWrongShape for another start, or if the continuation is more than one row shorter than the history (that
// one may be of the token sampled last, which the continuation did not feed again).
Result<Routes> resume(const Routes& history, const Routes& continuation);

// How routes stand against the tokens of their request.
struct Alignment {
  int64_t expected = 0;  // rows of positions [start, num_tokens - 1)
  int64_t found = 0;     // valid ones of them
  int64_t missing = 0;   // the others
  int64_t surplus = 0;   // rows at other positions
  bool complete() const { return missing == 0 && surplus == 0; }
  bool operator==(const Alignment&) const = default;
};
// kInvalidArgument for numbers below 0.
Result<Alignment> align(const Routes& routes, int64_t num_tokens, int64_t start = 0);

// Exactly the rows [start, num_tokens - 1): what the routes lack is missing (kGap). kWrongShape for rows at
// other positions.
Result<Routes> fit(const Routes& routes, int64_t num_tokens, int64_t start = 0);

// Rows that come chunk by chunk with the tokens of a stream; the chunks may be grouped in any way.
class RouteStream {
 public:
  // A request of prompt_tokens (1 or more), asked for rows from position `start` on.
  static Result<RouteStream> create(const RouteSpec& spec, int64_t prompt_tokens, int64_t start = 0);

  // Position of the next row: where the rows of the next chunk start.
  int64_t next() const { return next_; }

  // A chunk with num_new_tokens tokens and, if it has rows, these. Rows go on where the last ones ended, and
  // never beyond the tokens known so far: kWrongShape for rows sent twice or left out, and for chunks that
  // hold all rows so far beside new tokens only. A chunk that is refused changes nothing.
  Status add(int64_t num_new_tokens, const std::optional<Routes>& rows = {});

  // All rows; kMissingRows if the tokens have more.
  Result<Routes> finish() const;

 private:
  RouteStream(RouteSpec spec, int64_t prompt_tokens, int64_t start)
      : spec_(std::move(spec)), start_(start), next_(start), num_tokens_(prompt_tokens) {}

  RouteSpec spec_;
  int64_t start_;
  int64_t next_;
  int64_t num_tokens_;
  std::vector<Routes> chunks_;
};

// Sequences of any lengths as one run of rows: those of sequence i are [offsets[i], offsets[i + 1]).
struct Packed {
  Routes rows;                   // at position 0; versions are kept, positions and tokens are not
  std::vector<int64_t> offsets;  // one more than sequences
};
// kInvalidArgument for no sequences at all, kSpecMismatch unless the fingerprints agree.
Result<Packed> pack(std::span<const Routes> sequences);

}  // namespace moetape::inline v0
