// moetape's own form: a tape of one sequence, as it is or in base64.
#include "moetape/tape.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/fail.h"
#include "routes/spec_check.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"

namespace moetape::inline v0::wire {
namespace {

// Tapes are read where they lie, if their numbers may be.
constexpr uintptr_t kAlignment = 8;

// The rows that the options leave, in memory of their own.
Result<Routes> take_rows(std::string_view name, const Routes& routes, const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Kept kept, rows_kept(name, routes.num_rows(), routes.start(), options));
  MOETAPE_ASSIGN(RoutesBuilder builder, RoutesBuilder::create(routes.spec(), kept.start, kept.num_rows));
  if (kept.num_rows > 0) {
    const auto bytes = static_cast<size_t>(kept.num_rows * routes.spec().row_bytes());
    std::memcpy(builder.ids(), routes.ids().data(), bytes);
    std::copy_n(routes.reasons().begin(), kept.num_rows, builder.reasons());
    std::fill_n(builder.reasons(), kept.first_known, Reason::kNotSent);
  }
  const std::vector<VersionRun> versions = routes.versions();
  if (options.version && versions.empty() && kept.num_rows > 0) {
    builder.add_version(0, kept.num_rows, *options.version);
  }
  for (const VersionRun& run : versions) {
    if (options.version && run.version != *options.version) {
      return fail(ErrorCode::kConflict, "{}: position {}: expected version {}, got {}", name, run.start,
                  *options.version, run.version);
    }
    const int64_t first = run.start - kept.start;
    const int64_t count = std::min(run.end - kept.start, kept.num_rows) - first;
    if (count > 0) builder.add_version(first, count, run.version);
  }
  if (routes.has_tokens()) {
    const auto tokens = routes.tokens().first(static_cast<size_t>(kept.num_rows));
    builder.set_tokens({tokens.begin(), tokens.end()});
  }
  return std::move(builder).finish();
}

Result<Routes> decode_bytes(const Traits& traits, Buffer bytes, const RouteSpec& spec,
                            const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Tape tape, Tape::from_bytes(std::move(bytes), std::string(traits.name())));
  MOETAPE_TRY(check_fits(traits.name(), spec, tape.spec()));
  if (tape.num_sequences() != 1) {
    return fail(ErrorCode::kWrongShape, "{}: sequences: expected 1, got {}", traits.name(),
                tape.num_sequences());
  }
  if (const std::vector<TapeFault> faults = tape.verify(); !faults.empty()) {
    return Failure(faults.front().error);
  }
  MOETAPE_ASSIGN(const Routes routes, tape.read(0));
  return take_rows(traits.name(), routes, options);
}

}  // namespace

Result<Routes> decode_tape(const Traits& traits, std::string_view text, const RouteSpec& spec,
                           const DecodeOptions& options) {
  const auto size = static_cast<int64_t>(text.size());
  if (reinterpret_cast<uintptr_t>(text.data()) % kAlignment == 0) {
    // The caller keeps the text until the rows are copied.
    std::shared_ptr<void> no_owner;
    return decode_bytes(traits, Buffer::wrap(text.data(), size, no_owner), spec, options);
  }
  MOETAPE_ASSIGN(Buffer bytes, Buffer::allocate(size));
  std::memcpy(bytes.mutable_data(), text.data(), text.size());
  return decode_bytes(traits, std::move(bytes), spec, options);
}

Result<Routes> decode_base64_tape(const Traits& traits, std::string_view text, const RouteSpec& spec,
                                  const DecodeOptions& options) {
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(traits.name(), text));
  MOETAPE_ASSIGN(Buffer bytes, Buffer::allocate(reader.remaining()));
  MOETAPE_TRY(reader.next(reader.remaining(), bytes.mutable_data()));
  return decode_bytes(traits, std::move(bytes), spec, options);
}

}  // namespace moetape::inline v0::wire
