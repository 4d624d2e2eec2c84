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
#include <system_error>
#include <utility>

#include "ranges.h"
#include "refusal.h"
#include "text.h"

namespace moetape::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_for_system(const std::string& path) { refuse("{}: {}", path, std::strerror(errno)); }

// A hidden name beside a path, for mkstemp and mkdtemp.
std::string hidden_beside(const std::string& path) {
  const fs::path target(path);
  return (target.parent_path() / fmt::format(".{}.XXXXXX.part", target.filename().string())).string();
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// New files get the rights that open() would give them; mkstemp and mkdtemp are stricter.
void give_usual_rights(const std::string& path, mode_t rights) {
  const mode_t mask = umask(0);
  umask(mask);
  if (chmod(path.c_str(), rights & ~mask) != 0) refuse_for_system(path);
}

void print_file(Console& console, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) refuse_for_system(path);
  std::string bytes(1 << 20, '\0');
  while (const size_t got = std::fread(bytes.data(), 1, bytes.size(), file)) {
    console.print(std::string_view(bytes).substr(0, got));
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) refuse_for_system(path);
}

}  // namespace

void OutputOptions::declare(Command& command, std::string_view help) {
  command.text("-o,--output", path, "FILE", help, ValueKind::kFile, true);
  command.flag("-f,--force", force, "Replace a file that stands there");
  command.flag("--json", json, "Print what was written as JSON");
}

void OutputOptions::check(const Console& console, bool is_text) const {
  if (is_standard_output()) {
    if (json) refuse("--json: standard output holds what is written (-o -)");
    if (!is_text && console.output_is_terminal()) refuse("-o -: standard output is a terminal; name a file");
    return;
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) refuse("{}: is a folder", path);
  if (fs::is_regular_file(status) && !force) refuse("{}: stands there already; --force replaces it", path);
}

void OutputOptions::tell(Console& console, int64_t num_sequences, int64_t num_rows, Json more) const {
  if (is_standard_output()) return;
  if (json) {
    Json told = {{"output", path}, {"num_sequences", num_sequences}, {"num_rows", num_rows}};
    told.update(more);
    return print_json(console, told);
  }
  console.print(fmt::format("{}: {} sequences, {} rows\n", printable(path), count_text(num_sequences),
                            count_text(num_rows)));
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    check(descriptor_);
    return;
  }
  if (fs::is_symlink(path_) && fs::exists(status)) path_ = fs::canonical(path_);
  catch_interrupts();
  std::string hidden = hidden_beside(path_);
  descriptor_ = mkstemps(hidden.data(), static_cast<int>(std::strlen(".part")));
  check(descriptor_);
  hidden_ = std::move(hidden);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!hidden_.empty()) unlink(hidden_.c_str());
}

void OutputFile::check(int64_t result) const {
  if (result < 0) refuse_for_system(path_);
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check(written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void OutputFile::finish() {
  if (!hidden_.empty()) {
    check(fsync(descriptor_));
    give_usual_rights(hidden_, 0666);
  }
  check(close(std::exchange(descriptor_, -1)));
  if (hidden_.empty()) return;
  check(std::rename(hidden_.c_str(), path_.c_str()));
  hidden_.clear();
}

void write_output(const OutputOptions& options, Console& console, std::string_view bytes) {
  if (options.is_standard_output()) return console.print(bytes);
  OutputFile file(options.path);
  file.write(bytes);
  file.finish();
}

OutputFolder::OutputFolder(std::string path) : path_(without_slashes(std::move(path))) {
  std::error_code error;
  if (fs::exists(path_, error) && !(fs::is_directory(path_, error) && fs::is_empty(path_, error))) {
    refuse("{}: expected a new or empty folder", path_);
  }
  catch_interrupts();
  std::string hidden = hidden_beside(path_);
  hidden.resize(hidden.size() - std::strlen(".part"));
  if (mkdtemp(hidden.data()) == nullptr) refuse_for_system(path_);
  hidden_ = std::move(hidden);
}

OutputFolder::~OutputFolder() {
  std::error_code error;
  if (!hidden_.empty()) fs::remove_all(hidden_, error);
}

void OutputFolder::write(const std::string& name, std::string_view bytes) {
  OutputFile file((fs::path(hidden_) / name).string());
  file.write(bytes);
  file.finish();
}

void OutputFolder::finish() {
  give_usual_rights(hidden_, 0777);
  if (std::rename(hidden_.c_str(), path_.c_str()) != 0) refuse_for_system(path_);
  hidden_.clear();
}

void TapeFlags::declare(Command& command) {
  command.choice("--codec", codec, {"none", "bitpack"}, "How ids are kept");
  command.texts("--layer-group", layer_groups, "LAYERS",
                "Layers that lie together, as 0-5,7; repeat for each group");
  command.bytes("--max-file-bytes", max_file_bytes, "Write several files, none larger, such as 4G");
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
  options.max_file_bytes = static_cast<int64_t>(max_file_bytes);
  return options;
}

TapeOutput::TapeOutput(const OutputOptions& options, const RouteSpec& spec, const TapeOptions& tape_options)
    : options_(options) {
  catch_interrupts();
  std::string path = options.path;
  if (options.is_standard_output()) {
    if (tape_options.max_file_bytes > 0) refuse("--max-file-bytes: standard output is one file");
    std::string folder = (fs::temp_directory_path() / "moetape-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) refuse_for_system(folder);
    folder_ = std::move(folder);
    path = (fs::path(folder_) / "tape").string();
  }
  TapeOptions with_name = tape_options;
  with_name.overwrite = options.force;
  writer_.emplace(need(TapeWriter::create(path, spec, with_name)));
}

TapeOutput::~TapeOutput() {
  writer_.reset();
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

void TapeOutput::finish(Console& console, Json more) {
  need(writer_->finish());
  if (!folder_.empty()) print_file(console, (fs::path(folder_) / "tape").string());
  options_.tell(console, writer_->num_sequences(), writer_->num_rows(), std::move(more));
}

}  // namespace moetape::cli
