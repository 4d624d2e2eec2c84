#include "moetape/tape.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "sequences.h"
#include "store.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kTapeDoc =
    R"(The routes of many sequences in a file (docs/tape-format.md), mapped and lazy: opened by moetape.open.

tape[i] is the Routes of sequence i, whose ids are views of the file where it has no codec and one layer group. A
sequence is checked when it is read: CorruptDataError names the file, the sequence and the byte. Missing rows stay
missing ("not_sent"). Any thread.)";

constexpr const char* kOpenDoc =
    R"(The Tape in a file, or in the files of an index. path: str or os.PathLike.

Raises IoError (no such file, no rights), CorruptDataError, UnsupportedError for what a newer moetape may have written.)";

constexpr const char* kFromBytesDoc =
    R"(The Tape in bytes, as tape_bytes makes them: bytes or any C-contiguous buffer, not copied and kept alive; its bytes must
stay as they are.

name: stands for the path in errors.)";

constexpr const char* kReadDoc =
    R"(Positions [start, end) of a sequence (None: all of it), of `layers` (ascending global indices; None: all).

Touches no more of the file than it must. Raises OutOfRangeError for a sequence, positions or layers that are not
there. Long calls release the GIL.)";

constexpr const char* kVerifyDoc =
    R"(What is damaged, as a list of TapeFault; empty = sound. sequence: this one only; None: the whole tape.

Every byte is looked at, and the ids are what the spec asks for. Releases the GIL.)";

constexpr const char* kWriterDoc =
    R"(Writes a tape in order and in bounded memory; one thread at a time.

The file takes its name in finish(), whole or not at all. As a context manager it finishes when the block ends, and
leaves nothing where that or the block raises. codec: "none" or "bitpack". layer_groups: lists of layers that lie together, a
partition of the spec's, so that a pipeline stage reads only its own. max_file_bytes: what does not fit goes to further
files, and the path becomes their index. overwrite: take the place of a file that has the name. Raises IoError,
InvalidArgumentError, ConflictError where a file has the name and overwrite is not set, or it is the index of a sharded
tape; finish() does so where one has taken it since, and may be called again.)";

constexpr const char* kAppendDoc =
    R"(Adds one sequence: Routes, or Store.rows(...) in one pass. Where it fails, nothing was added.

id: need not be unique. meta: free text; JSON is a good choice. Raises SpecMismatchError for another fingerprint,
ClosedError after finish(). Long calls release the GIL.)";

constexpr const char* kSaveDoc =
    R"(Writes a tape of an iterable of Routes, which is walked once and not kept; whole or not at all.

sequence_ids, metas: iterables of str, as many. spec: needed only where there are no routes. codec, layer_groups,
max_file_bytes, overwrite: as of TapeWriter.)";

constexpr const char* kBytesDoc =
    R"(The bytes of a tape, for the network: the same as those of the file. See save; Tape.from_bytes reads them.)";

constexpr const char* kMergeDoc =
    R"(Writes all sequences of all tapes, in order, as one tape, in bounded memory; the path may be one of them (overwrite=True).

Raises SpecMismatchError for another fingerprint, InvalidArgumentError for no tapes.)";

constexpr const char* kSliceDoc =
    R"(Writes a part of a tape. sequences: their indices in the order wanted. start, end: positions; a sequence is cut to
them and stays, without rows if it has none there. layers: ascending global indices. None: all. codec, max_file_bytes, overwrite: as of
TapeWriter.)";

struct LayerGroupsArg : Arg {
  static constexpr auto kStubName =
      nb::detail::const_name("collections.abc.Iterable[collections.abc.Sequence[int]] | None");
};

struct StringsArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[str] | None");
};

struct AppendableArg : Arg {
  static constexpr auto kStubName = nb::detail::make_caster<Routes>::Name + nb::detail::const_name(" | ") +
                                    nb::detail::make_caster<RowsHandle>::Name;
};

struct RoutesIterableArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[Routes]");
};

struct BytesArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("bytes | bytearray | memoryview");
};

struct TapesArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("collections.abc.Iterable[Tape]");
};

template <class Int>
std::vector<Int> integers(nb::handle object, const char* name) {
  const Integers<Int> list(object, name);
  return {list.span().begin(), list.span().end()};
}

// Empty = all.
std::vector<int32_t> layers_from(OptionalArrayArg arg) {
  if (arg.object.is_none()) return {};
  std::vector<int32_t> layers = integers<int32_t>(arg.object, "layers");
  if (layers.empty()) raise(ErrorCode::kInvalidArgument, "layers: expected at least one, or None, got none");
  return layers;
}

TapeOptions options_from(StrArg codec, LayerGroupsArg groups, OptionalIntArg max_file_bytes,
                         BoolArg overwrite) {
  TapeOptions options;
  options.codec = unwrap(codec_from_name(codec.get("codec")));
  if (!groups.object.is_none()) {
    Items items(groups.object, "layer_groups", "a list of lists of layers");
    while (const nb::object group = items.next()) {
      options.layer_groups.push_back(integers<int32_t>(group, items.item_name().c_str()));
    }
  }
  options.max_file_bytes = max_file_bytes.limit("max_file_bytes");
  options.overwrite = overwrite.get("overwrite");
  return options;
}

struct WriterHandle {
  std::optional<TapeWriter> writer;  // none: given up
  bool finished = false;
  bool busy = false;
};

TapeWriter& open_writer(WriterHandle& self) {
  if (!self.writer) raise(ErrorCode::kClosed, "TapeWriter: expected an open one, got one that was given up");
  return *self.writer;
}

int64_t ids_bytes(const RouteSpec& spec, int64_t num_rows) { return work_bytes(num_rows, spec.row_bytes()); }

void append(WriterHandle& self, AppendableArg routes, StrArg id, StrArg meta) {
  const Busy busy(&self.busy, "TapeWriter");
  TapeWriter& writer = open_writer(self);
  const TapeSequence sequence{.id = std::string(id.get("id")), .meta = std::string(meta.get("meta"))};
  if (const Routes* value = ObjectArg<Routes>{{routes.object}}.get_if()) {
    const Routes kept = *value;
    return unwrap(
        long_call(ids_bytes(kept.spec(), kept.num_rows()), [&] { return writer.append(kept, sequence); }));
  }
  if (RowsHandle* rows = ObjectArg<RowsHandle>{{routes.object}}.get_if()) {
    const Busy rows_busy(&rows->busy, "routes");
    RowSource& source = *rows->source;
    return unwrap(long_call(ids_bytes(source.spec(), source.num_rows()),
                            [&] { return writer.append(source, sequence); }));
  }
  raise_wrong_type("routes", "Routes or RowSource", routes.object);
}

void append_from(WriterHandle& self, ObjectArg<Tape> tape_arg, IntArg sequence_arg, OptionalIntArg start_arg,
                 OptionalIntArg end_arg) {
  const Busy busy(&self.busy, "TapeWriter");
  TapeWriter& writer = open_writer(self);
  const Tape tape = tape_arg.get("tape");
  const int64_t sequence = sequence_arg.get("sequence");
  const std::optional<int64_t> start = start_arg.get("start");
  const std::optional<int64_t> end = end_arg.get("end");
  nb::gil_scoped_release release;
  auto status = writer.append(tape, sequence, start, end);
  nb::gil_scoped_acquire acquire;
  unwrap(std::move(status));
}

void finish(WriterHandle& self) {
  const Busy busy(&self.busy, "TapeWriter");
  TapeWriter& writer = open_writer(self);
  unwrap(long_call(kLongCallBytes, [&] { return writer.finish(); }));
  self.finished = true;
}

void give_up(WriterHandle& self) {
  const Busy busy(&self.busy, "TapeWriter");
  self.writer.reset();
}

// The end of a with block.
void leave(WriterHandle& self, AnyArg exc_type, AnyArg, AnyArg) {
  if (self.finished) return;
  if (exc_type.object.is_none()) {
    try {
      return finish(self);
    } catch (const nb::python_error&) {
      give_up(self);
      throw;
    }
  }
  give_up(self);
}

std::unique_ptr<WriterHandle> new_writer(PathArg path, ObjectArg<RouteSpec> spec, StrArg codec,
                                         LayerGroupsArg groups, OptionalIntArg max_file_bytes,
                                         BoolArg overwrite) {
  auto handle = std::make_unique<WriterHandle>();
  handle->writer.emplace(unwrap(TapeWriter::create(path.get("path"), spec.get("spec"),
                                                   options_from(codec, groups, max_file_bytes, overwrite))));
  return handle;
}

// The texts of an optional iterable, one after the other.
class Texts {
 public:
  Texts(StringsArg arg, const char* name) {
    if (!arg.object.is_none()) items_.emplace(arg.object, name, "a list of str");
  }
  // "" where there is no iterable; WrongShapeError where it has ended before the routes.
  std::string next() {
    if (!items_) return {};
    const nb::object item = items_->next();
    if (!item.is_valid()) {
      raise(ErrorCode::kWrongShape, "{}: expected one for each of the routes, got {}", items_->name(),
            items_->count());
    }
    return std::string(StrArg{{item}}.get(items_->item_name().c_str()));
  }
  void expect_end() {
    if (!items_ || !items_->next().is_valid()) return;
    raise(ErrorCode::kWrongShape, "{}: expected one for each of {} routes, got more", items_->name(),
          items_->count() - 1);
  }

 private:
  std::optional<Items> items_;
};

RouteSpec spec_of(const Routes* first, OptionalObjectArg<RouteSpec> spec) {
  if (const RouteSpec* given = spec.get("spec")) return *given;
  if (first != nullptr) return first->spec();
  raise(ErrorCode::kInvalidArgument, "routes: expected at least one Routes, or spec, got neither");
}

void save(PathArg path_arg, RoutesIterableArg routes_arg, StringsArg ids_arg, StringsArg metas_arg,
          OptionalObjectArg<RouteSpec> spec_arg, StrArg codec, LayerGroupsArg groups,
          OptionalIntArg max_file_bytes, BoolArg overwrite) {
  const std::string path = path_arg.get("path");
  const TapeOptions options = options_from(codec, groups, max_file_bytes, overwrite);
  Items items(routes_arg.object, "routes", "a list of Routes");
  Texts ids(ids_arg, "sequence_ids");
  Texts metas(metas_arg, "metas");
  std::optional<TapeWriter> writer;
  while (const nb::object item = items.next()) {
    const Routes routes = ObjectArg<Routes>{{item}}.get(items.item_name().c_str());
    if (!writer) writer.emplace(unwrap(TapeWriter::create(path, spec_of(&routes, spec_arg), options)));
    const TapeSequence sequence{.id = ids.next(), .meta = metas.next()};
    unwrap(long_call(ids_bytes(routes.spec(), routes.num_rows()),
                     [&] { return writer->append(routes, sequence); }));
  }
  ids.expect_end();
  metas.expect_end();
  if (!writer) writer.emplace(unwrap(TapeWriter::create(path, spec_of(nullptr, spec_arg), options)));
  unwrap(long_call(kLongCallBytes, [&] { return writer->finish(); }));
}

nb::object to_bytes(RoutesIterableArg routes_arg, StringsArg ids_arg, StringsArg metas_arg,
                    OptionalObjectArg<RouteSpec> spec_arg, StrArg codec, LayerGroupsArg groups) {
  const std::vector<Routes> routes = RoutesListArg{{routes_arg.object}}.get("routes");
  const TapeOptions options = options_from(codec, groups, {{nb::none()}}, {{nb::bool_(false)}});
  Texts ids(ids_arg, "sequence_ids");
  Texts metas(metas_arg, "metas");
  std::vector<TapeSequence> sequences;
  for (size_t i = 0; i < routes.size(); ++i) sequences.push_back({.id = ids.next(), .meta = metas.next()});
  ids.expect_end();
  metas.expect_end();
  const RouteSpec spec = spec_of(routes.empty() ? nullptr : &routes.front(), spec_arg);
  const Buffer bytes =
      unwrap(long_call(kLongCallBytes, [&] { return tape_bytes(spec, routes, sequences, options); }));
  return nb::bytes(bytes.data(), static_cast<size_t>(bytes.size()));
}

Tape open(PathArg path_arg) {
  const std::string path = path_arg.get("path");
  return unwrap(long_call(kLongCallBytes, [&] { return Tape::open(path); }));
}

// Keeps the caller's buffer; whoever drops the last view of it may not hold the GIL.
struct Borrowed {
  explicit Borrowed(nb::handle object) : array(std::make_unique<Array>(object, "data")) {}
  ~Borrowed() {
    nb::gil_scoped_acquire acquire;
    array.reset();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  std::unique_ptr<Array> array;
};

Tape from_bytes(BytesArg data, StrArg name) {
  const auto kept = std::make_shared<Borrowed>(data.object);
  const Array& array = *kept->array;
  if (!array.contiguous())
    raise(ErrorCode::kInvalidArgument, "data: expected bytes in C order, got strided ones");
  Buffer buffer = Buffer::wrap(array.data(), array.size_bytes(), kept);
  std::string tape_name(name.get("name"));
  return unwrap(
      long_call(kLongCallBytes, [&] { return Tape::from_bytes(std::move(buffer), std::move(tape_name)); }));
}

int64_t sequence_index(const Tape& self, IntArg index) {
  const int64_t sequence = index.get("sequence");
  return sequence < 0 ? sequence + self.num_sequences() : sequence;
}

TapeEntry entry(const Tape& self, IntArg sequence) {
  return unwrap(self.entry(sequence_index(self, sequence)));
}

Routes read(const Tape& self, IntArg sequence_arg, OptionalIntArg start_arg, OptionalIntArg end_arg,
            OptionalArrayArg layers_arg) {
  const int64_t sequence = sequence_index(self, sequence_arg);
  const std::vector<int32_t> layers = layers_from(layers_arg);
  const std::optional<int64_t> start = start_arg.get("start");
  const std::optional<int64_t> end = end_arg.get("end");
  return unwrap(long_call(kLongCallBytes, [&]() -> Result<Routes> {
    if (!start && !end && layers.empty()) return self.read(sequence);
    if (start && end) return self.read(sequence, *start, *end, layers);
    MOETAPE_ASSIGN(const TapeEntry span, self.entry(sequence));
    return self.read(sequence, start.value_or(span.start), end.value_or(span.end), layers);
  }));
}

Routes item(const Tape& self, IntArg sequence) {
  return read(self, sequence, {{nb::none()}}, {{nb::none()}}, {{nb::none()}});
}

std::unique_ptr<RowsHandle> rows(const Tape& self, IntArg sequence) {
  auto handle = std::make_unique<RowsHandle>();
  handle->source = unwrap(self.rows(sequence_index(self, sequence)));
  return handle;
}

std::vector<TapeFault> verify(const Tape& self, OptionalIntArg sequence_arg) {
  if (sequence_arg.object.is_none()) {
    nb::gil_scoped_release release;
    return self.verify();
  }
  const int64_t sequence = sequence_index(self, {{sequence_arg.object}});
  if (sequence < 0 || sequence >= self.num_sequences()) unwrap(self.entry(sequence));
  const Status status = long_call(kLongCallBytes, [&] { return self.verify(sequence); });
  if (status) return {};
  return {{sequence, status.error()}};
}

void merge(TapesArg tapes_arg, PathArg path_arg, StrArg codec, LayerGroupsArg groups,
           OptionalIntArg max_file_bytes, BoolArg overwrite) {
  std::vector<Tape> tapes;
  Items items(tapes_arg.object, "tapes", "a list of Tape");
  while (const nb::object tape = items.next()) {
    tapes.push_back(ObjectArg<Tape>{{tape}}.get(items.item_name().c_str()));
  }
  const std::string path = path_arg.get("path");
  const TapeOptions options = options_from(codec, groups, max_file_bytes, overwrite);
  unwrap(long_call(kLongCallBytes, [&] { return merge_tapes(tapes, path, options); }));
}

void slice(ObjectArg<Tape> tape_arg, PathArg path_arg, OptionalArrayArg sequences, IntArg start,
           OptionalIntArg end, OptionalArrayArg layers, StrArg codec, OptionalIntArg max_file_bytes,
           BoolArg overwrite) {
  const Tape tape = tape_arg.get("tape");
  TapeSelection selection;
  if (!sequences.object.is_none()) selection.sequences = integers<int64_t>(sequences.object, "sequences");
  selection.layers = layers_from(layers);
  selection.start = start.get("start");
  selection.end = end.get("end");
  const std::string path = path_arg.get("path");
  const TapeOptions options = options_from(codec, {{nb::none()}}, max_file_bytes, overwrite);
  unwrap(long_call(kLongCallBytes, [&] { return slice_tape(tape, selection, path, options); }));
}

using Runs = std::vector<std::tuple<int64_t, int64_t, uint32_t>>;

void bind_values(nb::module_& m) {
  nb::class_<TapeEntry>(m, "TapeEntry", "What a tape says of a sequence, besides the ids of its rows.")
      .def_ro("id", &TapeEntry::id)
      .def_ro("meta", &TapeEntry::meta, "Free text of whoever wrote it.")
      .def_ro("start", &TapeEntry::start, "Position of the first row.")
      .def_ro("end", &TapeEntry::end, "Position behind the last row.")
      .def_ro("num_missing", &TapeEntry::num_missing, "Rows that are missing.")
      .def_ro("has_tokens", &TapeEntry::has_tokens)
      .def_prop_ro(
          "versions",
          [](const TapeEntry& self) {
            Runs runs;
            for (const VersionRun& run : self.versions) runs.emplace_back(run.start, run.end, run.version);
            return runs;
          },
          "[(start, end, version)] in positions.");
  nb::class_<TapeTensor>(m, "TapeTensor", "One tensor of a tape's file.")
      .def_ro("name", &TapeTensor::name)
      .def_ro("dtype", &TapeTensor::dtype, "As safetensors calls it.")
      .def_ro("shape", &TapeTensor::shape)
      .def_ro("offset", &TapeTensor::offset, "Bytes, in the file.")
      .def_ro("num_bytes", &TapeTensor::num_bytes);
  nb::class_<TapeFile>(m, "TapeFile", "One file of a tape.")
      .def_ro("path", &TapeFile::path, "Empty for bytes.")
      .def_ro("num_bytes", &TapeFile::num_bytes)
      .def_ro("num_sequences", &TapeFile::num_sequences)
      .def_ro("num_rows", &TapeFile::num_rows)
      .def_ro("tensors", &TapeFile::tensors, "In the order of the file.");
  nb::class_<TapeFault>(m, "TapeFault", "Damage that was found.")
      .def_prop_ro(
          "sequence",
          [](const TapeFault& self) {
            return self.sequence < 0 ? std::optional<int64_t>() : std::optional(self.sequence);
          },
          "Its index; None: the tape as a whole.")
      .def_prop_ro(
          "message", [](const TapeFault& self) { return self.error.message; },
          "Names the file, the place, what was expected and what stood there.")
      .def("__repr__", [](const TapeFault& self) {
        return fmt::format("TapeFault(sequence={}, \"{}\")",
                           self.sequence < 0 ? "None" : fmt::to_string(self.sequence), self.error.message);
      });
}

void bind_reader(nb::module_& m) {
  nb::class_<Tape>(m, "Tape", kTapeDoc)
      .def_static("from_bytes", &from_bytes, "data"_a, "name"_a = "tape", kFromBytesDoc)
      .def("__len__", &Tape::num_sequences)
      .def("__getitem__", &item, "sequence"_a)
      .def(
          "__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Routes]"))
      .def("read", &read, "sequence"_a, "start"_a = nb::none(), "end"_a = nb::none(), "layers"_a = nb::none(),
           kReadDoc)
      .def("rows", &rows, "sequence"_a, "The rows of a sequence for encode and append, in bounded memory.")
      .def("entry", &entry, "sequence"_a, "The TapeEntry of a sequence.")
      .def(
          "find",
          [](const Tape& self, StrArg id_arg) {
            const std::string_view id = id_arg.get("id");
            return unwrap(long_call(kLongCallBytes, [&] { return self.find(id); }));
          },
          "id"_a, "Indices of the sequences of this id, ascending. Looks at all entries when first called.")
      .def("verify", &verify, "sequence"_a = nb::none(), kVerifyDoc)
      .def_prop_ro(
          "name", &Tape::name,
          "The path that it was opened by (of an index that of the index), or the name of its bytes.")
      .def_prop_ro("spec", &Tape::spec, "The RouteSpec.")
      .def_prop_ro("num_rows", &Tape::num_rows, "Rows of all sequences.")
      .def_prop_ro(
          "codec", [](const Tape& self) { return std::string(codec_name(self.options().codec)); },
          "Of the ids: \"none\" or \"bitpack\".")
      .def_prop_ro(
          "layer_groups", [](const Tape& self) { return self.options().layer_groups; },
          "Layers that lie together; empty = all in one.")
      .def_prop_ro(
          "files",
          [](const Tape& self) { return std::vector<TapeFile>(self.files().begin(), self.files().end()); },
          "The files that it is made of, as TapeFile.")
      .def("__repr__", [](const Tape& self) {
        return fmt::format("Tape({} sequences, {} rows, {} file{})", self.num_sequences(), self.num_rows(),
                           self.files().size(), self.files().size() == 1 ? "" : "s");
      });
  m.def("open", &open, "path"_a, kOpenDoc);
}

void bind_writer(nb::module_& m) {
  nb::class_<WriterHandle>(m, "TapeWriter", kWriterDoc)
      .def(nb::new_(&new_writer), "path"_a, "spec"_a, nb::kw_only(), "codec"_a = "none",
           "layer_groups"_a = nb::none(), "max_file_bytes"_a = nb::none(), "overwrite"_a = false)
      .def("append", &append, "routes"_a, "id"_a = "", "meta"_a = "", kAppendDoc)
      .def("append_from", &append_from, "tape"_a, "sequence"_a, "start"_a = nb::none(), "end"_a = nb::none(),
           "Adds positions [start, end) (None: all) of a sequence of a Tape, with its id, meta and channels.")
      .def("finish", &finish, "Makes the tape appear under its path. Where it fails, nothing has appeared.")
      .def_prop_ro(
          "num_sequences",
          [](WriterHandle& self) {
            const Busy busy(&self.busy, "TapeWriter");
            return open_writer(self).num_sequences();
          },
          "Added so far.")
      .def_prop_ro(
          "num_rows",
          [](WriterHandle& self) {
            const Busy busy(&self.busy, "TapeWriter");
            return open_writer(self).num_rows();
          },
          "Added so far.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> TapeWriter"))
      .def(
          "__exit__", &leave, "exc_type"_a = nb::none(), "exc_value"_a = nb::none(),
          "traceback"_a = nb::none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, exc_value: BaseException | None, "
                  "traceback: types.TracebackType | None) -> None"));
  m.def("save", &save, "path"_a, "routes"_a, nb::kw_only(), "sequence_ids"_a = nb::none(),
        "metas"_a = nb::none(), "spec"_a = nb::none(), "codec"_a = "none", "layer_groups"_a = nb::none(),
        "max_file_bytes"_a = nb::none(), "overwrite"_a = false, kSaveDoc);
  m.def("tape_bytes", &to_bytes, "routes"_a, nb::kw_only(), "sequence_ids"_a = nb::none(),
        "metas"_a = nb::none(), "spec"_a = nb::none(), "codec"_a = "none", "layer_groups"_a = nb::none(),
        kBytesDoc);
  m.def("merge_tapes", &merge, "tapes"_a, "path"_a, nb::kw_only(), "codec"_a = "none",
        "layer_groups"_a = nb::none(), "max_file_bytes"_a = nb::none(), "overwrite"_a = false, kMergeDoc);
  m.def("slice_tape", &slice, "tape"_a, "path"_a, nb::kw_only(), "sequences"_a = nb::none(), "start"_a = 0,
        "end"_a = nb::none(), "layers"_a = nb::none(), "codec"_a = "none", "max_file_bytes"_a = nb::none(),
        "overwrite"_a = false, kSliceDoc);
}

}  // namespace

void bind_tape(nb::module_& m) {
  bind_values(m);
  bind_reader(m);
  bind_writer(m);
}

}  // namespace moetape::bindings
