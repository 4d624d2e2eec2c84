#include "moetape/layout.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

std::vector<int64_t> list(ArrayArg numbers, const char* name) {
  const Integers<int64_t> integers(numbers.object, name);
  return {integers.span().begin(), integers.span().end()};
}

Layout infer(IntArg batch_rows, ArrayArg counts, IntArg rank, ArrayArg shard_sizes, IntArg tp_size,
             IntArg tp_rank) {
  return unwrap(infer_layout({.batch_rows = batch_rows.get("batch_rows"),
                              .counts = list(counts, "counts"),
                              .rank = rank.as<int>("rank"),
                              .shard_sizes = list(shard_sizes, "shard_sizes"),
                              .tp_size = tp_size.as<int>("tp_size"),
                              .tp_rank = tp_rank.as<int>("tp_rank")}));
}

void bind_layout_class(nb::module_& m) {
  nb::class_<Layout> layout(
      m, "Layout",
      "Which rows of a router's batch are which tokens of this rank's step. A value; any\n"
      "thread. Numbers are checked against the batch when a step is committed, or by place.");
  layout.def_static("whole", &Layout::whole, "All rows, in order.")
      .def_static(
          "graph_padded",
          [](IntArg num_valid, IntArg num_rows) {
            return Layout::graph_padded(num_valid.get("num_valid"), num_rows.get("num_rows"));
          },
          "num_valid"_a, "num_rows"_a, "The first num_valid rows of a batch padded to num_rows.")
      .def_static(
          "dp_concat",
          [](ArrayArg counts, IntArg rank) {
            return Layout::dp_concat(list(counts, "counts"), rank.as<int>("rank"));
          },
          "counts"_a, "rank"_a, "All data-parallel ranks' tokens one behind another.")
      .def_static(
          "dp_padded",
          [](ArrayArg counts, IntArg padded, IntArg rank) {
            return Layout::dp_padded(list(counts, "counts"), padded.get("padded"), rank.as<int>("rank"));
          },
          "counts"_a, "padded"_a, "rank"_a, "The same, every rank padded to `padded` rows.")
      .def_static(
          "dp_shards",
          [](ArrayArg counts, ArrayArg shard_sizes, IntArg rank) {
            return Layout::dp_shards(list(counts, "counts"), list(shard_sizes, "shard_sizes"),
                                     rank.as<int>("rank"));
          },
          "counts"_a, "shard_sizes"_a, "rank"_a,
          "Sequence-parallel shards of every rank, in DP-then-TP order; shard_sizes include padding.")
      .def_static(
          "tp_shard",
          [](IntArg num_tokens, IntArg size, IntArg rank) {
            return Layout::tp_shard(num_tokens.get("num_tokens"), size.as<int>("size"), rank.as<int>("rank"));
          },
          "num_tokens"_a, "size"_a, "rank"_a,
          "This rank's shard of num_tokens, cut by ceil-division and padded.")
      .def_static(
          "tp_split",
          [](IntArg num_tokens, IntArg size, IntArg rank) {
            return Layout::tp_split(num_tokens.get("num_tokens"), size.as<int>("size"), rank.as<int>("rank"));
          },
          "num_tokens"_a, "size"_a, "rank"_a, "The same, cut like tensor_split and not padded.")
      .def_static(
          "rows", [](ArrayArg token_of_row) { return Layout::rows(list(token_of_row, "token_of_row")); },
          "token_of_row"_a, "Row i of the batch is token token_of_row[i]; -1 = not ours.")
      .def_static("infer", &infer, "batch_rows"_a, "counts"_a, "rank"_a = 0, "shard_sizes"_a = nb::tuple(),
                  "tp_size"_a = 1, "tp_rank"_a = 0,
                  "The layout that fits a row count by vLLM's rule, for its drop-in only. counts: tokens per "
                  "DP rank.\n"
                  "Raises WrongShapeError when none fits, or two that differ.")
      .def(
          "place",
          [](const Layout& self, IntArg batch_rows, IntArg num_tokens) {
            const Placement place =
                unwrap(self.place(batch_rows.get("batch_rows"), num_tokens.get("num_tokens")));
            return std::tuple(place.src, place.dst, place.count);
          },
          "batch_rows"_a, "num_tokens"_a,
          "(src, dst, count): batch rows [src, src + count) are tokens [dst, dst + count). Of a layout by "
          "rows,\n"
          "count is what it says of the whole batch. Raises WrongShapeError or OutOfRangeError with both "
          "figures.")
      .def("__repr__", &Layout::to_string);
}

void bind_id_map(nb::module_& m) {
  nb::class_<IdMap>(
      m, "IdMap",
      "Turns physical or dispatch ids into logical ones. to_logical[physical] is the logical id, or -1\n"
      "for a slot that holds no routed expert. A value; any thread.")
      .def(
          "__init__",
          [](IdMap* self, ArrayArg to_logical) {
            const Integers<int32_t> ids(to_logical.object, "to_logical");
            new (self) IdMap(unwrap(IdMap::create({ids.span().begin(), ids.span().end()})));
          },
          "to_logical"_a)
      .def_static(
          "interleaved_shared",
          [](IntArg num_experts, IntArg num_ranks, IntArg shared_per_rank) {
            return unwrap(IdMap::interleaved_shared(num_experts.as<int32_t>("num_experts"),
                                                    num_ranks.as<int32_t>("num_ranks"),
                                                    shared_per_rank.as<int32_t>("shared_per_rank")));
          },
          "num_experts"_a, "num_ranks"_a, "shared_per_rank"_a,
          "Every rank holds its share of the routed experts followed by shared_per_rank shared slots.")
      .def(
          "__call__", [](const IdMap& self, IntArg physical) { return self(physical.get("physical")); },
          "physical"_a, "The logical id; -1 for a slot of no routed expert; -2 outside the map.")
      .def("__len__", &IdMap::size);
}

}  // namespace

void bind_layout(nb::module_& m) {
  bind_layout_class(m);
  bind_id_map(m);
}

}  // namespace moetape::bindings
