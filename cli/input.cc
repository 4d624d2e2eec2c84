#include "input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "console.h"
#include "moetape/buffer.h"
#include "refusal.h"
#include "spec_from_config.h"

namespace moetape::cli {
namespace {

constexpr size_t kHeadBytes = 1 << 16;
constexpr std::string_view kIndexMark = "{\"moetape_index\":";

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

// nlohmann's words without what stands in all of them.
std::string json_fault(std::string message) {
  message.erase(0, message.find("] ") + 2);
  for (const std::string_view words : {"parse error at ", "syntax error "}) {
    if (const size_t place = message.find(words); place != std::string::npos)
      message.erase(place, words.size());
  }
  return message;
}

// Sees the keys of an object as they are parsed.
class KeysOnce {
 public:
  explicit KeysOnce(const std::string& place) : place_(place) {}

  bool operator()(int /*depth*/, ParsedJson::parse_event_t event, const ParsedJson& parsed) {
    if (event == ParsedJson::parse_event_t::object_start) open_->emplace_back();
    if (event == ParsedJson::parse_event_t::object_end) open_->pop_back();
    if (event == ParsedJson::parse_event_t::key && !open_->back().insert(parsed.get<std::string>()).second) {
      refuse("{}: expected every key once, got {} twice", place_, shown(parsed));
    }
    return true;
  }

 private:
  const std::string& place_;
  // One for each object that is open; shared, since nlohmann copies the callback.
  std::shared_ptr<std::vector<std::set<std::string>>> open_ =
      std::make_shared<std::vector<std::set<std::string>>>();
};

int32_t int32_of(const ParsedJson& json, const std::string& name, const std::string& place) {
  const std::optional<int32_t> number = int32_in(json);
  if (!number) refuse("{}: spec.{}: expected an integer of 32 bits, got {}", place, name, shown(json));
  return *number;
}

std::string text_of(const ParsedJson& json, const std::string& name, const std::string& place) {
  if (!json.is_string()) refuse("{}: spec.{}: expected a text, got {}", place, name, shown(json));
  return json.get<std::string>();
}

std::vector<int32_t> layers_of(const ParsedJson& json, const std::string& place) {
  if (!json.is_array()) refuse("{}: spec.layers: expected a list of layers, got {}", place, shown(json));
  std::vector<int32_t> layers;
  for (const ParsedJson& layer : json) layers.push_back(int32_of(layer, "layers", place));
  return layers;
}

std::map<int32_t, std::string> excluded_of(const ParsedJson& json, const std::string& place) {
  if (!json.is_object()) {
    refuse("{}: spec.excluded: expected an object of layers and reasons, got {}", place, shown(json));
  }
  std::map<int32_t, std::string> excluded;
  for (const auto& [layer, reason] : json.items()) {
    const std::optional<int32_t> index = index_of_key(layer);
    if (!index) refuse("{}: spec.excluded: expected the index of a layer, got \"{}\"", place, layer);
    excluded[*index] = text_of(reason, "excluded", place);
  }
  return excluded;
}

// The fields of json_of(RouteSpec).
RouteSpec spec_from_fields(const ParsedJson& json, const std::string& place) {
  RouteSpecFields fields;
  std::string fingerprint;
  for (const auto& item : json.items()) {
    const std::string& name = item.key();
    const ParsedJson& value = item.value();
    const auto number = [&] { return int32_of(value, name, place); };
    if (name == "stack") {
      fields.stack = text_of(value, name, place);
    } else if (name == "layers") {
      fields.layers = layers_of(value, place);
    } else if (name == "top_k") {
      fields.top_k = number();
    } else if (name == "num_experts") {
      fields.num_experts = number();
    } else if (name == "shared_columns") {
      fields.shared_columns = number();
    } else if (name == "distinct") {
      if (!value.is_boolean())
        refuse("{}: spec.distinct: expected true or false, got {}", place, shown(value));
      fields.distinct = value.get<bool>();
    } else if (name == "num_layers") {
      fields.num_layers = number();
    } else if (name == "excluded") {
      fields.excluded = excluded_of(value, place);
    } else if (name == "model") {
      fields.model = text_of(value, name, place);
    } else if (name == "fingerprint") {
      fingerprint = text_of(value, name, place);
    } else {
      refuse("{}: spec.{}: expected a field of a spec, got one that moetape does not know", place, name);
    }
  }
  RouteSpec spec = need(RouteSpec::create(std::move(fields)), place);
  if (!fingerprint.empty() && fingerprint != fingerprint_text(spec)) {
    refuse("{}: spec.fingerprint: expected {}, got {}", place, fingerprint_text(spec), fingerprint);
  }
  return spec;
}

}  // namespace

class Input::File {
 public:
  explicit File(const std::string& path) : name_(path == "-" ? "standard input" : path) {
    static bool standard_input_was_read = false;
    if (path == "-") {
      if (std::exchange(standard_input_was_read, true))
        refuse("-: expected standard input once, got it twice");
      descriptor_ = STDIN_FILENO;
    } else {
      do {
        check_interrupts();
        descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      } while (descriptor_ < 0 && errno == EINTR);
    }
    check(descriptor_);
    struct stat facts{};
    check(fstat(descriptor_, &facts));
    if (S_ISDIR(facts.st_mode)) refuse("{}: expected a file, got a folder", name_);
    is_regular_ = path != "-" && S_ISREG(facts.st_mode);
    num_bytes_ = S_ISREG(facts.st_mode) ? static_cast<size_t>(facts.st_size) : 0;
  }
  ~File() {
    if (descriptor_ > STDIN_FILENO) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Under its name the same bytes are found again.
  bool is_regular() const { return is_regular_; }

  // At most `most` bytes from where the file stands.
  std::string read_some(size_t most) {
    std::string bytes(most, '\0');
    size_t done = 0;
    while (done < most) {
      check_interrupts();
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
    bytes.reserve(std::max(bytes.size(), num_bytes_));
    constexpr size_t kPiece = 1 << 20;
    for (std::string piece = read_some(kPiece); !piece.empty(); piece = read_some(kPiece)) bytes += piece;
  }

 private:
  void check(ssize_t result) const {
    if (result < 0) refuse("{}: {}", name_, std::strerror(errno));
  }

  std::string name_;
  int descriptor_ = -1;
  bool is_regular_ = false;
  size_t num_bytes_ = 0;  // 0: not known
};

Input::Input(const std::string& path)
    : path_(path),
      name_(path == "-" ? "standard input" : path),
      file_(std::make_shared<File>(path)),
      bytes_(std::make_shared<std::string>(file_->read_some(kHeadBytes))) {}

bool Input::is_index() const { return bytes_->starts_with(kIndexMark); }

bool Input::is_tape() const {
  const std::string_view bytes = *bytes_;
  if (is_index()) return true;
  if (bytes.size() < 9 || bytes[8] != '{') return false;
  uint64_t length = 0;
  for (int place = 7; place >= 0; --place) length = length << 8 | static_cast<unsigned char>(bytes[place]);
  return length < 1 << 16;
}

// Two marks that stand apart: one flipped bit leaves the other.
bool Input::claims_to_be_tape() const {
  const std::string_view head = std::string_view(*bytes_).substr(0, kHeadBytes);
  constexpr std::string_view kMarks[] = {"\"format\":\"moetape.tape\"", "\"header_xxh3\":\"", kIndexMark};
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [head](std::string_view mark) { return head.find(mark) != std::string_view::npos; });
}

std::string Input::beginning() const {
  constexpr size_t kMostShown = 16;
  if (bytes_->empty()) return "nothing";
  return fmt::format("what begins with '{}'", bytes_->substr(0, kMostShown));
}

std::string_view Input::bytes() const {
  if (const auto file = std::exchange(file_, nullptr)) file->read_rest(*bytes_);
  return *bytes_;
}

Result<Tape> Input::tape() const {
  if (file_ && file_->is_regular()) return Tape::open(path_);
  const auto size = static_cast<int64_t>(bytes().size());
  return Tape::from_bytes(Buffer::wrap(bytes_->data(), size, bytes_), name_);
}

std::optional<int32_t> int32_in(const ParsedJson& json) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() || json.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX));
  if (!fits || json.get<int64_t>() < INT32_MIN) return {};
  return json.get<int32_t>();
}

std::optional<int32_t> index_of_key(std::string_view key) {
  int32_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  const bool is_plain =
      error == std::errc() && end == key.data() + key.size() && fmt::format("{}", index) == key;
  return is_plain && index >= 0 ? std::optional(index) : std::nullopt;
}

ParsedJson parse_json(std::string_view text, const std::string& place) {
  try {
    const bool has_infinities =
        text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
    return ParsedJson::parse(has_infinities ? without_infinities(text) : text, KeysOnce(place));
  } catch (const nlohmann::json::exception& error) {
    refuse("{}: expected JSON: {}", place, json_fault(error.what()));
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
  std::error_code error;
  const bool is_folder = path != "-" && std::filesystem::is_directory(path, error);
  const Input input(is_folder ? (std::filesystem::path(path) / "config.json").string() : path);
  if (input.is_tape()) return need(input.tape()).spec();
  return spec_from_json(parse_json(input.bytes(), input.name()), input.name());
}

}  // namespace moetape::cli
