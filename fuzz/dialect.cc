#include "fuzz.h"

namespace moetape::fuzz {

const std::string_view kDialectName = MOETAPE_FUZZ_DIALECT;

}  // namespace moetape::fuzz
