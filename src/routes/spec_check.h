// The check that two specs agree, for everything that joins, writes or replays routes.
#pragma once

#include <string_view>

#include "moetape/error.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

// kSpecMismatch, naming both fingerprints and the first field that differs, unless the fingerprints agree.
// `what` names the thing that was found ("other").
Status check_same_spec(std::string_view what, const RouteSpec& expected, const RouteSpec& found);

// The same for rows of `found` that go where those of `spec` stand; kSpecMismatch, too, where they may repeat
// an id and `spec` promises that none does.
Status check_fits(std::string_view what, const RouteSpec& spec, const RouteSpec& found);

// What the rows of two specs of one fingerprint promise together: `first`, but distinct only if both are.
RouteSpec common_spec(const RouteSpec& first, const RouteSpec& second);

}  // namespace moetape::inline v0
