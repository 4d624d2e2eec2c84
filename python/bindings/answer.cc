#include "moetape/answer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "module.h"
#include "wire_args.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kReadDoc =
    R"(The routes in a whole HTTP answer, as the server sent it: one Choice per choice.

data: the JSON text. Understood: vLLM completions, chat and /inference/v1/generate, SGLang /generate (one object or a
list), completions and chat, LightLLM, prime-rl, SkyRL, NeMo-RL, Megatron. asked: routes were asked for, so that a
choice without them raises MissingRowsError naming `hop`, who answered; with asked=False its routes are None. dialect:
where the form must not be told by its looks. The other arguments are those of decode, for every choice.)";

constexpr const char* kSniffDoc =
    R"(What a text or file may be, by its first bytes and its fields.

UnsupportedError says what was seen. Arrays and empty texts have no marks.)";

// Names of dialects, where the value has them.
std::optional<std::string> name_of(const std::optional<Dialect>& dialect) {
  if (!dialect) return std::nullopt;
  return std::string(dialect_name(*dialect));
}

std::vector<std::string> names_of(const Sniffed& sniffed) {
  std::vector<std::string> names;
  for (const Dialect dialect : sniffed.dialects) names.emplace_back(dialect_name(dialect));
  return names;
}

std::vector<AnswerChoice> read(TextArg data, ObjectArg<RouteSpec> spec_arg, BoolArg asked, StrArg hop,
                               OptionalStrArg dialect_arg, OptionalIntArg start, OptionalIntArg rows,
                               OptionalIntArg version, AnyArg dtype, IntArg known_from, IntArg surplus_rows) {
  const Text text(data.object, "data");
  const RouteSpec& spec = spec_arg.get("spec");
  AnswerOptions options;
  options.decode = DecodeArgs{start, rows, version, dtype, known_from, surplus_rows}.options();
  if (const auto name = dialect_arg.get("dialect")) options.dialect = unwrap(dialect_from_name(*name));
  options.asked = asked.get("asked");
  options.hop = hop.get("hop");
  return unwrap(long_call(text.size(), [&] { return read_answer(text.view(), spec, options); }));
}

Sniffed sniff_text(TextArg data) {
  const Text text(data.object, "data");
  return unwrap(long_call(text.size(), [&] { return sniff(text.view()); }));
}

}  // namespace

void bind_answer(nb::module_& m) {
  nb::class_<AnswerChoice>(m, "Choice", "One choice of an answer.")
      .def_ro("index", &AnswerChoice::index)
      .def_prop_ro(
          "dialect", [](const AnswerChoice& self) { return name_of(self.dialect); },
          "The form its routes had; None without routes.")
      .def_ro("routes", &AnswerChoice::routes,
              "None = the answer has none; they may also have no rows, or missing ones.")
      .def("__repr__", [](const AnswerChoice& self) {
        const nb::object routes = nb::cast(self.routes);
        return fmt::format("Choice({}, {})", self.index, nb::repr(routes).c_str());
      });
  nb::class_<Sniffed>(m, "Sniffed", "What a text or file may be.")
      .def_prop_ro("dialects", &names_of, "The likeliest first.")
      .def_ro("answer", &Sniffed::answer, "A whole HTTP answer, for read_answer.")
      .def("__repr__", [](const Sniffed& self) {
        return self.answer ? std::string("Sniffed(an answer)")
                           : fmt::format("Sniffed({})", fmt::join(names_of(self), " or "));
      });
  m.def("read_answer", &read, "data"_a, nb::kw_only(), "spec"_a, "asked"_a = true, "hop"_a = "answer",
        "dialect"_a = nb::none(), "start"_a = nb::none(), "rows"_a = nb::none(), "version"_a = nb::none(),
        "dtype"_a = nb::none(), "known_from"_a = 0, "surplus_rows"_a = 0, kReadDoc);
  m.def("sniff", &sniff_text, "data"_a, kSniffDoc);
}

}  // namespace moetape::bindings
