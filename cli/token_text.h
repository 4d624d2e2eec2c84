// Texts of token ids, out of the files that tokenizers come in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace moetape::cli {

// A tokenizer.json of Hugging Face (with its added tokens), a vocab.json {"text": id}, or {"id": "text"}.
// Where a vocabulary writes bytes as letters, as byte-level BPE does, the bytes come back.
std::map<int32_t, std::string> read_token_text(const std::string& path);

}  // namespace moetape::cli
