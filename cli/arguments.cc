#include "arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <new>
#include <utility>

#include "refusal.h"

namespace moetape::cli {
namespace {

std::vector<std::string> split_names(std::string_view names) {
  return CLI::detail::split(std::string(names), ',');
}

class Help : public CLI::Formatter {
 public:
  Help() {
    column_width(32);
    label("SUBCOMMAND", "COMMAND");
    label("Positionals", "Arguments");
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    return option->get_name(true) + (option->get_expected_max() > 1 ? "..." : "");
  }
};

// CLI11's words for too many, too few or no values, in ours.
std::string count_message(const std::string& message) {
  if (const size_t end = message.find(" was given a disallowed flag override"); end != std::string::npos) {
    return fmt::format("--{}: expected no value", message.substr(0, end));
  }
  const size_t colon = message.find(": ");
  if (colon == std::string::npos) return message;
  const std::string name = message.substr(0, colon);
  const char* rest = message.c_str() + colon + 2;
  int expected = 0;
  int got = 0;
  if (std::sscanf(rest, "At least %d required but received %d", &expected, &got) == 2) {
    return fmt::format("{}: expected {} or more, got {}", name, expected, got);
  }
  if (std::sscanf(rest, "At Most %d required but received %d", &expected, &got) == 2) {
    return fmt::format("{}: expected {} at most, got {}", name, expected, got);
  }
  return name + ": expected a value, got none";
}

std::string extra_message(const std::string& extra, bool in_place_of_command) {
  if (extra.starts_with('-')) return extra + ": no such option";
  return extra + (in_place_of_command ? ": no such command" : ": one argument too many");
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  if (const auto end = message.find('\n'); end != std::string::npos) message.resize(end);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) message = count_message(message);
  const auto chosen = app.get_subcommands();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extras = app.remaining(true);
    if (!extras.empty()) message = extra_message(extras.front(), chosen.empty());
  }
  const std::string command = chosen.empty() ? "moetape" : "moetape " + chosen.front()->get_name();
  return fmt::format("{} (see {} --help)", message, command);
}

// A variable that the shell does not know shall not pass for an option that was not given.
const CLI::Validator kNotEmpty(
    [](const std::string& value) {
      return value.empty() ? std::string("expected a value, got an empty one") : std::string();
    },
    "");

// Decimal and nothing else: a leading zero makes no octal number.
std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::optional<double> decimal_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// 1 for no unit; nothing for what is none.
std::optional<int64_t> unit_bytes(std::string_view unit) {
  std::string small;
  for (const char letter : unit) small += static_cast<char>(letter | 0x20);  // lower case
  const bool has_byte = small.ends_with('b');
  if (has_byte) small.pop_back();
  const bool binary = small.ends_with('i');
  if (binary) small.pop_back();
  if (small.empty()) return binary ? std::nullopt : std::optional<int64_t>(1);
  const size_t power = std::string_view("kmgtpe").find(small);
  if (small.size() > 1 || power == std::string_view::npos) return {};
  int64_t bytes = 1;
  for (size_t i = 0; i <= power; ++i) bytes *= binary ? 1024 : 1000;
  return bytes;
}

std::optional<int64_t> number_of_bytes(std::string_view text) {
  const size_t unit = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = whole_number(text.substr(0, unit));
  const auto factor = unit_bytes(text.substr(unit));
  if (!number || !factor || *number > INT64_MAX / *factor) return {};
  return *number * *factor;
}

}  // namespace

Command::Command(CLI::App& app, std::string name, std::string help)
    : app_(app), name_(std::move(name)), help_(std::move(help)) {}

CLI::Option* Command::add(CLI::Option* option, std::string_view names, std::string_view type,
                          OptionInfo info) {
  if (names.starts_with('-')) info.names = split_names(names);
  if (!type.empty()) option->option_text(std::string(type));
  options_.push_back(std::move(info));
  return option;
}

void Command::files(std::vector<std::string>& files, std::string_view help, int least, int most) {
  const std::string text(help);
  files_ = &files;
  add(app_.add_option("file", files, text), "", "", {{}, text, ValueKind::kFile})
      ->expected(least, most)
      ->required(least > 0)
      ->option_text(most > 1 ? "..." : " ");
}

void Command::word(std::string& word, std::string_view name, std::vector<std::string> choices,
                   std::string_view help) {
  const std::string text = fmt::format("{}: {}", help, fmt::join(choices, ", "));
  add(app_.add_option(std::string(name), word, text), "", " ", {{}, text, ValueKind::kChoice, choices})
      ->required()
      ->check(CLI::IsMember(choices));
}

void Command::flag(std::string_view names, bool& value, std::string_view help) {
  const std::string text(help);
  add(app_.add_flag(std::string(names), value, text), names, "", {{}, text})->disable_flag_override();
}

void Command::text(std::string_view names, std::string& value, std::string_view type, std::string_view help,
                   ValueKind kind, bool required) {
  const std::string text(help);
  add(app_.add_option(std::string(names), value, text), names, type, {{}, text, kind})
      ->required(required)
      ->check(kNotEmpty);
}

void Command::texts(std::string_view names, std::vector<std::string>& values, std::string_view type,
                    std::string_view help) {
  const std::string text(help);
  add(app_.add_option(std::string(names), values, text), names, type, {{}, text, ValueKind::kText})
      ->allow_extra_args(false);
}

void Command::choice(std::string_view names, std::string& value, std::vector<std::string> choices,
                     std::string_view help) {
  const std::string text = fmt::format("{}: {}", help, fmt::join(choices, ", "));
  add(app_.add_option(std::string(names), value, text), names, "NAME",
      {{}, std::string(help), ValueKind::kChoice, choices})
      ->check(CLI::IsMember(choices));
}

template <class Parse>
void Command::parsed(std::string_view names, std::string_view type, std::string_view help, Parse parse) {
  const std::string text(help);
  const std::string name = split_names(names).back();
  const std::function<void(const std::string&)> take = [name, parse](const std::string& value) {
    if (const std::string expected = parse(value); !expected.empty()) {
      throw CLI::ValidationError(name, fmt::format("expected {}, got '{}'", expected, value));
    }
  };
  add(app_.add_option_function(std::string(names), take, text), names, type, {{}, text, ValueKind::kText});
}

void Command::number(std::string_view names, std::optional<int64_t>& value, std::string_view help,
                     int64_t least, int64_t most) {
  parsed(names, "N", help, [&value, least, most](const std::string& text) -> std::string {
    value = whole_number(text);
    if (value && *value >= least && *value <= most) return {};
    return most == INT64_MAX ? fmt::format("a whole number of {} or more", least)
                             : fmt::format("a whole number from {} to {}", least, most);
  });
}

void Command::rate(std::string_view names, std::optional<double>& value, std::string_view help) {
  parsed(names, "RATE", help, [&value](const std::string& text) -> std::string {
    value = decimal_number(text);
    return value && *value >= 0 && *value <= 1 ? "" : "a number from 0 to 1";
  });
}

void Command::bytes(std::string_view names, std::optional<int64_t>& value, std::string_view help) {
  parsed(names, "BYTES", help, [&value](const std::string& text) -> std::string {
    value = number_of_bytes(text);
    return value && *value > 0 ? "" : "a number of bytes such as 8000, 8k or 4Gi";
  });
}

void Command::example(std::string_view text) { app_.footer(fmt::format("Example:\n  {}\n", text)); }

int Command::run_action(Console& console) const {
  if (files_ != nullptr && std::count(files_->begin(), files_->end(), "-") > 1) {
    refuse("-: expected standard input once, got it twice");
  }
  if (files_ != nullptr && std::count(files_->begin(), files_->end(), "") > 0) {
    refuse("file: expected a name, got an empty one");
  }
  return action_(console);
}

Program::Program()
    : app_(std::make_unique<CLI::App>("moetape: which experts a Mixture-of-Experts model sent every token to",
                                      "moetape")) {
  app_->set_version_flag("--version", "moetape " MOETAPE_VERSION, "Show the version");
  app_->set_help_flag("-h,--help", "Show this help");
  app_->require_subcommand(0, 1);
  app_->formatter(std::make_shared<Help>());
  app_->footer(
      "Exit codes: 0 fine, 1 a check failed, 2 wrong use or bad input. Each command has its own --help.\n");
}

Program::~Program() = default;

Command& Program::add(std::string name, std::string help) {
  CLI::App* app = app_->add_subcommand(name, help)->group("Commands");
  commands_.push_back(std::make_unique<Command>(*app, std::move(name), std::move(help)));
  return *commands_.back();
}

int Program::parse_and_run(int argc, const char* const* argv, Console& console) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    console.print(app_->help());
    return kFine;
  } catch (const CLI::CallForVersion& version) {
    console.print(std::string(version.what()) + "\n");
    return kFine;
  } catch (const CLI::ParseError& error) {
    throw Refusal(usage_message(*app_, error));
  }
  for (const auto& command : commands_) {
    if (command->app_.parsed()) return command->run_action(console);
  }
  refuse("no command given (see moetape --help)");
}

int Program::run(int argc, const char* const* argv, Console& console) {
  try {
    const int code = parse_and_run(argc, argv, console);
    console.flush();
    return code;
  } catch (const Interrupted&) {
    end_by_interrupt();
  } catch (const std::bad_alloc&) {
    console.complain("out of memory");
    return kRefused;
  } catch (const std::exception& error) {
    console.complain(error.what());
    return kRefused;
  }
}

}  // namespace moetape::cli
