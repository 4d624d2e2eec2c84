// vLLM: base64 of a .npy file [rows, all layers, k], in routed_experts of a choice.
#include <string>

#include "base/checked.h"
#include "base/fail.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/npy.h"

namespace moetape::inline v0::wire {
namespace {

constexpr std::string_view kName = "vllm";

Result<std::string> read_string(Base64Reader& reader, std::string_view thing, int64_t bytes) {
  if (bytes > reader.remaining()) {
    return fail(ErrorCode::kCorruptData, "{}: {}: expected {} bytes, got {}", kName, thing, bytes,
                reader.remaining());
  }
  std::string string(static_cast<size_t>(bytes), '\0');
  MOETAPE_TRY(reader.read(reinterpret_cast<std::byte*>(string.data()), bytes));
  return string;
}

}  // namespace

Result<Form> vllm_form(const RouteSpec& spec, int64_t num_rows) {
  const IntType type = spec.id_bytes() == 1 ? IntType::kUint8 : IntType::kUint16;
  return Form{.all_layers = true,
              .id_bytes = spec.id_bytes(),
              .header = npy_header(type, {num_rows, spec.num_layers(), spec.top_k()})};
}

Result<Routes> decode_vllm(std::string_view text, const RouteSpec& spec, const DecodeOptions& options) {
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(kName, text));
  MOETAPE_ASSIGN(const std::string prefix, read_string(reader, "npy header", kNpyPrefixBytes));
  MOETAPE_ASSIGN(const int64_t dict_bytes, npy_dict_bytes(prefix));
  MOETAPE_ASSIGN(const std::string dict, read_string(reader, "npy dict", dict_bytes));
  MOETAPE_ASSIGN(const NpyDict npy, parse_npy_dict(dict));
  MOETAPE_TRY(check_shape(spec, kName, true, npy.shape));

  const Arrival arrival{.dialect = kName, .all_layers = true, .type = npy.type, .num_rows = npy.shape[0]};
  const int64_t row_bytes = arriving_row_bytes(spec, arrival);
  if (checked_multiply(arrival.num_rows, row_bytes) != reader.remaining()) {
    return fail(ErrorCode::kCorruptData, "{}: expected {} rows of {} bytes, as the shape says, got {} bytes",
                kName, arrival.num_rows, row_bytes, reader.remaining());
  }
  return decode_rows(reader, spec, arrival, options);
}

}  // namespace moetape::inline v0::wire
