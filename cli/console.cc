#include "console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
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

// A letter at the beginning of a text; one byte that is no UTF-8 stands for itself.
struct Letter {
  uint32_t code = 0;
  size_t bytes = 1;
  bool is_utf8 = false;
};

Letter first_letter(std::string_view text) {
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto first = static_cast<unsigned char>(text[0]);
  const Letter alone = {first, 1, first < 0x80};
  const size_t bytes = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (bytes < 2 || first > 0xF4 || text.size() < bytes) return alone;
  uint32_t code = first & (0x7Fu >> bytes);
  for (const char letter : text.substr(1, bytes - 1)) {
    if ((letter & 0xC0) != 0x80) return alone;
    code = code << 6 | (letter & 0x3Fu);
  }
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[bytes] || code > 0x10FFFF || is_surrogate) return alone;
  return {code, bytes, true};
}

// Control characters, those that end lines, and those that change the direction of writing.
bool moves_or_hides(uint32_t code) {
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0, 0x1F}, {0x7F, 0x9F}, {0x61C, 0x61C}, {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2066, 0x2069}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [code](const auto& range) { return code >= range.first && code <= range.second; });
}

// Of what moves or hides, what is below `least` stays.
std::string escaped(std::string_view text, uint32_t least) {
  std::string result;
  while (!text.empty()) {
    const Letter letter = first_letter(text);
    if (letter.is_utf8 && (letter.code < least || !moves_or_hides(letter.code))) {
      result += text.substr(0, letter.bytes);
    } else if (letter.is_utf8 && (letter.code >= 0x80 || least > 0)) {
      result += fmt::format("\\u{:04x}", letter.code);
    } else {
      result += fmt::format("\\x{:02x}", letter.code);
    }
    text.remove_prefix(letter.bytes);
  }
  return result;
}

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
  const int error = errno;
  check_interrupts();
  if (error != EPIPE) refuse("standard output: {}", std::strerror(error));
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

std::string printable(std::string_view text) { return escaped(text, 0); }

// Below, only the line ends and spaces between values are not escaped already.
std::string printable_json(std::string_view json) { return escaped(json, 0x7f); }

void catch_interrupts() {
  static bool caught = false;
  if (std::exchange(caught, true)) return;
  struct sigaction action = {};
  action.sa_handler = [](int number) { interrupt = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

void check_interrupts() {
  if (interrupt != 0) throw Interrupted();
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
  check_interrupts();
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
