#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "moetape/output_file.h"
#include "ranges.h"
#include "refusal.h"
#include "text.h"

namespace moetape::cli {
namespace {

namespace fs = std::filesystem;

constexpr fmt::format_string<const std::string&> kStandsThere =
    "{}: stands there already; --force replaces it";

[[noreturn]] void refuse_for_system(const std::string& path) { refuse("{}: {}", path, std::strerror(errno)); }

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The folder that a path means: links are followed, also to where nothing is yet.
std::string followed(std::string path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    if (links == kMostLinks) refuse("{}: {}", path, std::strerror(ELOOP));
    const fs::path next = fs::read_symlink(path, error);
    if (error) refuse("{}: {}", path, error.message());
    path = without_slashes((fs::path(path).parent_path() / next).string());
  }
  return path;
}

// New folders get the rights that mkdir() would give them; mkdtemp is stricter.
void give_usual_rights(const std::string& path) {
  const mode_t mask = umask(0);
  umask(mask);
  if (chmod(path.c_str(), 0777 & ~mask) != 0) refuse_for_system(path);
}

bool is_device(const std::string& path) {
  struct stat facts{};
  return stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
}

// A pipe or device, which is written to as it is.
class Device {
 public:
  explicit Device(std::string path) : path_(std::move(path)) {
    do {
      check_interrupts();
      descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    check(descriptor_);
  }
  ~Device() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      check_interrupts();
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      check(written);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  void finish() { check(close(std::exchange(descriptor_, -1))); }

 private:
  void check(int64_t result) const {
    if (result < 0) refuse_for_system(path_);
  }

  std::string path_;
  int descriptor_ = -1;
};

void copy_file(const std::string& path, const std::function<void(std::string_view)>& take) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) refuse_for_system(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> closed(file, std::fclose);
  std::string bytes(1 << 20, '\0');
  while (const size_t got = std::fread(bytes.data(), 1, bytes.size(), file)) {
    take(std::string_view(bytes).substr(0, got));
  }
  if (std::ferror(file) != 0) refuse_for_system(path);
}

// A file that took the name meanwhile is refused in the words of OutputOptions::check().
template <class T>
T need_name(Result<T> result, const std::string& path, bool force) {
  if (!result && result.error().code == ErrorCode::kConflict && !force) refuse(kStandsThere, path);
  return need(std::move(result));
}

void write_file(const std::string& path, bool force, std::string_view bytes) {
  OutputFile file = need_name(OutputFile::create(path, force), path, force);
  need(file.write(std::as_bytes(std::span(bytes))));
  need_name(file.finish(), path, force);
}

}  // namespace

void OutputOptions::declare(Command& command, std::string_view help) {
  command.text("-o,--output", path, "FILE", help, ValueKind::kFile, true);
  command.flag("-f,--force", force, "Replace a file that stands there, or takes the name meanwhile");
  command.flag("--json", json, "Print what was written as JSON");
}

void OutputOptions::check(const Console& console, bool is_text) const {
  if (is_standard_output()) {
    if (json) refuse("--json: standard output holds what is written (-o -)");
    if (!is_text && console.output_is_terminal()) refuse("-o -: standard output is a terminal; name a file");
    return;
  }
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) {
    if (errno != ENOENT) refuse_for_system(path);
    if (path.ends_with('/')) refuse("{}: expected the name of a file, got that of a folder", path);
    const std::string folder = fs::path(path).parent_path().string();
    if (!folder.empty() && stat(folder.c_str(), &facts) != 0) refuse_for_system(folder);
    return;
  }
  if (S_ISDIR(facts.st_mode)) refuse("{}: expected the name of a file, got a folder", path);
  if (S_ISREG(facts.st_mode) && !force) refuse(kStandsThere, path);
}

void OutputOptions::tell(Console& console, int64_t num_sequences, int64_t num_rows, Json more) const {
  if (is_standard_output()) return;
  if (json) {
    Json told = {{"output", path}, {"num_sequences", num_sequences}, {"num_rows", num_rows}};
    told.update(more);
    return print_json(console, told);
  }
  console.print(fmt::format("{}: {}, {}\n", printable(path), counted(num_sequences, "sequence"),
                            counted(num_rows, "row")));
}

void write_output(const OutputOptions& options, Console& console, std::string_view bytes) {
  if (options.is_standard_output()) return console.print(bytes);
  catch_interrupts();
  if (!is_device(options.path)) return write_file(options.path, options.force, bytes);
  Device device(options.path);
  device.write(bytes);
  device.finish();
}

OutputFolder::OutputFolder(const std::string& path) : path_(followed(without_slashes(path))) {
  std::error_code error;
  if (fs::exists(path_, error) && !(fs::is_directory(path_, error) && fs::is_empty(path_, error))) {
    refuse("{}: expected a new or empty folder", path_);
  }
  if (error) refuse("{}: {}", path_, error.message());
  catch_interrupts();
  const fs::path target(path_);
  std::string hidden =
      (target.parent_path() / fmt::format(".{:.40}.XXXXXX", target.filename().string())).string();
  if (mkdtemp(hidden.data()) == nullptr) refuse_for_system(path_);
  hidden_ = std::move(hidden);
}

OutputFolder::~OutputFolder() {
  std::error_code error;
  if (!hidden_.empty()) fs::remove_all(hidden_, error);
}

void OutputFolder::write(const std::string& name, std::string_view bytes) {
  write_file((fs::path(hidden_) / name).string(), false, bytes);
}

void OutputFolder::finish() {
  give_usual_rights(hidden_);
  if (std::rename(hidden_.c_str(), path_.c_str()) != 0) refuse_for_system(path_);
  hidden_.clear();
}

void TapeFlags::declare(Command& command) {
  command.choice("--codec", codec, {"none", "bitpack"}, "How ids are kept");
  command.texts("--layer-group", layer_groups, "LAYERS",
                "Layers that lie together, as 0-5,7; repeat for each group");
  command.bytes(
      "--max-file-bytes", max_file_bytes,
      "Write several files, none larger unless it holds a single sequence: 4G is 4,000,000,000, 4Gi 2^32");
}

void TapeFlags::check_unused(std::string_view output, std::string_view dialect) const {
  const std::pair<std::string_view, bool> given[] = {{"--codec", !codec.empty()},
                                                     {"--layer-group", !layer_groups.empty()},
                                                     {"--max-file-bytes", max_file_bytes.has_value()}};
  for (const auto& [name, is_given] : given) {
    if (is_given) refuse("{}: is for tapes; {} is written as {}", name, output, dialect);
  }
}

TapeOptions TapeFlags::options(const RouteSpec& spec, const TapeOptions& like) const {
  TapeOptions options = like;
  const auto is_of_spec = [&spec](int32_t layer) { return spec.column_of(layer).has_value(); };
  for (std::vector<int32_t>& group : options.layer_groups) {
    std::erase_if(group, [&](int32_t layer) { return !is_of_spec(layer); });
  }
  std::erase_if(options.layer_groups, [](const auto& group) { return group.empty(); });
  if (!codec.empty()) options.codec = need(codec_from_name(codec));
  if (!layer_groups.empty()) {
    options.layer_groups.clear();
    for (const std::string& group : layer_groups) {
      options.layer_groups.push_back(parse_layers(group, "--layer-group"));
    }
  }
  options.max_file_bytes = 0;
  if (max_file_bytes) {
    const int64_t least = need(tape_bytes(spec, {}, {}, options)).size();
    if (*max_file_bytes < least) {
      refuse("--max-file-bytes: expected {} or more, what a tape of this spec has without a row, got {}",
             least, *max_file_bytes);
    }
    options.max_file_bytes = *max_file_bytes;
  }
  return options;
}

TapeOutput::TapeOutput(const OutputOptions& options, const RouteSpec& spec, TapeOptions tape_options)
    : options_(options) {
  catch_interrupts();
  std::string path = options.path;
  if (options.is_standard_output() || is_device(path)) {
    if (tape_options.max_file_bytes > 0) refuse("--max-file-bytes: {} is one file", path);
    std::error_code error;
    std::string folder = (fs::temp_directory_path(error) / "moetape-XXXXXX").string();
    if (error) refuse("TMPDIR: {}", error.message());
    if (mkdtemp(folder.data()) == nullptr) refuse_for_system(folder);
    folder_ = std::move(folder);
    path = (fs::path(folder_) / "tape").string();
  }
  tape_options.overwrite = options.force;
  writer_.emplace(need_name(TapeWriter::create(path, spec, std::move(tape_options)), path, options.force));
}

TapeOutput::~TapeOutput() {
  writer_.reset();
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

void TapeOutput::finish(Console& console, Json more) {
  need_name(writer_->finish(), options_.path, options_.force);
  if (!folder_.empty()) pass_on(console);
  options_.tell(console, writer_->num_sequences(), writer_->num_rows(), std::move(more));
}

// From the temporary folder to where it was asked for.
void TapeOutput::pass_on(Console& console) const {
  const std::string path = (fs::path(folder_) / "tape").string();
  if (options_.is_standard_output()) {
    return copy_file(path, [&console](std::string_view bytes) { console.print(bytes); });
  }
  Device device(options_.path);
  copy_file(path, [&device](std::string_view bytes) { device.write(bytes); });
  device.finish();
}

}  // namespace moetape::cli
