// Tape: the routes of many sequences in a file, or in bytes for the network; docs/tape-format.md is its law.
//
// A tape is a safetensors file. It is written once, in order, in bounded memory, and appears under its name
// whole or not at all. It is read by mapping: opening costs the same for any size, a sequence costs what it
// holds, and ids that lie as they are asked for are not copied. Every byte is checked no later than it is
// used; errors of damage (kCorruptData) name the file, the sequence and the byte.
//
// Positions, rows and layers are those of Routes. Missing rows stay missing; why they are is not kept: read
// rows say kNotSent. Files are named in UTF-8. Errors of the system (no such file, no rights, a full disk)
// are kIo and hold the system's words. The library touches no signals: a process under a file size limit that
// wants an error instead of its end ignores SIGXFSZ, as Python does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moetape/buffer.h"
#include "moetape/error.h"
#include "moetape/routes.h"
#include "moetape/row_source.h"
#include "moetape/spec.h"

namespace moetape::inline v0 {

enum class Codec : uint8_t {
  kNone,     // ids as they are in memory: read without a copy
  kBitpack,  // ceil(log2 num_experts) bits an id
};
std::string_view codec_name(Codec codec);              // "none"
Result<Codec> codec_from_name(std::string_view name);  // kInvalidArgument lists the names

struct TapeOptions {
  Codec codec = Codec::kNone;
  // Layers that lie together, so that a pipeline stage reads only its own: each of the spec's layers in one
  // group, ascending within it. Empty = all in one.
  std::vector<std::vector<int32_t>> layer_groups = {};
  // Above 0: no file is larger, unless it holds a single sequence; what does not fit goes to further files
  // beside it, and the path becomes their index.
  int64_t max_file_bytes = 0;
  // Whether the tape may take the place of a file that has its name.
  bool overwrite = false;
};

// What a caller says of a sequence. UTF-8 (kInvalidArgument otherwise).
struct TapeSequence {
  std::string id = {};    // need not be unique
  std::string meta = {};  // free text; JSON is a good choice
  bool operator==(const TapeSequence&) const = default;
};

// What a tape says of a sequence, besides the ids of its rows.
struct TapeEntry {
  std::string id;
  std::string meta;
  int64_t start = 0;  // positions
  int64_t end = 0;
  int64_t num_missing = 0;  // rows
  bool has_tokens = false;
  std::vector<VersionRun> versions;
};

// Which part of tapes to take.
struct TapeSelection {
  std::optional<std::vector<int64_t>> sequences = {};  // their indices, in the order wanted; none = all
  // Positions; a sequence is cut to them and stays, without rows if it has none there.
  int64_t start = 0;
  std::optional<int64_t> end = {};
  std::vector<int32_t> layers = {};  // ascending; empty = all
};

// One file of a tape.
struct TapeTensor {
  std::string name;
  std::string dtype;  // as safetensors calls it: "U8"
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in the file
  int64_t num_bytes = 0;
};
struct TapeFile {
  std::string path;  // empty for bytes
  int64_t num_bytes = 0;
  int64_t num_sequences = 0;
  int64_t num_rows = 0;
  std::vector<TapeTensor> tensors;  // in the order of the file
};

// Damage; sequence -1 is the tape as a whole.
struct TapeFault {
  int64_t sequence = -1;
  Error error;
};

// A tape that is read. Copies share it; any thread. What was read stays good when the tape is gone, and when
// another file takes its name. A file that is cut while it is mapped is another matter, as for every mapped
// file: each call looks whether the file has still its length, but nothing can keep a process from SIGBUS
// that touches what was cut a moment later. moetape itself never writes into a file that has its name. Of
// more than 64 files none is held open, and cuts are found by their names.
class Tape {
 public:
  // A file or the index of several; symbolic links are followed. kIo, kCorruptData, or kUnsupported for what
  // a newer moetape may have written.
  static Result<Tape> open(const std::string& path);
  // The same bytes from elsewhere; `name` stands for the path in errors. Nothing is copied.
  static Result<Tape> from_bytes(Buffer bytes, std::string name = "tape");

  // The path that it was opened by, of an index that of the index; or the name of its bytes.
  const std::string& name() const;
  const RouteSpec& spec() const;
  int64_t num_sequences() const;
  int64_t num_rows() const;
  // As it was written, to write another like it; max_file_bytes is the largest file's, 0 for a single one.
  const TapeOptions& options() const;
  std::span<const TapeFile> files() const;

  // Sequences are counted from 0 (kOutOfRange). All of a sequence but its rows.
  Result<TapeEntry> entry(int64_t sequence) const;
  // The sequences of this id, ascending. Looks at all entries when first called. If damaged entries could
  // hide one that is not found, kCorruptData.
  Result<std::vector<int64_t>> find(std::string_view id) const;

  // A sequence: its rows are views of the tape where it has no codec and one layer group, else a copy.
  Result<Routes> read(int64_t sequence) const;
  // Positions [start, end) of it (kOutOfRange if they are not its own), of `layers` (ascending; empty = all;
  // kOutOfRange). The spec of the result has these layers. Touches the blocks of some 1000 rows in which the
  // positions lie, of the groups that hold these layers.
  Result<Routes> read(int64_t sequence, int64_t start, int64_t end,
                      std::span<const int32_t> layers = {}) const;
  // The rows of a sequence in bounded memory.
  Result<std::unique_ptr<RowSource>> rows(int64_t sequence) const;

  // Every byte of one sequence, channels included, and that its ids are what the spec asks for.
  Status verify(int64_t sequence) const;
  // All sequences and what lies between them; empty = sound.
  std::vector<TapeFault> verify() const;

 private:
  friend class TapeWriter;
  class Impl;
  explicit Tape(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// Writes a tape. Move-only, one thread at a time.
//
// The file is written under a hidden name of its own in the folder of `path` (as output_file.h says) and
// takes its name in finish(), when it is on the disk. Where a file has the name, create() refuses, and so
// does finish() where one has taken it since; with `overwrite` it is replaced then, and not before. So of two
// writers of one path the first to finish has it and the other is told, or, where both overwrite, the last;
// their bytes never mix. A symbolic link stays, and the file it points to is meant. Memory: some MiB,
// whatever is written.
//
// A writer that goes away unfinished leaves nothing, shards included. A process that is killed leaves hidden
// files, and where that happens while the shards of a tape get their names, some of those: no index names
// them, since it comes last, and no other tape's shards have their tag.
class TapeWriter {
 public:
  // kInvalidArgument: layer groups that are not a partition of the spec's layers, a path that is no regular
  // file. kConflict: a file stands there and `overwrite` is not set, or it is the index of a sharded tape,
  // whose shards would be left without it.
  // kCapacity: a spec whose header would be above 64 KiB. kIo.
  static Result<TapeWriter> create(const std::string& path, const RouteSpec& spec, TapeOptions options = {});

  TapeWriter(TapeWriter&&) noexcept;
  TapeWriter& operator=(TapeWriter&&) noexcept;
  ~TapeWriter();

  // Each adds one sequence; where it fails, it has added nothing, and the writer goes on. kSpecMismatch
  // unless the fingerprints agree. kClosed after finish().
  Status append(const Routes& routes, const TapeSequence& sequence = {});
  // Pulls the source once, in order. `tokens`: empty, or one a row. `versions`: positions, ascending and
  // disjoint, within the span; missing rows are left out.
  Status append(RowSource& rows, const TapeSequence& sequence = {}, std::span<const int32_t> tokens = {},
                std::span<const VersionRun> versions = {});
  // Positions [start, end) (default: all; kOutOfRange if they are not its own) of a sequence of another tape,
  // whose spec may have more layers than this one's. Channels come along: all sequences of a tape have the
  // same ones (kConflict).
  Status append(const Tape& tape, int64_t sequence, std::optional<int64_t> start = {},
                std::optional<int64_t> end = {});

  int64_t num_sequences() const;
  int64_t num_rows() const;

  // Makes the tape appear. kConflict as of create(). Where it fails, nothing has appeared under the path, and
  // it may be called again; the one exception is a folder that takes the name and cannot be brought to the
  // disk.
  Status finish();

 private:
  class Impl;
  explicit TapeWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The bytes of a tape, the same as those of the file. `sequences`: empty, or one for each (kWrongShape).
// max_file_bytes and overwrite have no meaning here.
Result<Buffer> tape_bytes(const RouteSpec& spec, std::span<const Routes> routes,
                          std::span<const TapeSequence> sequences = {}, const TapeOptions& options = {});

// All sequences of all tapes, in order, in bounded memory. The path may be one of them (`overwrite`).
Status merge_tapes(std::span<const Tape> tapes, const std::string& path, const TapeOptions& options = {});
// A part of a tape; layer groups are those of the layers that are taken. kOutOfRange for sequences or layers
// that are not there, or positions below 0 or that end before they start.
Status slice_tape(const Tape& tape, const TapeSelection& selection, const std::string& path,
                  const TapeOptions& options = {});

}  // namespace moetape::inline v0
