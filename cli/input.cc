#include "input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "moetape/buffer.h"
#include "refusal.h"
#include "spec_from_config.h"

namespace moetape::cli {
namespace {

constexpr size_t kHeadBytes = 64;

class File {
 public:
  explicit File(const std::string& path)
      : name_(path == "-" ? "standard input" : path),
        descriptor_(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(descriptor_);
  }
  ~File() {
    if (descriptor_ > STDIN_FILENO) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // At most `most` bytes from where the file stands.
  std::string read_some(size_t most) {
    std::string bytes(most, '\0');
    size_t done = 0;
    while (done < most) {
      const ssize_t got = read(descriptor_, bytes.data() + done, most - done);
      if (got < 0 && errno == EINTR) continue;
      check(got);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    bytes.resize(done);
    return bytes;
  }

  // Adds all that follows.
  void read_rest(std::string& bytes) {
    struct stat facts{};
    check(fstat(descriptor_, &facts));
    bytes.reserve(bytes.size() + static_cast<size_t>(facts.st_size));
    constexpr size_t kPiece = 1 << 20;
    for (std::string piece = read_some(kPiece); !piece.empty(); piece = read_some(kPiece)) bytes += piece;
  }

 private:
  void check(ssize_t result) const {
    if (result < 0) refuse("{}: {}", name_, std::strerror(errno));
  }

  std::string name_;
  int descriptor_;
};

// Replaces NaN, Infinity and -Infinity outside texts; they are no JSON, but Python's json writes and reads
// them.
std::string without_infinities(std::string_view text) {
  static constexpr std::string_view kWords[] = {"NaN", "-Infinity", "Infinity"};
  std::string result;
  bool in_text = false;
  for (size_t place = 0; place < text.size();) {
    const auto rest = text.substr(place);
    const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                   [rest](std::string_view name) { return rest.starts_with(name); });
    if (!in_text && word != std::end(kWords)) {
      result += "1e308";
      place += word->size();
      continue;
    }
    if (in_text && text[place] == '\\' && place + 1 < text.size()) result += text[place++];
    in_text = in_text != (text[place] == '"');
    result += text[place++];
  }
  return result;
}

// As a tape or the index of one begins.
bool looks_like_tape(std::string_view bytes) {
  if (bytes.starts_with("{\"moetape_index\":")) return true;
  if (bytes.size() < 9 || bytes[8] != '{') return false;
  uint64_t length = 0;
  for (int place = 7; place >= 0; --place) length = length << 8 | static_cast<unsigned char>(bytes[place]);
  return length < 1 << 16;
}

int32_t int32_of(const ParsedJson& json, const std::string& name, const std::string& place) {
  if (!json.is_number_integer() || json.get<int64_t>() < INT32_MIN || json.get<int64_t>() > INT32_MAX) {
    refuse("{}: spec.{}: expected an integer of 32 bits, got {}", place, name, json.dump());
  }
  return static_cast<int32_t>(json.get<int64_t>());
}

std::string text_of(const ParsedJson& json, const std::string& name, const std::string& place) {
  if (!json.is_string()) refuse("{}: spec.{}: expected a text, got {}", place, name, json.dump());
  return json.get<std::string>();
}

// The fields of json_of(RouteSpec).
RouteSpec spec_from_fields(const ParsedJson& json, const std::string& place) {
  RouteSpecFields fields;
  std::string fingerprint;
  for (const auto& [name, value] : json.items()) {
    const auto number = [&, &name = name, &value = value] { return int32_of(value, name, place); };
    if (name == "stack") {
      fields.stack = text_of(value, name, place);
    } else if (name == "layers") {
      for (const ParsedJson& layer : value) fields.layers.push_back(int32_of(layer, name, place));
    } else if (name == "top_k") {
      fields.top_k = number();
    } else if (name == "num_experts") {
      fields.num_experts = number();
    } else if (name == "shared_columns") {
      fields.shared_columns = number();
    } else if (name == "distinct" && value.is_boolean()) {
      fields.distinct = value.get<bool>();
    } else if (name == "num_layers") {
      fields.num_layers = number();
    } else if (name == "excluded" && value.is_object()) {
      for (const auto& [layer, reason] : value.items()) {
        const ParsedJson index = ParsedJson::parse(layer, nullptr, false);
        fields.excluded[int32_of(index, name, place)] = text_of(reason, name, place);
      }
    } else if (name == "model") {
      fields.model = text_of(value, name, place);
    } else if (name == "fingerprint") {
      fingerprint = text_of(value, name, place);
    } else {
      refuse("{}: spec.{}: not understood: {}", place, name, value.dump());
    }
  }
  RouteSpec spec = need(RouteSpec::create(std::move(fields)), place);
  if (!fingerprint.empty() && fingerprint != fingerprint_text(spec)) {
    refuse("{}: spec.fingerprint: expected {}, got {}", place, fingerprint_text(spec), fingerprint);
  }
  return spec;
}

}  // namespace

Input::Input(const std::string& path)
    : path_(path), name_(path == "-" ? "standard input" : path), bytes_(std::make_shared<std::string>()) {
  File file(path);
  *bytes_ = file.read_some(kHeadBytes);
  is_tape_ = looks_like_tape(*bytes_);
  if (!is_tape_ || path == "-") file.read_rest(*bytes_);
}

Result<Tape> Input::tape() const {
  if (path_ != "-") return Tape::open(path_);
  const auto size = static_cast<int64_t>(bytes_->size());
  return Tape::from_bytes(Buffer::wrap(bytes_->data(), size, bytes_), name_);
}

ParsedJson parse_json(std::string_view text, const std::string& place) {
  try {
    const bool has_infinities =
        text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
    return ParsedJson::parse(has_infinities ? without_infinities(text) : text);
  } catch (const nlohmann::json::exception& error) {
    std::string message = error.what();
    message.erase(0, message.find("] ") + 2);
    refuse("{}: expected JSON: {}", place, message);
  }
}

RouteSpec spec_from_json(const ParsedJson& json, const std::string& place) {
  if (json.is_array() && json.size() == 1) return spec_from_json(json[0], place);  // what info --json prints
  if (!json.is_object()) refuse("{}: expected a JSON object, got {}", place, json.type_name());
  if (json.contains("spec") && json["spec"].is_object()) return spec_from_fields(json["spec"], place);
  if (json.contains("layers") && json["layers"].is_array() && json.contains("top_k")) {
    return spec_from_fields(json, place);
  }
  try {
    return spec_from_config(json);
  } catch (const Refusal& refusal) {
    refuse("{}: {}", place, refusal.what());
  }
}

RouteSpec read_spec(const std::string& path) {
  const bool is_folder = path != "-" && std::filesystem::is_directory(path);
  const Input input(is_folder ? (std::filesystem::path(path) / "config.json").string() : path);
  if (input.is_tape()) return need(input.tape()).spec();
  return spec_from_json(parse_json(input.bytes(), input.name()), input.name());
}

}  // namespace moetape::cli
