// SGLang: base64 of int32 [rows, all layers, k] and nothing else, in meta_info.routed_experts of /generate.
#include "base/fail.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"

namespace moetape::inline v0::wire {
namespace {

constexpr std::string_view kName = "sglang";

}  // namespace

Result<Form> sglang_form(const RouteSpec&, int64_t) { return Form{.all_layers = true, .id_bytes = 4}; }

Result<Routes> decode_sglang(std::string_view text, const RouteSpec& spec, const DecodeOptions& options) {
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(kName, text));
  Arrival arrival{.dialect = kName, .all_layers = true, .type = IntType::kInt32};
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (reader.remaining() % row_bytes != 0) {
    return fail(ErrorCode::kWrongShape,
                "{}: expected rows of {} bytes ({} layers of {} int32 ids), got {} bytes", kName, row_bytes,
                spec.num_layers(), spec.top_k(), reader.remaining());
  }
  arrival.num_rows = reader.remaining() / row_bytes;
  return decode_rows(reader, spec, arrival, options);
}

}  // namespace moetape::inline v0::wire
