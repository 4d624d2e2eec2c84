#include <csignal>

#include "arguments.h"
#include "commands.h"
#include "console.h"

int main(int argc, char** argv) {
  using namespace moetape::cli;
  // A closed pipe and a file size limit shall be errors of the calls that meet them.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  Console console;
  Program program;
  add_info(program);
  add_verify(program);
  add_convert(program);
  add_compare(program);
  add_stats(program);
  add_report(program);
  add_merge(program);
  add_slice(program);
  add_completion(program);
  return program.run(argc, argv, console);
}
