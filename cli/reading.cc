#include "reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "moetape/answer.h"
#include "moetape/array.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

// Who saves a text, by hand or by a tool, ends it with a line end.
std::string_view without_line_end(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

Result<Routes> decode_form(const Input& input, Dialect dialect, const RouteSpec& spec,
                           const ReadFlags& flags) {
  if (!flags.dtype.empty() && dialect != Dialect::kSglang && dialect_info(dialect).kind != FormKind::kArray) {
    refuse("--from-dtype: is for sglang and raw arrays; {} is {}, which says the type", input.name(),
           dialect_name(dialect));
  }
  const bool is_text = dialect_info(dialect).kind == FormKind::kText;
  return decode(is_text ? without_line_end(input.bytes()) : input.bytes(), dialect, spec, flags.options());
}

// Of several dialects that a form may be of, the ones that can read it have to agree.
Routes decode_likely(const Input& input, const std::vector<Dialect>& dialects, const RouteSpec& spec,
                     const ReadFlags& flags) {
  const Result<Routes> first = decode_form(input, dialects.front(), spec, flags);
  std::optional<Routes> routes;
  if (first) routes = *first;
  Dialect read_as = dialects.front();
  for (size_t index = 1; index < dialects.size(); ++index) {
    const Result<Routes> other = decode_form(input, dialects[index], spec, flags);
    if (!other) continue;
    if (routes && !(*other == *routes)) {
      refuse("{}: may be {} or {}, which differ here; --from says which", input.name(), dialect_name(read_as),
             dialect_name(dialects[index]));
    }
    if (!routes) read_as = dialects[index];
    routes = *other;
  }
  return routes ? *routes : need(first, input.name());
}

std::vector<NamedRoutes> read_choices(const Input& input, const std::string& id, const RouteSpec& spec,
                                      const ReadFlags& flags) {
  AnswerOptions options;
  options.decode = flags.options();
  options.asked = !flags.skip_absent;
  options.hop = input.name();
  const std::vector<AnswerChoice> choices = need(read_answer(input.bytes(), spec, options));
  std::vector<NamedRoutes> found;
  std::set<int64_t> indices;
  for (const AnswerChoice& choice : choices) {
    if (!indices.insert(choice.index).second) {
      refuse("{}: expected choices of different indices, got {} twice", input.name(), choice.index);
    }
    std::string name = choices.size() == 1 ? id : fmt::format("{}#{}", id, choice.index);
    if (choice.routes) found.push_back({std::move(name), *choice.routes});
  }
  return found;
}

}  // namespace

void ReadFlags::declare(Command& command) {
  std::vector<std::string> names = dialect_names();
  names.insert(names.begin(), "answer");
  command.choice("--from", from, std::move(names), "What the files are, where their looks do not say it");
  command.text("--spec", spec, "FILE",
               "The spec of files that are no tapes: the model's folder or config.json, a tape, or what "
               "info --json prints",
               ValueKind::kFile);
  command.number("--start", start, "Position of the first row (0)");
  command.number("--rows", num_rows, "Rows that each file must have");
  command.number("--policy-version", version, "Version under which the rows were computed", 0, kMaxVersion);
  command.choice("--from-dtype", dtype, int_type_names(), "Type of ids where the form does not say it");
  command.number("--known-from", known_from, "Rows at lower positions are not known to the sender");
  command.number("--surplus-rows", surplus_rows, "Last rows that belong to no token that was fed");
  command.flag("--skip-absent", skip_absent, "Leave out choices of an answer that have no routes");
}

DecodeOptions ReadFlags::options() const {
  DecodeOptions options;
  options.start = start;
  options.num_rows = num_rows;
  if (version) options.version = static_cast<uint32_t>(*version);
  options.type = int_type_of(dtype);
  options.known_from = known_from.value_or(0);
  options.surplus_rows = surplus_rows.value_or(0);
  return options;
}

void ReadFlags::check_unused(const std::string& tape) const {
  const std::pair<std::string_view, bool> given[] = {
      {"--from", !from.empty() && from != dialect_name(Dialect::kTape)},
      {"--start", start.has_value()},
      {"--rows", num_rows.has_value()},
      {"--policy-version", version.has_value()},
      {"--from-dtype", !dtype.empty()},
      {"--known-from", known_from.has_value()},
      {"--surplus-rows", surplus_rows.has_value()},
      {"--skip-absent", skip_absent}};
  for (const auto& [name, is_given] : given) {
    if (is_given) refuse("{}: is for forms and answers; {} is a tape, which says it itself", name, tape);
  }
}

Result<Sniffed> sniff_input(const Input& input) {
  Result<Sniffed> sniffed = sniff(input.bytes());
  if (!sniffed) sniffed = sniff(without_line_end(input.bytes()));
  if (sniffed) return sniffed;
  // The file is named instead.
  constexpr std::string_view kThing = "sniff: ";
  Error error = sniffed.error();
  if (error.message.starts_with(kThing)) error.message.erase(0, kThing.size());
  return Failure(std::move(error));
}

std::vector<NamedRoutes> read_routes(const Input& input, const std::string& id, const RouteSpec& spec,
                                     const ReadFlags& flags) {
  if (flags.from == "answer") return read_choices(input, id, spec, flags);
  if (!flags.from.empty()) {
    const Dialect dialect = need(dialect_from_name(flags.from), "--from");
    return {{id, need(decode_form(input, dialect, spec, flags), input.name())}};
  }
  const Sniffed found = need(sniff_input(input), input.name());
  if (found.answer) return read_choices(input, id, spec, flags);
  return {{id, decode_likely(input, found.dialects, spec, flags)}};
}

std::vector<std::string> dialect_names() {
  std::vector<std::string> names;
  for (int index = 0; index < kNumDialects; ++index) {
    names.emplace_back(dialect_name(static_cast<Dialect>(index)));
  }
  return names;
}

std::vector<std::string> int_type_names() {
  std::vector<std::string> names;
  for (int index = 0; index <= static_cast<int>(IntType::kUint64); ++index) {
    names.emplace_back(int_type_name(static_cast<IntType>(index)));
  }
  return names;
}

std::optional<IntType> int_type_of(const std::string& name) {
  const std::vector<std::string> names = int_type_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return {};
  return static_cast<IntType>(found - names.begin());
}

}  // namespace moetape::cli
