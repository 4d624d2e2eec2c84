// Console: what the terminal is, and the one way out of the program. Used by one thread.
//
// Results go to standard output, everything else to standard error. Colours and progress appear on terminals
// only; NO_COLOR and TERM=dumb switch colours off. A reader that closes the pipe is no error: what is printed
// from then on is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moetape::cli {

enum class Style : uint8_t { kPlain, kHeading, kGood, kBad };

class Console {
 public:
  Console();

  void print(std::string_view text);
  // Refuses if what was printed could not be written.
  void flush();
  // "moetape: <message>" on standard error.
  void complain(std::string_view message);

  std::string styled(Style style, std::string_view text) const;

  bool output_is_terminal() const { return output_is_terminal_; }
  bool shows_progress() const { return shows_progress_; }

 private:
  void fail();

  bool output_is_terminal_;
  bool shows_progress_;
  bool colours_;
  bool closed_ = false;
};

// Text for a terminal, which may come from a file: what a terminal obeys, or shows in another order, as \x1b,
// \u202e and the like; so are bytes that are no UTF-8.
std::string printable(std::string_view text);
// The same for a JSON document in UTF-8: it stays one, and says the same.
std::string printable_json(std::string_view json);

// From now on Ctrl-C, Ctrl-\, SIGTERM and the end of the terminal end the program between two pieces of work
// or while it waits for input, so that nothing half-written stays; a second one ends it at once. What whoever
// started the program ignores stays ignored.
void catch_interrupts();
class Interrupted {};
// Throws Interrupted if there was one.
void check_interrupts();
// Ends the program as the signal would have, had nobody caught it.
[[noreturn]] void end_by_interrupt();

// A bar on standard error, for work of `total` pieces, gone when they are done. advance() throws Interrupted.
class Progress {
 public:
  Progress(const Console& console, std::string_view what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t pieces = 1);

 private:
  void draw(int per_mille);
  void erase();

  bool shown_;
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  int drawn_ = -1;  // per mille; -1 = no bar is there
};

}  // namespace moetape::cli
