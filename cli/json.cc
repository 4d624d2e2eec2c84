#include "json.h"

#include <fmt/format.h>

namespace moetape::cli {

std::string fingerprint_text(const RouteSpec& spec) { return fmt::format("{:016x}", spec.fingerprint()); }

Json json_of(const RouteSpec& spec) {
  const RouteSpecFields& fields = spec.fields();
  Json excluded = Json::object();
  for (const auto& [layer, reason] : fields.excluded) excluded[fmt::format("{}", layer)] = reason;
  return {{"stack", fields.stack},
          {"layers", fields.layers},
          {"top_k", fields.top_k},
          {"num_experts", fields.num_experts},
          {"shared_columns", fields.shared_columns},
          {"distinct", fields.distinct},
          {"num_layers", fields.num_layers},
          {"excluded", std::move(excluded)},
          {"model", fields.model},
          {"fingerprint", fingerprint_text(spec)}};
}

void print_json(Console& console, const Json& json) {
  console.print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace moetape::cli
