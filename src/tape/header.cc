#include "tape/header.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "tape/checksum.h"
#include "tape/text.h"

namespace moetape::inline v0::tape {
namespace {

namespace json = simdjson::ondemand;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kChecksumKey = R"("header_xxh3":")";  // as it stands in the text
constexpr size_t kMostShown = 80;                                // characters of an outside text in a message
constexpr size_t kMostDimensions = 8;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Walks the JSON once.
class Reader {
 public:
  Reader(std::string_view file, std::string_view text) : file_(file), padded_(text), size_(text.size()) {
    padded_.append(simdjson::SIMDJSON_PADDING, '\0');
  }

  Result<Header> read() {
    const simdjson::error_code error = parser_.iterate(padded_.data(), size_, padded_.size()).get(document_);
    if (error != simdjson::SUCCESS) {
      return fail(ErrorCode::kCorruptData, "{}: header: {}", file_, simdjson::error_message(error));
    }
    json::object object;
    MOETAPE_TRY(check(document_.get_object().get(object)));
    std::set<std::string, std::less<>> names;
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(check(std::move(result).get(field)));
      std::string_view key;
      MOETAPE_TRY(check(field.unescaped_key().get(key)));
      if (!names.emplace(key).second) return twice(key);
      json::value value = field.value();
      MOETAPE_TRY(key == kMetadata ? read_metadata(value) : read_tensor(std::string(key), value));
    }
    const char* rest = nullptr;
    if (document_.current_location().get(rest) == simdjson::SUCCESS) {
      return fail(ErrorCode::kCorruptData, "{}: byte {}: expected spaces behind the header's JSON", file_,
                  kLengthBytes + (rest - padded_.data()));
    }
    return std::move(header_);
  }

 private:
  Status read_metadata(json::value& value) {
    json::object object;
    MOETAPE_TRY(check(value.get_object().get(object)));
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(check(std::move(result).get(field)));
      std::string_view key;
      MOETAPE_TRY(check(field.unescaped_key().get(key)));
      const std::string name(key);  // the parser's buffer of texts is used again
      std::string_view text;
      MOETAPE_TRY(check(field.value().get_string().get(text)));
      if (!header_.metadata.emplace(name, text).second) return twice(name);
    }
    return {};
  }

  Status read_tensor(std::string name, json::value& value) {
    json::object object;
    MOETAPE_TRY(check(value.get_object().get(object)));
    TensorInfo tensor{.name = std::move(name)};
    std::set<std::string, std::less<>> keys;
    for (auto result : object) {
      json::field field;
      MOETAPE_TRY(check(std::move(result).get(field)));
      std::string_view key;
      MOETAPE_TRY(check(field.unescaped_key().get(key)));
      if (!keys.emplace(key).second) return twice(key);
      json::value part = field.value();
      MOETAPE_TRY(read_part(tensor, key, part));
    }
    if (keys.size() != 3) {
      return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected dtype, shape and data_offsets, got {}",
                  file_, shown(tensor.name), keys);
    }
    MOETAPE_TRY(check_size(tensor));
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  Status read_part(TensorInfo& tensor, std::string_view key, json::value& value) {
    if (key == "dtype") {
      std::string_view dtype;
      MOETAPE_TRY(check(value.get_string().get(dtype)));
      tensor.dtype = dtype;
      return {};
    }
    if (key == "shape") return read_numbers(value, tensor.shape);
    if (key == "data_offsets") {
      std::vector<int64_t> offsets;
      MOETAPE_TRY(read_numbers(value, offsets));
      if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected data_offsets [begin, end], got {}",
                    file_, shown(tensor.name), offsets);
      }
      tensor.begin = offsets[0];
      tensor.end = offsets[1];
      return {};
    }
    return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected dtype, shape and data_offsets, got {:?}",
                file_, shown(tensor.name), shown(key));
  }

  Status read_numbers(json::value& value, std::vector<int64_t>& numbers) {
    json::array array;
    MOETAPE_TRY(check(value.get_array().get(array)));
    for (auto element : array) {
      int64_t number = 0;
      MOETAPE_TRY(check(element.get_int64().get(number)));
      if (number < 0 || numbers.size() == kMostDimensions) {
        return fail(ErrorCode::kCorruptData, "{}: header: expected at most {} numbers of 0 or more, got {}{}",
                    file_, kMostDimensions, number, number < 0 ? "" : " behind them");
      }
      numbers.push_back(number);
    }
    return {};
  }

  Status check_size(const TensorInfo& tensor) const {
    std::optional<int64_t> bytes = dtype_bytes(tensor.dtype);
    if (!bytes) {
      return fail(ErrorCode::kUnsupported, "{}: tensor {:?}: type {:?} is not known to this moetape", file_,
                  shown(tensor.name), shown(tensor.dtype));
    }
    for (const int64_t size : tensor.shape) bytes = bytes ? checked_multiply(*bytes, size) : bytes;
    if (bytes == tensor.num_bytes()) return {};
    return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected the {} bytes that {} of {} have, got {}",
                file_, shown(tensor.name), bytes ? fmt::to_string(*bytes) : "2^63 and more", tensor.dtype,
                tensor.shape, tensor.num_bytes());
  }

  Status check(simdjson::error_code error) {
    if (error == simdjson::SUCCESS) return {};
    const char* at = nullptr;
    const bool has_place = document_.current_location().get(at) == simdjson::SUCCESS;
    return fail(ErrorCode::kCorruptData, "{}: byte {}: header: {}", file_,
                kLengthBytes + (has_place ? at - padded_.data() : static_cast<ptrdiff_t>(size_)),
                simdjson::error_message(error));
  }

  Failure twice(std::string_view key) const {
    return fail(ErrorCode::kCorruptData, "{}: header: expected every key once, got {:?} twice", file_,
                shown(key));
  }

  static std::string_view shown(std::string_view text) { return text.substr(0, kMostShown); }

  std::string_view file_;
  std::string padded_;
  size_t size_;
  json::parser parser_;
  json::document document_;
  Header header_;
};

Status check_tiling(std::string_view file, const Header& header, int64_t file_bytes) {
  if (header.num_bytes % kAlignment != 0) {
    return fail(ErrorCode::kCorruptData,
                "{}: byte 0: expected a header that ends at a multiple of {} bytes, got one that ends at {}",
                file, kAlignment, header.num_bytes);
  }
  int64_t end = 0;
  std::string_view before = "the header";
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != end) {
      return fail(ErrorCode::kCorruptData, "{}: byte {}: tensor {:?} {} {:?}", file, header.num_bytes + end,
                  tensor.name, tensor.begin < end ? "overlaps" : "leaves a hole behind", before);
    }
    end = tensor.end;
    before = tensor.name;
  }
  const std::optional<int64_t> expected = checked_add(header.num_bytes, end);
  if (expected == file_bytes) return {};
  return fail(ErrorCode::kCorruptData, "{}: expected a file of {} bytes, as its header says, got {}", file,
              expected ? fmt::to_string(*expected) : "2^63 and more", file_bytes);
}

Status check_checksum(std::string_view file, std::span<const std::byte> header) {
  const Result<size_t> at = find_header_checksum(header);
  if (!at) return fail(at.error().code, "{}: {}", file, at.error().message);
  const std::optional<uint64_t> expected = parse_hex(as_text(header).substr(*at, kHexDigits));
  const uint64_t found = checksum_around(header, *at);
  if (expected && same_checksum(found, *expected)) return {};
  return fail(ErrorCode::kCorruptData,
              "{}: bytes 0 to {}: the header is damaged: its header_xxh3 should be {}, and is {:?}", file,
              header.size(), hex(found), as_text(header).substr(*at, kHexDigits));
}

}  // namespace

Result<size_t> find_header_checksum(std::span<const std::byte> header) {
  const std::string_view text = as_text(header);
  const size_t key = text.find(kChecksumKey, kLengthBytes);
  const size_t at = key == std::string_view::npos ? key : key + kChecksumKey.size();
  if (at == std::string_view::npos || text.size() - at <= kHexDigits || text[at + kHexDigits] != '"') {
    return fail(ErrorCode::kCorruptData, "header: expected {} and {} digits, got none", kChecksumKey,
                kHexDigits);
  }
  return at;
}

Result<Header> parse_header(std::string_view file, std::span<const std::byte> bytes) {
  const auto file_bytes = std::ssize(bytes);
  if (file_bytes < kLengthBytes) {
    return fail(ErrorCode::kCorruptData, "{}: expected a tape, got a file of {} bytes", file, file_bytes);
  }
  const auto length = load<uint64_t>(bytes.data());
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return fail(ErrorCode::kCorruptData, "{}: byte 0: expected a header of at most {} bytes, got one of {}",
                file, kMaxHeaderBytes, length);
  }
  const int64_t num_bytes = kLengthBytes + static_cast<int64_t>(length);
  if (num_bytes > file_bytes) {
    return fail(ErrorCode::kCorruptData, "{}: expected a header of {} bytes, got a file of {}", file, length,
                file_bytes);
  }
  const auto header_bytes = bytes.first(static_cast<size_t>(num_bytes));
  const std::string_view text = as_text(header_bytes).substr(kLengthBytes);
  if (!text.starts_with('{')) {
    return fail(ErrorCode::kCorruptData, "{}: byte {}: expected the header's {{, got {:?}", file,
                kLengthBytes, text.substr(0, 1));
  }
  MOETAPE_ASSIGN(Header header, Reader(file, text).read());
  header.num_bytes = num_bytes;
  std::ranges::sort(header.tensors, {}, [](const TensorInfo& t) { return std::pair(t.begin, t.end); });

  const auto format = header.metadata.find("format");
  if (format == header.metadata.end() || format->second != kFormat) {
    return fail(ErrorCode::kCorruptData, "{}: expected a tape (format {:?}), got a safetensors file of {}",
                file, kFormat,
                format == header.metadata.end() ? "no format" : quote(format->second.substr(0, kMostShown)));
  }
  const auto version = header.metadata.find("format_version");
  if (version == header.metadata.end() || version->second != kFormatVersion) {
    return fail(ErrorCode::kUnsupported,
                "{}: format_version: this moetape reads {}, got {}; a newer one may read it", file,
                kFormatVersion,
                version == header.metadata.end() ? "none" : version->second.substr(0, kMostShown));
  }
  MOETAPE_TRY(check_checksum(file, header_bytes));
  MOETAPE_TRY(check_tiling(file, header, file_bytes));
  return header;
}

Result<std::string> format_header(const MetadataList& metadata, std::span<const TensorInfo> tensors,
                                  int64_t num_bytes) {
  std::string text(kLengthBytes, '\0');
  text += R"({"__metadata__":{)";
  for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", quote(key), quote(value));
  text += fmt::format("{}{}\"}}", kChecksumKey, kNoChecksum);
  for (const TensorInfo& tensor : tensors) {
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quote(tensor.name),
                        tensor.dtype, fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  text += '}';
  if (num_bytes == 0) num_bytes = round_up(std::ssize(text), kAlignment);
  const int64_t limit = std::min(num_bytes, kLengthBytes + kMaxHeaderBytes);
  if (std::ssize(text) > limit) {
    return fail(ErrorCode::kCapacity, "header: expected at most {} bytes, got {}", limit, text.size());
  }
  text.resize(static_cast<size_t>(num_bytes), ' ');
  const int64_t length = num_bytes - kLengthBytes;
  std::memcpy(text.data(), &length, kLengthBytes);
  const auto bytes = std::as_writable_bytes(std::span(text));
  MOETAPE_ASSIGN(const size_t at, find_header_checksum(bytes));
  seal(bytes, at);
  return text;
}

}  // namespace moetape::inline v0::tape
