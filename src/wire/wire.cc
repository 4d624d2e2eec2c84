#include "moetape/wire.h"

#include <array>

#include "base/fail.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/encoder.h"

namespace moetape::inline v0 {
namespace {

struct Entry {
  std::string_view name;
  bool all_layers;
  Result<wire::Form> (*form)(const RouteSpec& spec, int64_t num_rows);
  Result<Routes> (*decode)(std::string_view text, const RouteSpec& spec, const DecodeOptions& options);
};

// In the order of the enum.
constexpr std::array kEntries = {
    Entry{"sglang", true, wire::sglang_form, wire::decode_sglang},
    Entry{"vllm", true, wire::vllm_form, wire::decode_vllm},
    Entry{"lightllm", false, wire::lightllm_form, wire::decode_lightllm},
};

constexpr const Entry& entry_of(Dialect dialect) { return kEntries[static_cast<size_t>(dialect)]; }

Result<wire::Form> make_form(Dialect dialect, const RouteSpec& spec, int64_t num_rows) {
  if (num_rows < 0) return fail(ErrorCode::kInvalidArgument, "rows: expected 0 or more, got {}", num_rows);
  return entry_of(dialect).form(spec, num_rows);
}

}  // namespace

std::string_view dialect_name(Dialect dialect) { return entry_of(dialect).name; }

Result<Dialect> dialect_from_name(std::string_view name) {
  std::string names;
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (name == kEntries[i].name) return static_cast<Dialect>(i);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kEntries[i].name);
  }
  return fail(ErrorCode::kInvalidArgument, "dialect: expected one of {}, got \"{}\"", names, name);
}

Result<size_t> encoded_size(const RouteSpec& spec, int64_t num_rows, Dialect dialect) {
  MOETAPE_ASSIGN(const wire::Form form, make_form(dialect, spec, num_rows));
  return wire::form_size(spec, num_rows, form);
}

Status encode_into(RowSource& source, Dialect dialect, std::span<char> out, const EncodeOptions& options) {
  MOETAPE_ASSIGN(const wire::Form form, make_form(dialect, source.spec(), source.num_rows()));
  MOETAPE_ASSIGN(const size_t size, wire::form_size(source.spec(), source.num_rows(), form));
  if (out.size() < size) {
    return fail(ErrorCode::kCapacity, "out: expected room for {} characters, got {}", size, out.size());
  }
  return wire::write_form(source, form, dialect_name(dialect), options, out.data());
}

Result<std::string> encode(RowSource& source, Dialect dialect, const EncodeOptions& options) {
  MOETAPE_ASSIGN(const size_t size, encoded_size(source.spec(), source.num_rows(), dialect));
  std::string text(size, '\0');
  MOETAPE_TRY(encode_into(source, dialect, text, options));
  return text;
}

Result<std::string> encode(const Routes& routes, Dialect dialect, const EncodeOptions& options) {
  RoutesSource source(routes);
  return encode(source, dialect, options);
}

Result<Routes> decode(std::string_view text, Dialect dialect, const RouteSpec& spec,
                      const DecodeOptions& options) {
  return entry_of(dialect).decode(text, spec, options);
}

Result<Routes> decode_array(const void* ids, IntType type, std::span<const int64_t> shape, Dialect dialect,
                            const RouteSpec& spec, const DecodeOptions& options) {
  const Entry& entry = entry_of(dialect);
  MOETAPE_TRY(wire::check_shape(spec, entry.name, entry.all_layers, shape));
  const wire::Arrival arrival{
      .dialect = entry.name, .all_layers = entry.all_layers, .type = type, .num_rows = shape[0]};
  return wire::decode_rows(static_cast<const std::byte*>(ids), spec, arrival, options);
}

}  // namespace moetape::inline v0
