// What a dialect says about itself: the form of its text, and how to read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/wire.h"

namespace moetape::inline v0::wire {

// text = before + base64(header + ids) + after; ids are little-endian [rows, layers, k].
struct Form {
  bool all_layers = false;  // a column per layer of the stack, else per MoE layer
  int id_bytes = 1;         // 1, 2 or 4
  std::string before = {};
  std::string header = {};
  std::string_view after = {};
};

// num_rows is not negative.
Result<Form> sglang_form(const RouteSpec& spec, int64_t num_rows);
Result<Form> vllm_form(const RouteSpec& spec, int64_t num_rows);
Result<Form> lightllm_form(const RouteSpec& spec, int64_t num_rows);

Result<Routes> decode_sglang(std::string_view text, const RouteSpec& spec, const DecodeOptions& options);
Result<Routes> decode_vllm(std::string_view text, const RouteSpec& spec, const DecodeOptions& options);
Result<Routes> decode_lightllm(std::string_view text, const RouteSpec& spec, const DecodeOptions& options);

}  // namespace moetape::inline v0::wire
