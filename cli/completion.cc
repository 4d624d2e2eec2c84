// moetape completion: scripts that make shells complete the commands, options and values of moetape.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "commands.h"

namespace moetape::cli {
namespace {

// What may follow a command's name, besides files.
std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names = {"--help"};
  for (const OptionInfo& option : command.options()) {
    if (option.names.empty()) {
      names.insert(names.end(), option.choices.begin(), option.choices.end());
    } else {
      names.insert(names.end(), option.names.begin(), option.names.end());
    }
  }
  return names;
}

std::vector<std::string> command_names(const Program& program) {
  std::vector<std::string> names;
  for (const auto& command : program.commands()) names.push_back(command->name());
  return names;
}

std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char letter : text) {
    if (letter == '\'') result += "'\\'";
    result += letter;
  }
  return result + "'";
}

// Words of a list for compgen, which splits them as `IFS=$'\n'` says, so that files may have spaces.
std::string bash_words(const std::vector<std::string>& words) {
  return fmt::format("compgen -W $'{}' -- \"$word\"", fmt::join(words, "\\n"));
}

std::string bash_values(const Command& command) {
  std::string text;
  for (const OptionInfo& option : command.options()) {
    if (option.names.empty() || option.kind == ValueKind::kNone) continue;
    const std::string words = option.kind == ValueKind::kChoice ? bash_words(option.choices)
                              : option.kind == ValueKind::kFile ? "compgen -f -- \"$word\""
                                                                : ":";
    text += fmt::format("        {}) COMPREPLY=($({})); return ;;\n", fmt::join(option.names, "|"), words);
  }
  return text;
}

std::string bash(const Program& program) {
  std::string text = R"(# bash completion of moetape
_moetape() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} IFS=$'\n'
  compopt -o filenames 2>/dev/null
  if ((COMP_CWORD > 1)); then
    case ${COMP_WORDS[1]} in
)";
  for (const auto& command : program.commands()) {
    const std::string values = bash_values(*command);
    text += fmt::format("    {})\n", command->name());
    if (!values.empty()) text += "      case $previous in\n" + values + "      esac\n";
    text += fmt::format("      COMPREPLY=($({}; compgen -f -- \"$word\"))\n      return ;;\n",
                        bash_words(option_names(*command)));
  }
  std::vector<std::string> words = command_names(program);
  words.insert(words.end(), {"--help", "--version"});
  text += fmt::format("    esac\n  fi\n  COMPREPLY=($({}))\n", bash_words(words));
  return text + "}\ncomplete -F _moetape moetape\n";
}

std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') result += '\\';
    result += letter;
  }
  return result;
}

std::string zsh_value(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kText:
      return ":value:";
    case ValueKind::kFile:
      return ":file:_files";
    case ValueKind::kChoice:
      return fmt::format(":value:({})", fmt::join(option.choices, " "));
  }
  return "";
}

std::string zsh(const Program& program) {
  std::string text = "#compdef moetape\n_moetape() {\n  local -a commands=(\n";
  for (const auto& command : program.commands()) {
    text += fmt::format("    {}\n",
                        quoted(fmt::format("{}:{}", zsh_text(command->name()), zsh_text(command->help()))));
  }
  text +=
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    _arguments '--help[Show this help]' '--version[Show the version]'\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $command in\n";
  for (const auto& command : program.commands()) {
    text += fmt::format("    {})\n      _arguments '--help[Show this help]'", command->name());
    for (const OptionInfo& option : command->options()) {
      if (option.names.empty()) {
        text += fmt::format(" \\\n        {}", quoted(fmt::format("*{}", zsh_value(option))));
      }
      for (const std::string& name : option.names) {
        text +=
            " \\\n        " + quoted(fmt::format("{}[{}]{}", name, zsh_text(option.help), zsh_value(option)));
      }
    }
    text += " ;;\n";
  }
  // Found on $fpath, the file is the function; sourced, it makes itself known.
  return text +
         "  esac\n}\n"
         "if [[ $funcstack[1] == _moetape ]]; then _moetape \"$@\"; else compdef _moetape moetape; fi\n";
}

std::string fish(const Program& program) {
  std::string text =
      "# fish completion of moetape\ncomplete -c moetape -n __fish_use_subcommand -l version -f\n";
  for (const auto& command : program.commands()) {
    text += fmt::format("complete -c moetape -n __fish_use_subcommand -f -a {} -d {}\n", command->name(),
                        quoted(command->help()));
    for (const OptionInfo& option : command->options()) {
      text += fmt::format("complete -c moetape -n '__fish_seen_subcommand_from {}'", command->name());
      for (const std::string& name : option.names) {
        const bool is_long = name.starts_with("--");
        text += fmt::format(" -{} {}", is_long ? 'l' : 's', name.substr(is_long ? 2 : 1));
      }
      if (option.kind == ValueKind::kText) text += " -x";
      if (option.kind == ValueKind::kFile && !option.names.empty()) text += " -r";
      if (option.kind == ValueKind::kChoice) {
        text += fmt::format(" -x -a {}", quoted(fmt::format("{}", fmt::join(option.choices, " "))));
      }
      text += fmt::format(" -d {}\n", quoted(option.help));
    }
  }
  return text;
}

}  // namespace

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>();
  Command& command = program.add("completion", "Print the completion script of a shell");
  command.word(*shell, "shell", {"bash", "zsh", "fish"}, "The shell");
  command.example("source <(moetape completion bash)");
  command.run([shell, &program](Console& console) {
    console.print(*shell == "bash" ? bash(program) : *shell == "zsh" ? zsh(program) : fish(program));
    return 0;
  });
}

}  // namespace moetape::cli
