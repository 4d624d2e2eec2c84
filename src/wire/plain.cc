// Ids and nothing else: SGLang's base64, and the bytes of arrays.
#include <memory>
#include <utility>

#include "base/fail.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/types.h"

namespace moetape::inline v0::wire {
namespace {

Result<OpenForm> open_plain(std::unique_ptr<ByteReader> reader, const Traits& traits, const RouteSpec& spec,
                            const DecodeOptions& options) {
  MOETAPE_ASSIGN(const IntType type, unsaid_type(traits.info, spec, options));
  Arrival arrival{.dialect = traits.name(), .axis = traits.info.axes.front(), .type = type};
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (reader->remaining() % row_bytes != 0) {
    return fail(ErrorCode::kWrongShape,
                "{}: expected rows of {} bytes ({} layers of {} {} ids), got {} bytes", traits.name(),
                row_bytes, num_layers(spec, arrival.axis), spec.top_k(), int_type_name(type),
                reader->remaining());
  }
  arrival.num_rows = reader->remaining() / row_bytes;
  return OpenForm{std::move(reader), arrival};
}

}  // namespace

std::vector<Form> base64_forms(const Wanted& wanted) {
  return {{.axis = wanted.axis, .type = wanted.type, .num_rows = wanted.num_rows}};
}

std::vector<Form> raw_forms(const Wanted& wanted) {
  return {{.coding = Coding::kRaw, .axis = wanted.axis, .type = wanted.type, .num_rows = wanted.num_rows}};
}

Result<OpenForm> open_base64(const Traits& traits, std::string_view text, const RouteSpec& spec,
                             const DecodeOptions& options) {
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(traits.name(), text));
  return open_plain(std::make_unique<Base64Reader>(std::move(reader)), traits, spec, options);
}

Result<OpenForm> open_raw(const Traits& traits, std::string_view text, const RouteSpec& spec,
                          const DecodeOptions& options) {
  return open_plain(std::make_unique<RawReader>(text.data(), static_cast<int64_t>(text.size())), traits, spec,
                    options);
}

}  // namespace moetape::inline v0::wire
