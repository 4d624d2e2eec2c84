// All commands; each is declared and done in the file of its name.
#pragma once

#include "arguments.h"

namespace moetape::cli {

void add_info(Program& program);
void add_completion(Program& program);

}  // namespace moetape::cli
