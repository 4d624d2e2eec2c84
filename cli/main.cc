#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "arguments.h"
#include "commands.h"
#include "console.h"

namespace {

// A standard stream that was closed shall fail when it is used, and not be the next file that is opened.
void keep_standard_streams_apart() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace moetape::cli;
  // A closed pipe and a file size limit shall be errors of the calls that meet them.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  keep_standard_streams_apart();
  Console console;
  Program program;
  add_info(program);
  add_verify(program);
  add_convert(program);
  add_compare(program);
  add_diagnose(program);
  add_stats(program);
  add_report(program);
  add_merge(program);
  add_slice(program);
  add_completion(program);
  return program.run(argc, argv, console);
}
