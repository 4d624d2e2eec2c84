#include "moetape/spans.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "sequences.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kSpliceDoc =
    R"(Disaggregated serving: the prefill worker's rows up to prompt_tokens, then those of the decode worker.

What the decode worker knows of the prompt must agree (ConflictError); decode its answer with
known_from=prompt_tokens if it knows nothing. WrongShapeError unless the parts meet, MissingRowsError for a prefill
that lacks rows.)";

constexpr const char* kResumeDoc =
    R"(A request that was stopped and went on: history, then what the continuation, which holds all rows, has beyond it.

Rows of the history stay. WrongShapeError for another start, or if the continuation is more than one row shorter.)";

constexpr const char* kAlignDoc =
    R"(How the routes stand against the tokens of their request: N tokens have N - 1 - start rows.)";

constexpr const char* kFitDoc =
    R"(Exactly the rows [start, num_tokens - 1): what the routes lack is missing. WrongShapeError for rows elsewhere.)";

constexpr const char* kStreamDoc =
    R"(Rows that come chunk by chunk with the tokens of a stream, grouped in any way. One thread at a time.)";

constexpr const char* kAddDoc =
    R"(A chunk of num_new_tokens tokens and, if it has rows, these.

Rows go on at `next`, and never beyond the tokens known so far: WrongShapeError for rows sent twice or left out, and
for a chunk that holds all rows so far beside new tokens only. A chunk that is refused changes nothing.)";

constexpr const char* kPackDoc =
    R"((rows, offsets): sequences of any lengths as one run of rows from position 0; those of sequence i are
rows.slice(offsets[i], offsets[i + 1]). Versions are kept, positions and tokens are not.)";

std::optional<Routes> optional_routes(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return ObjectArg<Routes>{{object}}.get("rows");
}

struct OptionalRoutesArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("Routes | None");
};

std::pair<Routes, nb::object> pack_routes(RoutesListArg sequences) {
  Packed packed = unwrap(pack(sequences.get("sequences")));
  auto offsets = std::make_shared<std::vector<int64_t>>(std::move(packed.offsets));
  return {std::move(packed.rows),
          numpy_view(offsets->data(), IntType::kInt64, {static_cast<int64_t>(offsets->size())}, offsets,
                     Access::kReadOnly)};
}

std::string alignment_repr(const Alignment& self) {
  return fmt::format("Alignment(expected={}, found={}, missing={}, surplus={})", self.expected, self.found,
                     self.missing, self.surplus);
}

void bind_stream(nb::module_& m) {
  nb::class_<RouteStream>(m, "RouteStream", kStreamDoc)
      .def(nb::new_([](ObjectArg<RouteSpec> spec, IntArg prompt_tokens, IntArg start) {
             return unwrap(RouteStream::create(spec.get("spec"), prompt_tokens.get("prompt_tokens"),
                                               start.get("start")));
           }),
           "spec"_a, "prompt_tokens"_a, "start"_a = 0)
      .def_prop_ro("next", &RouteStream::next, "Position of the next row: the start of the next chunk's.")
      .def(
          "add",
          [](RouteStream& self, IntArg num_new_tokens, OptionalRoutesArg rows) {
            unwrap(self.add(num_new_tokens.get("num_new_tokens"), optional_routes(rows.object)));
          },
          "num_new_tokens"_a, "rows"_a = nb::none(), kAddDoc)
      .def(
          "finish", [](const RouteStream& self) { return unwrap(self.finish()); },
          "All rows; MissingRowsError if the tokens have more.");
}

}  // namespace

void bind_spans(nb::module_& m) {
  nb::class_<Alignment>(m, "Alignment", "Rows held against tokens.")
      .def_ro("expected", &Alignment::expected, "Rows that the tokens have.")
      .def_ro("found", &Alignment::found, "Valid ones of them.")
      .def_ro("missing", &Alignment::missing, "The others.")
      .def_ro("surplus", &Alignment::surplus, "Rows at other positions.")
      .def_prop_ro("complete", &Alignment::complete, "Nothing is missing, and nothing too much.")
      .def("__repr__", &alignment_repr);
  m.def(
      "splice",
      [](ObjectArg<Routes> prefill, ObjectArg<Routes> decoded, IntArg prompt_tokens) {
        return unwrap(
            splice(prefill.get("prefill"), decoded.get("decoded"), prompt_tokens.get("prompt_tokens")));
      },
      "prefill"_a, "decoded"_a, "prompt_tokens"_a, kSpliceDoc);
  m.def(
      "resume",
      [](ObjectArg<Routes> history, ObjectArg<Routes> continuation) {
        return unwrap(resume(history.get("history"), continuation.get("continuation")));
      },
      "history"_a, "continuation"_a, kResumeDoc);
  m.def(
      "align",
      [](ObjectArg<Routes> routes, IntArg num_tokens, IntArg start) {
        return unwrap(align(routes.get("routes"), num_tokens.get("num_tokens"), start.get("start")));
      },
      "routes"_a, "num_tokens"_a, "start"_a = 0, kAlignDoc);
  m.def(
      "fit",
      [](ObjectArg<Routes> routes, IntArg num_tokens, IntArg start) {
        return unwrap(fit(routes.get("routes"), num_tokens.get("num_tokens"), start.get("start")));
      },
      "routes"_a, "num_tokens"_a, "start"_a = 0, kFitDoc);
  m.def("pack", &pack_routes, "sequences"_a,
        nb::sig("def pack(sequences: collections.abc.Iterable[Routes]) -> "
                "tuple[Routes, numpy.typing.NDArray[numpy.int64]]"),
        kPackDoc);
  bind_stream(m);
}

}  // namespace moetape::bindings
