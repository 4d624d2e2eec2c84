#include "moetape/compare.h"

namespace moetape::inline v0 {
namespace {

std::optional<double> rate(int64_t part, int64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::optional<double> Agreement::unequal_rows_rate() const { return rate(num_unequal_rows, num_rows); }
std::optional<double> Agreement::rerouted_rows_rate() const { return rate(num_rerouted_rows, num_rows); }
std::optional<double> Agreement::unequal_routers_rate() const {
  return rate(num_unequal_routers, num_routers);
}
std::optional<double> Agreement::rerouted_routers_rate() const {
  return rate(num_rerouted_routers, num_routers);
}
std::optional<double> Agreement::overlap() const { return rate(num_shared_ids, num_ids); }

Agreement& Agreement::operator+=(const Agreement& other) {
  num_rows += other.num_rows;
  num_unequal_rows += other.num_unequal_rows;
  num_rerouted_rows += other.num_rerouted_rows;
  num_routers += other.num_routers;
  num_unequal_routers += other.num_unequal_routers;
  num_rerouted_routers += other.num_rerouted_routers;
  num_ids += other.num_ids;
  num_shared_ids += other.num_shared_ids;
  return *this;
}

}  // namespace moetape::inline v0
