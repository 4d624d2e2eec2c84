#include "token_text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "input.h"
#include "json.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

using TokenText = std::map<int32_t, std::string>;
using ByteByLetter = std::map<std::string, char>;

std::string utf8(uint32_t letter) {
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
}

// GPT-2's table: printable bytes of Latin-1 stand for themselves, all others for the letters from U+0100 on.
ByteByLetter byte_by_letter() {
  ByteByLetter table;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 0x100; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    table[utf8(printable ? byte : next++)] = static_cast<char>(byte);
  }
  return table;
}

// The bytes that a token of byte-level BPE stands for; nothing if it is not one.
std::optional<std::string> decoded(const ByteByLetter& table, std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const size_t width = static_cast<unsigned char>(token[0]) < 0x80 ? 1 : 2;
    const auto found = table.find(std::string(token.substr(0, width)));
    if (found == table.end()) return {};
    bytes += found->second;
    token.remove_prefix(std::min(width, token.size()));
  }
  return bytes;
}

int32_t token_id(const ParsedJson& json, const std::string& path) {
  const std::optional<int32_t> id = int32_in(json);
  if (!id || *id < 0) refuse("{}: expected the id of a token, got {}", path, shown(json));
  return *id;
}

void add_vocabulary(const ParsedJson& vocabulary, const std::string& path, TokenText& texts) {
  const ByteByLetter table = byte_by_letter();
  // A space is never its own letter in byte-level BPE, and nearly every vocabulary has one.
  const bool byte_level = std::any_of(vocabulary.items().begin(), vocabulary.items().end(),
                                      [](const auto& item) { return item.key().starts_with("\u0120"); });
  for (const auto& [text, id] : vocabulary.items()) {
    const auto bytes = byte_level ? decoded(table, text) : std::nullopt;
    texts[token_id(id, path)] = bytes.value_or(text);
  }
}

void add_texts_by_id(const ParsedJson& json, const std::string& path, TokenText& texts) {
  for (const auto& [id, text] : json.items()) {
    if (!text.is_string()) refuse("{}: expected a text for token {}, got {}", path, id, shown(text));
    const std::optional<int32_t> token = index_of_key(id);
    if (!token) refuse("{}: expected the id of a token, got \"{}\"", path, id);
    texts[*token] = text.get<std::string>();
  }
}

// The list of a tokenizer.json.
void add_added_tokens(const ParsedJson& tokens, const std::string& path, TokenText& texts) {
  if (!tokens.is_array()) refuse("{}: added_tokens: expected a list, got {}", path, tokens.type_name());
  for (const ParsedJson& token : tokens) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content") ||
        !token["content"].is_string()) {
      refuse("{}: added_tokens: expected objects with id and content, got {}", path, shown(token));
    }
    texts[token_id(token["id"], path)] = token["content"].get<std::string>();
  }
}

}  // namespace

TokenText read_token_text(const std::string& path) {
  const Input input(path);
  const ParsedJson json = parse_json(input.bytes(), input.name());
  if (!json.is_object() || json.empty()) {
    refuse("{}: expected a JSON object of tokens, got {}", path,
           json.is_object() ? "an empty one" : json.type_name());
  }
  TokenText texts;
  if (json.contains("model") && json["model"].is_object()) {
    if (json["model"].contains("vocab") && json["model"]["vocab"].is_object()) {
      add_vocabulary(json["model"]["vocab"], path, texts);
    } else {
      refuse("{}: expected model.vocab to be an object of texts and ids", path);
    }
    add_added_tokens(json.value("added_tokens", ParsedJson::array()), path, texts);
  } else if (json.begin()->is_string()) {
    add_texts_by_id(json, path, texts);
  } else {
    add_vocabulary(json, path, texts);
  }
  return texts;
}

}  // namespace moetape::cli
