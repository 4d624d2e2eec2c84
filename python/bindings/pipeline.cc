#include "moetape/pipeline.h"

#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "args.h"
#include "arrays.h"
#include "module.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

std::optional<int32_t> optional_layers(OptionalIntArg arg, const char* name) {
  if (arg.object.is_none()) return std::nullopt;
  return IntArg{{arg.object}}.as<int32_t>(name);
}

std::vector<int32_t> chunks_of(IntArg num_layers, IntArg size, IntArg virtual_size, OptionalIntArg first,
                               OptionalIntArg last, BoolArg embedding, BoolArg loss) {
  return unwrap(pipeline_chunks(num_layers.as<int32_t>("num_layers"),
                                {.size = size.as<int32_t>("size"),
                                 .virtual_size = virtual_size.as<int32_t>("virtual_size"),
                                 .first = optional_layers(first, "first"),
                                 .last = optional_layers(last, "last"),
                                 .embedding = embedding.get("embedding"),
                                 .loss = loss.get("loss")}));
}

std::vector<int32_t> layers_of(ObjectArg<RouteSpec> spec, ArrayArg chunks, IntArg size, IntArg rank,
                               OptionalIntArg virtual_stage) {
  const Integers<int32_t> sizes(chunks.object, "chunks");
  return unwrap(pipeline_layers(spec.get("spec"), sizes.span(), size.as<int32_t>("size"),
                                rank.as<int32_t>("rank"), optional_layers(virtual_stage, "virtual_stage")));
}

}  // namespace

void bind_pipeline(nb::module_& m) {
  m.def("pipeline_chunks", &chunks_of, "num_layers"_a, "size"_a, nb::kw_only(), "virtual_size"_a = 1,
        "first"_a = nb::none(), "last"_a = nb::none(), "embedding"_a = false, "loss"_a = false,
        "Layers of every pipeline chunk, in the model's order, as megatron-core cuts. size: ranks; "
        "virtual_size:\n"
        "chunks a rank; first, last: layers of the first and last rank where they differ; embedding, loss: "
        "each\n"
        "counts as a layer. Raises InvalidArgumentError where it does not come out even.");
  m.def("pipeline_layers", &layers_of, "spec"_a, "chunks"_a, "size"_a, "rank"_a,
        "virtual_stage"_a = nb::none(),
        "The spec's layers that a rank holds, in all its chunks or in one virtual stage, ascending: for\n"
        "Plan.from_row_ids. chunks: layers of every chunk, as pipeline_chunks gives them; chunk v * size + "
        "rank is\n"
        "virtual stage v of the rank.");
}

}  // namespace moetape::bindings
