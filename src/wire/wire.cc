#include "moetape/wire.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "moetape/tape.h"
#include "simd/base64.h"
#include "simd/narrow.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/encoder.h"
#include "wire/types.h"

namespace moetape::inline v0 {
namespace wire {
namespace {

constexpr std::array kAll = {LayerAxis::kAll};
constexpr std::array kMoe = {LayerAxis::kMoe};
constexpr std::array kAllOrMoe = {LayerAxis::kAll, LayerAxis::kMoe};
constexpr std::array kMoeOrAll = {LayerAxis::kMoe, LayerAxis::kAll};

using enum IntType;
constexpr std::array kSglangTypes = {kInt32, kUint16, kUint8};
constexpr std::array kVllmTypes = {kUint8, kUint16, kInt16, kInt32};
constexpr std::array kInt16Type = {kInt16};
constexpr std::array kInt32Type = {kInt32};
constexpr std::array kLightllmTypes = {kUint8, kInt16, kInt8};
constexpr std::array kUnsignedTypes = {kUint8, kUint16};
constexpr std::array kSkyrlTypes = {kUint8, kInt16, kInt32};
constexpr std::array kSignedTypes = {kInt8, kInt16, kInt32};
constexpr std::array kVerlTypes = {kInt16, kInt32};
constexpr std::array kTrainerTypes = {kInt32, kInt16};
constexpr std::array kAllTypes = {kUint8, kUint16, kInt8, kInt16, kInt32, kUint32, kInt64, kUint64};

constexpr DialectInfo text(std::string_view name, std::span<const IntType> types,
                           std::span<const LayerAxis> axes) {
  return {.name = name, .types = types, .axes = axes};
}

constexpr DialectInfo array(std::string_view name, std::span<const IntType> types,
                            std::span<const LayerAxis> axes) {
  return {.name = name, .kind = FormKind::kArray, .types = types, .axes = axes};
}

constexpr DialectInfo tape(std::string_view name, FormKind kind) {
  return {.name = name,
          .kind = kind,
          .says_missing = true,
          .says_start = true,
          .sized = false,
          .types = kUnsignedTypes,
          .axes = kMoe};
}

constexpr DialectInfo kPrimeRl = {
    .name = "prime-rl", .says_start = true, .types = kUnsignedTypes, .axes = kAll};
constexpr DialectInfo kNemoRl = {
    .name = "nemo-rl", .says_missing = true, .types = kSignedTypes, .axes = kAllOrMoe};
constexpr DialectInfo kNpy = {.name = "npy", .kind = FormKind::kBytes, .types = kAllTypes, .axes = kAllOrMoe};

// In the order of the enum.
constexpr std::array<Traits, kNumDialects> kTraits = {{
    {text("sglang", kSglangTypes, kAll), false, base64_forms, open_base64, nullptr},
    {text("vllm", kVllmTypes, kAll), false, base64_npy_forms, open_base64_npy, nullptr},
    {text("vllm-split", kVerlTypes, kAll), false, split_npy_forms, nullptr, decode_split_npy},
    {text("lightllm", kLightllmTypes, kMoe), false, lightllm_forms, nullptr, decode_json_object},
    {kPrimeRl, false, prime_rl_forms, nullptr, decode_json_object},
    {text("skyrl", kSkyrlTypes, kAll), true, skyrl_forms, nullptr, decode_json_object},
    {kNemoRl, false, nemo_rl_forms, open_nemo_rl, nullptr},
    {text("megatron", kInt32Type, kMoeOrAll), false, lists_forms, nullptr, decode_lists},
    {array("trtllm", kInt16Type, kMoe), false, raw_forms, open_raw, nullptr},
    {array("verl", kVerlTypes, kAll), false, raw_forms, open_raw, nullptr},
    {array("slime", kTrainerTypes, kAll), false, raw_forms, open_raw, nullptr},
    {array("miles", kTrainerTypes, kAll), false, raw_forms, open_raw, nullptr},
    {kNpy, false, npy_forms, open_npy, nullptr},
    {tape("tape", FormKind::kBytes), false, nullptr, nullptr, decode_tape},
    {tape("tape-base64", FormKind::kText), false, nullptr, nullptr, decode_base64_tape},
}};

Result<IntType> type_to_write(const Traits& traits, const RouteSpec& spec, const EncodeOptions& options) {
  const DialectInfo& info = traits.info;
  if (!options.type) return first_type(info, spec.num_experts());
  if (traits.narrowest || !info.sized) {
    return fail(ErrorCode::kUnsupported, "{}: type: expected none, since it follows the {}, got {}",
                info.name, info.sized ? "largest id" : "experts", int_type_name(*options.type));
  }
  if (std::ranges::find(info.types, *options.type) == info.types.end()) {
    return fail(ErrorCode::kUnsupported, "{}: type: expected {}, got {}", info.name, type_names(info.types),
                int_type_name(*options.type));
  }
  if (!holds(*options.type, spec.num_experts() - 1)) {
    return fail(ErrorCode::kUnsupported, "{}: type: expected one that counts {} experts, got {}", info.name,
                spec.num_experts(), int_type_name(*options.type));
  }
  return *options.type;
}

Result<LayerAxis> axis_to_write(const DialectInfo& info, const EncodeOptions& options) {
  const LayerAxis axis = options.layers.value_or(info.axes.front());
  if (std::ranges::find(info.axes, axis) != info.axes.end()) return axis;
  const auto name = [](LayerAxis some) { return some == LayerAxis::kAll ? "all" : "MoE layers only"; };
  return fail(ErrorCode::kUnsupported, "{}: layers: expected {}, got {}", info.name, name(info.axes.front()),
              name(axis));
}

Result<Wanted> make_wanted(const RouteSpec& spec, int64_t num_rows, Dialect dialect,
                           const EncodeOptions& options, int64_t start) {
  const Traits& traits = traits_of(dialect);
  if (num_rows < 0) return fail(ErrorCode::kInvalidArgument, "rows: expected 0 or more, got {}", num_rows);
  if (options.prompt_rows < 0 || options.prompt_rows > num_rows) {
    return fail(ErrorCode::kOutOfRange, "prompt_rows: expected 0 to {}, got {}", num_rows,
                options.prompt_rows);
  }
  MOETAPE_ASSIGN(const IntType type, type_to_write(traits, spec, options));
  MOETAPE_ASSIGN(const LayerAxis axis, axis_to_write(traits.info, options));
  return Wanted{.spec = spec,
                .num_rows = num_rows,
                .start = start,
                .prompt_rows = options.prompt_rows,
                .type = type,
                .axis = axis};
}

// All rows of a source, as they come.
Result<Routes> gather(RowSource& source, std::string_view dialect, MissingFill fill) {
  const RouteSpec& spec = source.spec();
  MOETAPE_TRY(check_fill(spec, dialect, fill));
  MOETAPE_ASSIGN(RoutesBuilder builder,
                 RoutesBuilder::create(source.spec(), source.start(), source.num_rows()));
  MOETAPE_TRY(source.pull(0, source.num_rows(), builder.ids(), builder.reasons()));
  for (int64_t row = 0; row < source.num_rows() && fill != MissingFill::kRefuse; ++row) {
    if (builder.reasons()[row] == Reason::kValid) continue;
    fill_row(spec, fill, builder.ids() + row * spec.row_bytes());
    builder.reasons()[row] = Reason::kValid;
  }
  return std::move(builder).finish();
}

// The narrowest type that holds the ids that will be written.
Result<IntType> narrowest_type(const DialectInfo& info, const Routes& routes) {
  const int id_bytes = routes.spec().id_bytes();
  const int64_t num_ids = static_cast<int64_t>(routes.ids().size()) / id_bytes;
  const int64_t largest = simd::largest_id(routes.ids().data(), id_bytes, num_ids);
  return first_type(info, largest + 1);
}

// A tape of these routes, as the dialect has it.
Result<std::string> write_tape(const Traits& traits, const Routes& routes, const EncodeOptions& options) {
  if (options.missing != MissingFill::kRefuse) {
    return fail(ErrorCode::kUnsupported,
                "{}: missing: expected no fill, since a tape says which rows are missing", traits.name());
  }
  MOETAPE_ASSIGN(const Buffer bytes, tape_bytes(routes.spec(), {&routes, 1}));
  const auto size = static_cast<size_t>(bytes.size());
  if (traits.info.kind == FormKind::kBytes)
    return std::string(reinterpret_cast<const char*>(bytes.data()), size);
  std::string text(simd::base64_size(size), '\0');
  simd::base64_encode(text.data(), bytes.data(), size);
  return text;
}

Status check_room(std::span<const char> out, size_t size) {
  if (out.size() >= size) return {};
  return fail(ErrorCode::kCapacity, "out: expected room for {} characters, got {}", size, out.size());
}

}  // namespace

const Traits& traits_of(Dialect dialect) { return kTraits[static_cast<size_t>(dialect)]; }

}  // namespace wire

const DialectInfo& dialect_info(Dialect dialect) { return wire::traits_of(dialect).info; }

std::string_view dialect_name(Dialect dialect) { return dialect_info(dialect).name; }

Result<Dialect> dialect_from_name(std::string_view name) {
  std::string names;
  for (int i = 0; i < kNumDialects; ++i) {
    const auto dialect = static_cast<Dialect>(i);
    if (name == dialect_name(dialect)) return dialect;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", dialect_name(dialect));
  }
  return fail(ErrorCode::kInvalidArgument, "dialect: expected one of {}, got \"{}\"", names, name);
}

Result<size_t> encoded_size(const RouteSpec& spec, int64_t num_rows, Dialect dialect,
                            const EncodeOptions& options, int64_t start) {
  MOETAPE_ASSIGN(const wire::Wanted wanted, wire::make_wanted(spec, num_rows, dialect, options, start));
  if (!dialect_info(dialect).sized) {
    return fail(ErrorCode::kUnsupported, "{}: size: known only when it is written", dialect_name(dialect));
  }
  return wire::forms_size(spec, wire::traits_of(dialect).forms(wanted));
}

Result<size_t> encode_into(RowSource& source, Dialect dialect, std::span<char> out,
                           const EncodeOptions& options) {
  const wire::Traits& traits = wire::traits_of(dialect);
  MOETAPE_ASSIGN(wire::Wanted wanted,
                 wire::make_wanted(source.spec(), source.num_rows(), dialect, options, source.start()));
  if (!traits.info.sized) {
    MOETAPE_ASSIGN(const std::string form, encode(source, dialect, options));
    MOETAPE_TRY(wire::check_room(out, form.size()));
    std::ranges::copy(form, out.begin());
    return form.size();
  }
  std::vector<wire::Form> forms = traits.forms(wanted);
  MOETAPE_ASSIGN(const size_t size, wire::forms_size(source.spec(), forms));
  MOETAPE_TRY(wire::check_room(out, size));
  if (!traits.narrowest || source.spec().id_bytes() == 1) {
    return wire::write_forms(source, forms, traits.name(), options, out.data());
  }
  MOETAPE_ASSIGN(Routes routes, wire::gather(source, traits.name(), options.missing));
  MOETAPE_ASSIGN(wanted.type, wire::narrowest_type(traits.info, routes));
  RoutesSource gathered(std::move(routes));
  return wire::write_forms(gathered, traits.forms(wanted), traits.name(), options, out.data());
}

Result<std::string> encode(RowSource& source, Dialect dialect, const EncodeOptions& options) {
  if (!dialect_info(dialect).sized) {
    MOETAPE_ASSIGN(const Routes routes, wire::gather(source, dialect_name(dialect), MissingFill::kRefuse));
    return encode(routes, dialect, options);
  }
  MOETAPE_ASSIGN(const size_t size,
                 encoded_size(source.spec(), source.num_rows(), dialect, options, source.start()));
  return guard_memory("encode", [&]() -> Result<std::string> {
    std::string text(size, '\0');
    MOETAPE_ASSIGN(const size_t written, encode_into(source, dialect, text, options));
    text.resize(written);
    return text;
  });
}

Result<std::string> encode(const Routes& routes, Dialect dialect, const EncodeOptions& options) {
  if (!dialect_info(dialect).sized) {
    MOETAPE_TRY(wire::make_wanted(routes.spec(), routes.num_rows(), dialect, options, routes.start()));
    return wire::write_tape(wire::traits_of(dialect), routes, options);
  }
  RoutesSource source(routes);
  return encode(source, dialect, options);
}

Result<ArrayForm> array_form(const RouteSpec& spec, int64_t num_rows, Dialect dialect,
                             const EncodeOptions& options) {
  MOETAPE_ASSIGN(const wire::Wanted wanted, wire::make_wanted(spec, num_rows, dialect, options, 0));
  return ArrayForm{wanted.type, wanted.shape()};
}

Result<Routes> decode(std::string_view text, Dialect dialect, const RouteSpec& spec,
                      const DecodeOptions& options) {
  const wire::Traits& traits = wire::traits_of(dialect);
  if (traits.decode != nullptr) return traits.decode(traits, text, spec, options);
  MOETAPE_ASSIGN(const wire::OpenForm form, traits.open(traits, text, spec, options));
  return wire::decode_rows(*form.reader, spec, form.arrival, options);
}

Result<std::unique_ptr<RowSource>> decode_rows(std::string_view text, Dialect dialect, const RouteSpec& spec,
                                               const DecodeOptions& options) {
  const wire::Traits& traits = wire::traits_of(dialect);
  if (traits.decode != nullptr) {
    MOETAPE_ASSIGN(Routes routes, traits.decode(traits, text, spec, options));
    return std::make_unique<RoutesSource>(std::move(routes));
  }
  return wire::pull_rows([&traits, text, spec, options] { return traits.open(traits, text, spec, options); },
                         spec, options);
}

Result<Routes> decode_array(const void* ids, IntType type, std::span<const int64_t> shape, Dialect dialect,
                            const RouteSpec& spec, const DecodeOptions& options) {
  const DialectInfo& info = dialect_info(dialect);
  if (!info.sized) return fail(ErrorCode::kUnsupported, "{}: array: expected the bytes of a tape", info.name);
  if (dialect == Dialect::kVllmSplit) {
    return fail(
        ErrorCode::kUnsupported,
        "{}: array: expected text; of arrays, each is \"vllm\" by itself, and the second has a surplus row",
        info.name);
  }
  MOETAPE_ASSIGN(const LayerAxis axis, wire::axis_of(info, spec, shape));
  const wire::Arrival arrival{.dialect = info.name,
                              .axis = axis,
                              .type = type,
                              .num_rows = shape[0],
                              .says_missing = info.says_missing && int_type_signed(type)};
  const std::optional<int64_t> bytes = checked_multiply(shape[0], wire::arriving_row_bytes(spec, arrival));
  if (!bytes) return fail(ErrorCode::kWrongShape, "{}: rows: expected fewer, got {}", info.name, shape[0]);
  wire::RawReader reader(ids, *bytes);
  return wire::decode_rows(reader, spec, arrival, options);
}

}  // namespace moetape::inline v0
