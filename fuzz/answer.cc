// Whole HTTP answers, and what is told by looks.
#include "moetape/answer.h"

#include "fuzz.h"
#include "moetape/wire.h"

namespace moetape::fuzz {

const int64_t kJustified = 6;  // as of JSON in decode.cc

bool take(std::string_view input) {
  bool taken = false;
  const Result<Sniffed> sniffed = sniff(input);
  if (sniffed) expect(sniffed->answer || !sniffed->dialects.empty(), "a form without a name");
  for (const RouteSpec& spec : specs()) {
    const auto choices = read_answer(input, spec);
    taken |= choices.has_value();
    if (!choices) continue;
    for (const AnswerChoice& choice : *choices) {
      expect(choice.routes.has_value(), "a choice without the routes that were asked for");
    }
    const auto lenient = read_answer(input, spec, {.asked = false});
    expect(lenient && lenient->size() == choices->size(), "fewer choices where nothing was asked for");
  }
  return taken;
}

}  // namespace moetape::fuzz
