// RouteSpec: what is recorded of one stack of a model. A value: cheap to copy, immutable, safe on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0 {

struct RouteSpecFields {
  std::string stack = "target";      // a draft, MTP or vision stack is another spec
  std::vector<int32_t> layers = {};  // global indices of the MoE layers, strictly ascending, 0-based
  int32_t top_k = 0;
  int32_t num_experts = 0;  // the largest over the layers, zero-computation experts included; at most 65,536
  int32_t shared_columns = 0;                    // fused shared experts that ride behind the top_k ids
  bool distinct = true;                          // false: for routers that may repeat an id in a row
  int32_t num_layers = 0;                        // layers of the whole stack; 0 = last MoE layer + 1
  std::map<int32_t, std::string> excluded = {};  // MoE layers left out on purpose, with the reason
  std::string model = {};                        // free text

  bool operator==(const RouteSpecFields&) const = default;
};

class RouteSpec {
 public:
  // Fails with kInvalidArgument, naming the field, on: an empty stack name, no layers, layers not ascending
  // or negative, top_k or num_experts < 1 or > 65,536, top_k > num_experts where ids are distinct,
  // shared_columns outside [0, 65,536], num_layers below the last layer + 1, an excluded layer that is also
  // recorded or outside the stack.
  static Result<RouteSpec> create(RouteSpecFields fields);

  const RouteSpecFields& fields() const { return data_->fields; }
  std::span<const int32_t> layers() const { return data_->fields.layers; }
  int32_t num_moe_layers() const { return static_cast<int32_t>(data_->fields.layers.size()); }
  int32_t num_layers() const { return data_->fields.num_layers; }
  int32_t top_k() const { return data_->fields.top_k; }
  int32_t num_experts() const { return data_->fields.num_experts; }
  int32_t shared_columns() const { return data_->fields.shared_columns; }
  bool distinct() const { return data_->fields.distinct; }

  // 1 when num_experts <= 256, else 2. Follows num_experts, never the data.
  int32_t id_bytes() const { return data_->fields.num_experts <= 256 ? 1 : 2; }
  // Bytes of one dense row [layer, k].
  int64_t row_bytes() const { return int64_t{num_moe_layers()} * top_k() * id_bytes(); }
  // row_bytes rounded up to 16: the distance of rows in a lane or store.
  int64_t row_stride() const { return (row_bytes() + 15) / 16 * 16; }

  // Where a global layer stands in a row; kOutOfRange, naming the layers, if it is not recorded.
  Result<int32_t> column_of(int32_t layer) const;

  // The same spec for some of its layers (a pipeline stage); kOutOfRange for a layer that is not recorded.
  Result<RouteSpec> with_layers(std::vector<int32_t> layers) const;

  // XXH3_64bits over little-endian 32-bit numbers and the stack's bytes: length of stack, stack, num_layers,
  // number of layers, layers, top_k, num_experts. It travels; it never changes.
  uint64_t fingerprint() const { return data_->fingerprint; }

  // All fields.
  bool operator==(const RouteSpec& other) const {
    return data_ == other.data_ || data_->fields == other.data_->fields;
  }

 private:
  struct Data {
    RouteSpecFields fields;
    uint64_t fingerprint;
  };
  explicit RouteSpec(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

}  // namespace moetape::inline v0
