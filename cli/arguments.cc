#include "arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
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

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = error.what();
  if (const auto end = message.find('\n'); end != std::string::npos) message.resize(end);
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "moetape" : "moetape " + chosen.front()->get_name();
  return fmt::format("{} (see {} --help)", message, command);
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
  add(app_.add_flag(std::string(names), value, text), names, "", {{}, text});
}

void Command::text(std::string_view names, std::string& value, std::string_view type, std::string_view help,
                   ValueKind kind, bool required) {
  const std::string text(help);
  add(app_.add_option(std::string(names), value, text), names, type, {{}, text, kind})->required(required);
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

void Command::number(std::string_view names, std::optional<int64_t>& value, std::string_view help,
                     int64_t least, int64_t most) {
  const std::string text(help);
  add(app_.add_option(std::string(names), value, text), names, "N", {{}, text, ValueKind::kText})
      ->check(CLI::Range(least, most));
}

void Command::rate(std::string_view names, std::optional<double>& value, std::string_view help) {
  const std::string text(help);
  add(app_.add_option(std::string(names), value, text), names, "RATE", {{}, text, ValueKind::kText})
      ->check(CLI::Range(0.0, 1.0));
}

void Command::bytes(std::string_view names, uint64_t& value, std::string_view help) {
  const std::string text(help);
  add(app_.add_option(std::string(names), value, text), names, "BYTES", {{}, text, ValueKind::kText})
      ->transform(CLI::AsSizeValue(true));
}

void Command::example(std::string_view text) { app_.footer(fmt::format("Example:\n  {}\n", text)); }

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
    if (command->app_.parsed()) return command->action_(console);
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
