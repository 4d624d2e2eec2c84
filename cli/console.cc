#include "console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "refusal.h"

namespace moetape::cli {
namespace {

volatile std::sig_atomic_t interrupt = 0;

bool environment_allows_colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && terminal != nullptr &&
         std::strcmp(terminal, "dumb") != 0;
}

constexpr int kBarWidth = 30;

}  // namespace

Console::Console()
    : output_is_terminal_(isatty(STDOUT_FILENO) == 1),
      shows_progress_(isatty(STDERR_FILENO) == 1),
      colours_(output_is_terminal_ && environment_allows_colours()) {}

void Console::print(std::string_view text) {
  if (closed_) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail();
}

void Console::flush() {
  if (!closed_ && std::fflush(stdout) != 0) fail();
}

void Console::fail() {
  closed_ = true;
  if (errno != EPIPE) refuse("standard output: {}", std::strerror(errno));
}

void Console::complain(std::string_view message) {
  std::fflush(stdout);
  const std::string line = fmt::format("moetape: {}\n", printable(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string Console::styled(Style style, std::string_view text) const {
  static constexpr const char* kCodes[] = {"0", "1", "32", "31"};
  if (!colours_ || style == Style::kPlain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(style)], text);
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || code == 0x7f) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += letter;
    }
  }
  return result;
}

void catch_interrupts() {
  static bool caught = false;
  if (std::exchange(caught, true)) return;
  struct sigaction action = {};
  action.sa_handler = [](int number) { interrupt = number; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

void end_by_interrupt() {
  const int number = interrupt;
  std::signal(number, SIG_DFL);
  std::raise(number);
  std::_Exit(128 + number);
}

Progress::Progress(const Console& console, std::string_view what, int64_t total)
    : shown_(console.shows_progress() && total > 1), what_(what), total_(total) {}

Progress::~Progress() { erase(); }

void Progress::advance(int64_t pieces) {
  if (interrupt != 0) throw Interrupted();
  done_ += pieces;
  if (!shown_) return;
  const int per_mille =
      static_cast<int>(1000.0 * static_cast<double>(std::min(done_, total_)) / static_cast<double>(total_));
  if (per_mille == drawn_) return;
  draw(per_mille);
  if (done_ >= total_) erase();
}

void Progress::erase() {
  if (drawn_ >= 0) std::fputs("\r\x1b[K", stderr);
  drawn_ = -1;
}

void Progress::draw(int per_mille) {
  drawn_ = per_mille;
  const int filled = per_mille * kBarWidth / 1000;
  const std::string line = fmt::format("\r{} [{:=<{}}{:{}}] {:3}%\x1b[K", what_, "", filled, "",
                                       kBarWidth - filled, per_mille / 10);
  std::fputs(line.c_str(), stderr);
}

}  // namespace moetape::cli
