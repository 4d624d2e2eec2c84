// What the configuration of a Hugging Face model says about its MoE layers. The rules are those of
// python/moetape/config.py, and a test holds the two against each other.
#pragma once

#include "json.h"
#include "moetape/spec.h"

namespace moetape::cli {

// Refuses what it does not understand, by the name of the setting.
RouteSpec spec_from_config(const ParsedJson& config);

}  // namespace moetape::cli
