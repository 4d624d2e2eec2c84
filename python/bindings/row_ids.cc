#include "moetape/row_ids.h"

#include <memory>
#include <string_view>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"
#include "sequences.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kClassDoc =
    R"(Whose token stands at which row of a batch: int64 row ids, (sequence + 1) << 32 | position, 0 for padding.

For whoever must know a rank's rows before the trainer's own code has cut them: to fetch them, or to pack
micro-batches. Rows stand in segments, at first one for each sequence. Every method gives a new RowIds, and they are
called in the order in which the trainer does the same to its tokens. A value; any thread.)";

nb::object new_array(std::span<const int64_t> numbers) {
  const auto copy = std::make_shared<std::vector<int64_t>>(numbers.begin(), numbers.end());
  return numpy_view(copy->data(), IntType::kInt64, {std::ssize(*copy)}, copy, Access::kWritable);
}

Side side_from(StrArg side) {
  const std::string_view name = side.get("side");
  if (name == "right") return Side::kRight;
  if (name == "left") return Side::kLeft;
  raise(ErrorCode::kInvalidArgument, "side: expected 'right' or 'left', got '{}'", name);
}

RowIds from_numbers(ArrayArg arg, const char* name, Result<RowIds> (*make)(std::span<const int64_t>)) {
  const Integers<int64_t> numbers(arg.object, name);
  return unwrap(make(numbers.span()));
}

// A number, or an array of them.
RowIds pad_each_to(const RowIds& self, ArrayArg lengths, StrArg side) {
  if (PyIndex_Check(lengths.object.ptr()) != 0 && !nb::hasattr(lengths.object, "__len__")) {
    const int64_t length = IntArg{{lengths.object}}.get("lengths");
    return unwrap(self.pad_each_to(std::span(&length, 1), side_from(side)));
  }
  const Integers<int64_t> numbers(lengths.object, "lengths");
  return unwrap(self.pad_each_to(numbers.span(), side_from(side)));
}

RowIds part_of(const RowIds& self, Result<RowIds> (RowIds::*cut)(int64_t, int64_t) const, IntArg size,
               IntArg rank) {
  return unwrap((self.*cut)(size.get("size"), rank.get("rank")));
}

std::string repr(const RowIds& self) {
  return fmt::format("RowIds({} rows in {} segments)", self.num_rows(), self.num_segments());
}

void bind_makers(nb::class_<RowIds>& rows) {
  rows.def_static(
          "from_lengths",
          [](ArrayArg lengths) { return from_numbers(lengths, "lengths", &RowIds::from_lengths); },
          "lengths"_a,
          "One segment for each sequence, of all its positions. Raises InvalidArgumentError for a length "
          "below 0.")
      .def_static(
          "from_cu_seqlens",
          [](ArrayArg cu_seqlens) {
            return from_numbers(cu_seqlens, "cu_seqlens", &RowIds::from_cu_seqlens);
          },
          "cu_seqlens"_a, "The same from the offsets of packed sequences, [0, ascending ...].")
      .def_static(
          "from_spans", [](RowSpansArg spans) { return unwrap(RowIds::from_spans(spans.get("spans"))); },
          "spans"_a, "One segment for each (sequence, start, end), positions [start, end).");
}

void bind_segments(nb::class_<RowIds>& rows) {
  rows.def(
          "take",
          [](const RowIds& self, ArrayArg segments) {
            const Integers<int64_t> indices(segments.object, "segments");
            return unwrap(self.take(indices.span()));
          },
          "segments"_a, "These segments in this order: a micro-batch.")
      .def(
          "pad_each",
          [](const RowIds& self, IntArg multiple, StrArg side) {
            return unwrap(self.pad_each(multiple.get("multiple"), side_from(side)));
          },
          "multiple"_a, "side"_a = "right", "Each segment padded to a multiple. side: 'right' or 'left'.")
      .def("pad_each_to", &pad_each_to, "lengths"_a, "side"_a = "right",
           nb::sig(
               "def pad_each_to(self, lengths: int | numpy.typing.ArrayLike, side: str = 'right') -> RowIds"),
           "Each segment padded to a length, one for all or one for each. Raises WrongShapeError for a "
           "longer one.")
      .def(
          "zigzag_each",
          [](const RowIds& self, IntArg size, IntArg rank) {
            return part_of(self, &RowIds::zigzag_each, size, rank);
          },
          "size"_a, "rank"_a,
          "Context parallelism: of 2 * size equal parts of each segment, part rank and part 2 * size - 1 - "
          "rank.\n"
          "Raises WrongShapeError for a segment that has no such parts; one rank takes all.")
      .def(
          "split_each",
          [](const RowIds& self, IntArg size, IntArg rank) {
            return part_of(self, &RowIds::split_each, size, rank);
          },
          "size"_a, "rank"_a, "Context parallelism: part rank of size equal parts of each segment.");
}

void bind_whole(nb::class_<RowIds>& rows) {
  rows.def(
          "pad",
          [](const RowIds& self, IntArg multiple) { return unwrap(self.pad(multiple.get("multiple"))); },
          "multiple"_a,
          "All rows padded to a multiple, behind the last; the last segment takes the padding in.")
      .def(
          "pad_to",
          [](const RowIds& self, IntArg num_rows) { return unwrap(self.pad_to(num_rows.get("num_rows"))); },
          "num_rows"_a, "All rows padded to this number.")
      .def(
          "split",
          [](const RowIds& self, IntArg size, IntArg rank) {
            return part_of(self, &RowIds::split, size, rank);
          },
          "size"_a, "rank"_a,
          "Part rank of size equal parts of all rows: sequence parallelism, and context parallelism that "
          "cuts the\n"
          "joined batch. Raises WrongShapeError if there are no such parts.")
      .def(
          "sequence_major", [](const RowIds& self) { return unwrap(self.sequence_major()); },
          "From row b * S + s to row s * B + b, as megatron-core's routers see a padded batch. Raises\n"
          "WrongShapeError for segments of different lengths.")
      .def(
          "gather",
          [](const RowIds& self, ArrayArg index) {
            const Integers<int64_t> rows_of(index.object, "index");
            return unwrap(self.gather(rows_of.span()));
          },
          "index"_a, "Row i is row index[i] of these, or padding for -1.");
}

}  // namespace

void bind_row_ids(nb::module_& m) {
  nb::class_<RowIds> rows(m, "RowIds", kClassDoc);
  bind_makers(rows);
  bind_segments(rows);
  bind_whole(rows);
  rows.def_prop_ro(
          "ids", [](const RowIds& self) { return new_array(self.ids()); },
          nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int64]"),
          "The row ids, a new int64 array [num_rows].")
      .def_prop_ro(
          "offsets", [](const RowIds& self) { return new_array(self.offsets()); },
          nb::sig("def offsets(self) -> numpy.typing.NDArray[numpy.int64]"),
          "Segment i is rows [offsets[i], offsets[i + 1]): the cu_seqlens of these rows.")
      .def_prop_ro("num_rows", &RowIds::num_rows)
      .def_prop_ro("num_segments", &RowIds::num_segments)
      .def(
          "__eq__",
          [](const RowIds& self, ObjectArg<RowIds> other) {
            const RowIds* other_rows = other.get_if();
            return other_rows != nullptr && self == *other_rows;
          },
          "other"_a, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", &repr);
  rows.attr("__hash__") = nb::none();
}

}  // namespace moetape::bindings
