#include "sinks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "reading.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

class TapeSink final : public Sink {
 public:
  TapeSink(const OutputOptions& output, const RouteSpec& spec, const TapeOptions& options)
      : output_(output, spec, options) {}

  void add(const Routes& routes, const std::string& id) override {
    need(output_.writer().append(routes, {.id = id}), id);
  }
  void add(const Tape& tape, int64_t sequence, int64_t start, int64_t end) override {
    need(output_.writer().append(tape, sequence, start, end));
  }
  void finish(Console& console) override { output_.finish(console); }

 private:
  TapeOutput output_;
};

// What goes to one dialect; who derives says where the bytes go.
class FormSink : public Sink {
 public:
  FormSink(const OutputOptions& output, RouteSpec spec, Dialect dialect, const EncodeOptions& options)
      : output_(output), spec_(std::move(spec)), dialect_(dialect), options_(options) {}

  void add(const Routes& routes, const std::string& id) override {
    put(need(encode(routes, dialect_, options_), fmt::format("sequence {}", num_sequences_)), id);
    ++num_sequences_;
    num_rows_ += routes.num_rows();
  }
  void add(const Tape& tape, int64_t sequence, int64_t start, int64_t end) override {
    add(need(tape.read(sequence, start, end, spec_.layers())), need(tape.entry(sequence)).id);
  }
  void finish(Console& console) final {
    close(console);
    output_.tell(console, num_sequences_, num_rows_, {{"dialect", dialect_name(dialect_)}});
  }

 protected:
  virtual void put(std::string bytes, const std::string& id) = 0;
  virtual void close(Console& console) = 0;

  const OutputOptions& output() const { return output_; }
  int64_t num_sequences() const { return num_sequences_; }
  Dialect dialect() const { return dialect_; }

 private:
  const OutputOptions& output_;
  RouteSpec spec_;
  Dialect dialect_;
  EncodeOptions options_;
  int64_t num_sequences_ = 0;
  int64_t num_rows_ = 0;
};

class FileSink final : public FormSink {
 public:
  using FormSink::FormSink;

 private:
  void put(std::string bytes, const std::string& /*id*/) override {
    if (num_sequences() > 0)
      refuse("-o {}: a file holds one sequence; name a folder, as out/", output().path);
    bytes_ = std::move(bytes);
  }
  void close(Console& console) override {
    if (num_sequences() == 0) refuse("-o {}: there is no sequence to write", output().path);
    write_output(output(), console, bytes_);
  }

  std::string bytes_;
};

std::string_view extension(Dialect dialect) {
  if (dialect == Dialect::kNpy) return "npy";
  if (dialect_info(dialect).kind == FormKind::kArray) return "bin";
  static constexpr Dialect kJson[] = {Dialect::kVllmSplit, Dialect::kLightllm, Dialect::kPrimeRl,
                                      Dialect::kSkyrl, Dialect::kMegatron};
  return std::find(std::begin(kJson), std::end(kJson), dialect) != std::end(kJson) ? "json" : "txt";
}

bool is_plain_name(std::string_view name) {
  constexpr size_t kLongest = 200;  // a file's name has 255 bytes
  const auto is_plain = [](char letter) {
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
           (letter >= 'A' && letter <= 'Z') || letter == '-' || letter == '_' || letter == '.';
  };
  return !name.empty() && name.size() <= kLongest && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), is_plain);
}

class FolderSink final : public FormSink {
 public:
  FolderSink(const OutputOptions& output, const RouteSpec& spec, Dialect dialect,
             const EncodeOptions& options)
      : FormSink(output, spec, dialect, options), folder_(output.path) {}

 private:
  void put(std::string bytes, const std::string& id) override {
    std::string name = id;
    if (!is_plain_name(id) || names_.contains(id)) name = fmt::format("{:06}", num_sequences());
    if (!names_.insert(name).second) refuse("-o {}: two sequences are called {}", output().path, name);
    folder_.write(fmt::format("{}.{}", name, extension(dialect())), bytes);
  }
  void close(Console& /*console*/) override { folder_.finish(); }

  OutputFolder folder_;
  std::set<std::string> names_;
};

}  // namespace

bool names_folder(const std::string& path) {
  std::error_code error;
  return path.ends_with('/') || (path != "-" && std::filesystem::is_directory(path, error));
}

void FormFlags::declare(Command& command) {
  command.choice("--to", to, dialect_names(), "What to write; .tape and .npy say it themselves");
  command.choice("--missing", missing, {"refuse", "zeros", "distinct"},
                 "What to write for missing rows where the form cannot say it (refuse)");
  command.choice("--to-dtype", dtype, int_type_names(), "Type of ids, where the form has several");
  command.choice("--to-layers", layers, {"all", "moe"}, "Columns for all layers or the MoE layers");
  command.number("--prompt-rows", prompt_rows, "vllm-split: how many rows are the prompt's");
}

std::optional<Dialect> FormFlags::dialect(const OutputOptions& output) const {
  const std::string extension = std::filesystem::path(output.path).extension();
  if (to == "tape" || (to.empty() && (extension == ".tape" || extension == ".safetensors"))) return {};
  if (to.empty() && extension == ".npy") return Dialect::kNpy;
  if (to.empty()) refuse("--to: {} does not say what to write", output.path);
  return need(dialect_from_name(to), "--to");
}

void FormFlags::check_unused(std::string_view output, std::optional<Dialect> dialect) const {
  const std::pair<std::string_view, bool> given[] = {{"--missing", !missing.empty()},
                                                     {"--to-dtype", !dtype.empty()},
                                                     {"--to-layers", !layers.empty()},
                                                     {"--prompt-rows", prompt_rows.has_value()}};
  const bool is_tape = !dialect || *dialect == Dialect::kTape || *dialect == Dialect::kTapeBase64;
  for (const auto& [name, is_given] : given) {
    if (is_given && is_tape) refuse("{}: is for forms; {} is written as a tape, as it is", name, output);
  }
  if (prompt_rows && *dialect != Dialect::kVllmSplit) {
    refuse("--prompt-rows: is for vllm-split; {} is written as {}", output, dialect_name(*dialect));
  }
}

EncodeOptions FormFlags::options() const {
  EncodeOptions options;
  if (missing == "zeros") options.missing = MissingFill::kZeros;
  if (missing == "distinct") options.missing = MissingFill::kDistinct;
  options.type = int_type_of(dtype);
  if (!layers.empty()) options.layers = layers == "all" ? LayerAxis::kAll : LayerAxis::kMoe;
  options.prompt_rows = prompt_rows.value_or(0);
  return options;
}

std::unique_ptr<Sink> tape_sink(const OutputOptions& output, const RouteSpec& spec,
                                const TapeOptions& options) {
  return std::make_unique<TapeSink>(output, spec, options);
}

std::unique_ptr<Sink> form_sink(const OutputOptions& output, const RouteSpec& spec, Dialect dialect,
                                const EncodeOptions& options) {
  if (names_folder(output.path)) return std::make_unique<FolderSink>(output, spec, dialect, options);
  return std::make_unique<FileSink>(output, spec, dialect, options);
}

}  // namespace moetape::cli
