#include "tape/index.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "base/fail.h"
#include "tape/checksum.h"
#include "tape/names.h"
#include "tape/text.h"

namespace moetape::inline v0::tape {
namespace {

namespace json = simdjson::ondemand;

constexpr std::string_view kBegin = R"({"moetape_index":)";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kChecksumKey = R"("index_xxh3":")";
constexpr std::string_view kEnd = "\"}\n";

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Where the digits of the checksum stand, near the end.
size_t checksum_at(std::string_view text) {
  const size_t behind = kHexDigits + kEnd.size();
  return text.size() - std::min(text.size(), behind);
}

simdjson::error_code read_shard(json::object object, Shard& shard) {
  std::set<std::string, std::less<>> keys;
  for (auto result : object) {
    json::field field;
    if (const auto error = std::move(result).get(field)) return error;
    std::string_view key;
    if (const auto error = field.unescaped_key().get(key)) return error;
    if (!keys.emplace(key).second) return simdjson::TAPE_ERROR;
    int64_t* number = key == "bytes"           ? &shard.num_bytes
                      : key == "num_sequences" ? &shard.num_sequences
                      : key == "num_rows"      ? &shard.num_rows
                                               : nullptr;
    if (number != nullptr) {
      if (const auto error = field.value().get_int64().get(*number)) return error;
      continue;
    }
    std::string* text = key == "file" ? &shard.file : key == "header_xxh3" ? &shard.header_checksum : nullptr;
    if (text == nullptr) return simdjson::NO_SUCH_FIELD;
    std::string_view value;
    if (const auto error = field.value().get_string().get(value)) return error;
    *text = value;
  }
  return keys.size() == 5 ? simdjson::SUCCESS : simdjson::NO_SUCH_FIELD;
}

// The keys in the order in which they are written: the checksum leaves no other.
simdjson::error_code read(json::document& document, Index& index) {
  std::string_view fingerprint;
  if (const auto error = document["fingerprint"].get_string().get(fingerprint)) return error;
  const std::optional<uint64_t> value = parse_hex(fingerprint);
  if (!value) return simdjson::INCORRECT_TYPE;
  index.fingerprint = *value;
  json::array shards;
  if (const auto error = document["shards"].get_array().get(shards)) return error;
  for (auto element : shards) {
    json::object object;
    if (const auto error = element.get_object().get(object)) return error;
    if (const auto error = read_shard(object, index.shards.emplace_back())) return error;
  }
  std::string_view checksum;
  return document["index_xxh3"].get_string().get(checksum);
}

}  // namespace

bool is_index(std::span<const std::byte> bytes) { return as_text(bytes).starts_with(kBegin); }

std::string shard_name(std::string_view name, size_t number, size_t count, std::string_view tag) {
  const std::filesystem::path path(name);
  const std::string stem = path.stem().string();
  const std::string behind =
      fmt::format("-{:05}-of-{:05}-{}{}", number + 1, count, tag, path.extension().string());
  return fmt::format("{}{}", cut_text(stem, kMaxNameBytes - std::min(kMaxNameBytes, behind.size())), behind);
}

std::string format_index(const Index& index) {
  std::string text =
      fmt::format("{}{},\"fingerprint\":\"{}\",\"shards\":[", kBegin, kVersion, hex(index.fingerprint));
  for (const Shard& shard : index.shards) {
    if (&shard != index.shards.data()) text += ',';
    text += fmt::format(R"({{"file":{},"bytes":{},"num_sequences":{},"num_rows":{},"header_xxh3":"{}"}})",
                        quote(shard.file), shard.num_bytes, shard.num_sequences, shard.num_rows,
                        shard.header_checksum);
  }
  text += fmt::format("],{}{}{}", kChecksumKey, kNoChecksum, kEnd);
  seal(std::as_writable_bytes(std::span(text)), checksum_at(text));
  return text;
}

Result<Index> parse_index(std::string_view file, std::span<const std::byte> bytes) {
  const std::string_view text = as_text(bytes);
  if (!is_index(bytes)) return fail(ErrorCode::kCorruptData, "{}: expected the index of a tape", file);
  const size_t version_at = kBegin.size();
  if (!text.substr(version_at).starts_with(fmt::format("{},", kVersion))) {
    return fail(ErrorCode::kUnsupported, "{}: this moetape reads indices of version {}, got {:?}", file,
                kVersion,
                text.substr(version_at, text.find_first_of(",}", version_at) - version_at).substr(0, 20));
  }
  const size_t at = checksum_at(text);
  const std::string_view digits = text.substr(at, kHexDigits);
  const std::optional<uint64_t> expected = parse_hex(digits);
  if (!text.substr(0, at).ends_with(kChecksumKey) || !text.ends_with(kEnd) || !expected ||
      !same_checksum(checksum_around(bytes, at), *expected)) {
    return fail(ErrorCode::kCorruptData, "{}: the index is damaged: its index_xxh3 should be {}, and is {:?}",
                file, hex(checksum_around(bytes, at)), digits);
  }
  const simdjson::padded_string padded(text);
  json::parser parser;
  json::document document;
  Index index;
  simdjson::error_code error = parser.iterate(padded).get(document);
  if (error == simdjson::SUCCESS) error = read(document, index);
  if (error != simdjson::SUCCESS) {
    return fail(ErrorCode::kCorruptData, "{}: index: {}", file, simdjson::error_message(error));
  }
  for (const Shard& shard : index.shards) {
    if (shard.file.empty() || shard.file.front() == '.' ||
        shard.file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return fail(ErrorCode::kCorruptData, "{}: index: expected the name of a file beside it, got {:?}", file,
                  shard.file);
    }
    if (!parse_hex(shard.header_checksum)) {
      return fail(ErrorCode::kCorruptData,
                  "{}: index: {}: expected 16 hexadecimal digits of header_xxh3, got {:?}", file, shard.file,
                  shard.header_checksum);
    }
  }
  if (index.shards.empty())
    return fail(ErrorCode::kCorruptData, "{}: index: expected shards, got none", file);
  return index;
}

}  // namespace moetape::inline v0::tape
