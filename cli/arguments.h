// Arguments: what the program and its commands can be told, declared once for parsing, help and completion.
//
// Usage errors are a Refusal that names the argument. CLI11 parses; only arguments.cc knows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace moetape::cli {

enum class ValueKind : uint8_t { kNone, kText, kFile, kChoice };

struct OptionInfo {
  std::vector<std::string> names;  // "-o", "--output"; empty for what has no name
  std::string help;
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices = {};
};

// One command. What is declared refers to the caller's variables, which live as long as the program's run.
class Command {
 public:
  Command(CLI::App& app, std::string name, std::string help);

  // What stands without a name: `least` to `most` of them.
  void files(std::vector<std::string>& files, std::string_view help, int least = 1, int most = kAny);
  void word(std::string& word, std::string_view name, std::vector<std::string> choices,
            std::string_view help);

  // `names` as in "-o,--output". `kind` says what the shell may complete.
  void flag(std::string_view names, bool& value, std::string_view help);
  void text(std::string_view names, std::string& value, std::string_view type, std::string_view help,
            ValueKind kind = ValueKind::kText, bool required = false);
  void texts(std::string_view names, std::vector<std::string>& values, std::string_view type,
             std::string_view help);
  void choice(std::string_view names, std::string& value, std::vector<std::string> choices,
              std::string_view help);
  void number(std::string_view names, std::optional<int64_t>& value, std::string_view help, int64_t least = 0,
              int64_t most = INT64_MAX);
  void rate(std::string_view names, std::optional<double>& value, std::string_view help);
  void bytes(std::string_view names, std::optional<int64_t>& value, std::string_view help);  // 4000, 4G, 4Gi

  void example(std::string_view text);
  void run(std::function<int(Console&)> action) { action_ = std::move(action); }

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::vector<OptionInfo>& options() const { return options_; }

  static constexpr int kAny = 1 << 20;

 private:
  friend class Program;
  int run_action(Console& console) const;
  CLI::Option* add(CLI::Option* option, std::string_view names, std::string_view type, OptionInfo info);
  // `parse` takes the value, and says what it expected where it got something else.
  template <class Parse>
  void parsed(std::string_view names, std::string_view type, std::string_view help, Parse parse);

  CLI::App& app_;
  std::string name_;
  std::string help_;
  std::vector<OptionInfo> options_;
  const std::vector<std::string>* files_ = nullptr;
  std::function<int(Console&)> action_;
};

class Program {
 public:
  Program();
  ~Program();

  Command& add(std::string name, std::string help);
  const std::vector<std::unique_ptr<Command>>& commands() const { return commands_; }

  // What the exit code is, with everything said that there is to say.
  int run(int argc, const char* const* argv, Console& console);

 private:
  int parse_and_run(int argc, const char* const* argv, Console& console);

  std::unique_ptr<CLI::App> app_;
  std::vector<std::unique_ptr<Command>> commands_;
};

}  // namespace moetape::cli
