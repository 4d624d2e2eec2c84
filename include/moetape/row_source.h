// RowSource: rows that can be pulled in order, so that an encoder gathers and encodes in one pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "moetape/error.h"
#include "moetape/routes.h"

namespace moetape::inline v0 {

// One thread at a time. What it pulls from must live until it is drained (a store's slots must not be freed).
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual const RouteSpec& spec() const = 0;
  virtual int64_t start() const = 0;
  virtual int64_t num_rows() const = 0;
  // Writes rows [first, first + count), dense, spec().row_bytes() each, and one reason a row.
  // Missing rows are zero bytes.
  virtual Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) = 0;
  // The same rows of these layers at least, if that is less work than to pull all of them; else null. What it
  // leaves out it does not look at. Lives no longer than what this source pulls from.
  virtual Result<std::unique_ptr<RowSource>> of_layers(std::span<const int32_t> layers) const;

 protected:
  // kOutOfRange, naming both, unless rows [first, first + count) are among num_rows(); for pull().
  Status check_part(int64_t first, int64_t count) const;
};

class RoutesSource final : public RowSource {
 public:
  explicit RoutesSource(Routes routes) : routes_(std::move(routes)) {}
  const RouteSpec& spec() const override { return routes_.spec(); }
  int64_t start() const override { return routes_.start(); }
  int64_t num_rows() const override { return routes_.num_rows(); }
  Status pull(int64_t first, int64_t count, std::byte* rows, Reason* reasons) override;

 private:
  Routes routes_;
};

}  // namespace moetape::inline v0
