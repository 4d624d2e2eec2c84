#include "diagnose/column_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moetape::inline v0 {
namespace {

constexpr size_t kMostRows = 4096;
constexpr int64_t kFewestLists = 4;

using List = std::vector<int32_t>;

class Orders {
 public:
  explicit Orders(const Records& records)
      : records_(records), a_(static_cast<size_t>(records.a.top_k)), b_(a_), in_place_(a_) {}

  void add(const Match& match) {
    bool reordered = false;
    for (const auto& [of_b, of_a] : match.reading->columns) {
      if (records_.b.list(match.i, of_b) != records_.a.list(match.j, of_a)) continue;
      read(match, of_b, of_a);
      reordered = add_list() || reordered;
    }
    ++num_rows_;
    if (reordered) ++num_reordered_rows_;
  }

  std::optional<Cause> cause() const {
    if (num_reordered_ < kFewestLists || num_reordered_ * 4 < num_lists_) return {};
    return Cause{.kind = CauseKind::kColumnsReordered,
                 .text = fmt::format("b has the same experts in another order in {} of {} lists: {}",
                                     num_reordered_, num_lists_, rule()),
                 .num_rows = num_rows_,
                 .num_explained = num_reordered_rows_};
  }

 private:
  void read(const Match& match, int32_t of_b, int32_t of_a) {
    const auto map = match.reading->experts.find(of_b);
    for (int32_t k = 0; k < records_.a.top_k; ++k) {
      const int32_t id = records_.b.id(match.i, of_b, k);
      a_[static_cast<size_t>(k)] = records_.a.id(match.j, of_a, k);
      b_[static_cast<size_t>(k)] =
          map == match.reading->experts.end() ? id : map->second[static_cast<size_t>(id)];
    }
  }

  bool add_list() {
    ++num_lists_;
    if (std::ranges::is_sorted(b_)) ++num_ascending_;
    if (std::ranges::is_sorted(b_, std::greater())) ++num_descending_;
    if (std::ranges::is_sorted(a_)) ++num_ascending_in_a_;
    if (permutation_.empty() && a_ != b_) learn_permutation();
    if (!permutation_.empty()) {
      for (size_t k = 0; k < a_.size(); ++k) in_place_[k] = a_[permutation_[k]];
      ++num_permutable_;
      if (in_place_ == b_) ++num_permuted_;
    }
    if (a_ == b_) return false;
    ++num_reordered_;
    return true;
  }

  void learn_permutation() {
    for (const int32_t id : b_) {
      permutation_.push_back(static_cast<size_t>(std::ranges::find(a_, id) - a_.begin()));
    }
  }

  std::string rule() const {
    const auto nearly_all = [&](int64_t part, int64_t whole) { return part * 100 >= whole * 99; };
    if (nearly_all(num_ascending_, num_lists_)) return "b's ids ascend";
    if (nearly_all(num_descending_, num_lists_)) return "b's ids descend";
    if (nearly_all(num_ascending_in_a_, num_lists_)) return "a's ids ascend, b's do not";
    if (num_permuted_ * 10 >= num_permutable_ * 9) {
      return fmt::format("b's columns are columns {} of a", fmt::join(permutation_, ", "));
    }
    return "by no rule that was found";
  }

  const Records& records_;
  List a_;
  List b_;
  List in_place_;
  std::vector<size_t> permutation_ = {};
  int64_t num_rows_ = 0;
  int64_t num_reordered_rows_ = 0;
  int64_t num_lists_ = 0;
  int64_t num_reordered_ = 0;
  int64_t num_ascending_ = 0;
  int64_t num_descending_ = 0;
  int64_t num_ascending_in_a_ = 0;
  int64_t num_permutable_ = 0;
  int64_t num_permuted_ = 0;
};

}  // namespace

std::optional<Cause> find_column_order(const Records& records, std::span<const Match> matches) {
  Orders orders(records);
  const size_t step = std::max<size_t>(matches.size() / kMostRows, 1);
  for (size_t at = 0; at < matches.size(); at += step) orders.add(matches[at]);
  return orders.cause();
}

}  // namespace moetape::inline v0
