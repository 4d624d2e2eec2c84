// All commands; each is declared and done in the file of its name.
#pragma once

#include "arguments.h"

namespace moetape::cli {

void add_info(Program& program);
void add_verify(Program& program);
void add_convert(Program& program);
void add_compare(Program& program);
void add_diagnose(Program& program);
void add_stats(Program& program);
void add_report(Program& program);
void add_merge(Program& program);
void add_slice(Program& program);
void add_completion(Program& program);

}  // namespace moetape::cli
