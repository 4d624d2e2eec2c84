// Answer: the routes in a whole HTTP answer, as the server sent it.
//
// Understood: vLLM completions, chat and /inference/v1/generate (choices[i].routed_experts; v0.21 with
// prompt_routed_experts), SGLang /generate (meta_info.routed_experts, one object or a list) and its
// completions and chat (sglext.routed_experts), LightLLM /generate (routed_experts), prime-rl and SkyRL
// (objects in choices), NeMo-RL text, Megatron (choices[i].moe_topk_indices), nested lists. The form of each
// is told by its field and its first characters. Free functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/wire.h"

namespace moetape::inline v0 {

struct AnswerOptions {
  DecodeOptions decode = {};            // of every choice
  std::optional<Dialect> dialect = {};  // where the form must not be told by its looks
  bool asked = true;                    // routes were asked for: a choice without them is an error
  std::string_view hop = "answer";      // who answered; begins every message
};

// One choice. Absent, no rows, and missing rows are three different things: no routes; routes of no rows;
// rows with a reason.
struct AnswerChoice {
  int64_t index = 0;
  std::optional<Dialect> dialect = {};
  std::optional<Routes> routes = {};
};

// One element a choice, in the order of the answer; kUnsupported above 65,536 of them. kMissingRows, naming
// the hop, the choice and the fields looked for, if a choice lacks routes that were asked for; faults in a
// form are those of decode(), and their places are those in the field, which the message names.
Result<std::vector<AnswerChoice>> read_answer(std::string_view json, const RouteSpec& spec,
                                              const AnswerOptions& options = {});

}  // namespace moetape::inline v0
