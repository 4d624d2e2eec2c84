#include "records.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "json.h"
#include "refusal.h"

namespace moetape::cli {
namespace {

using NumberById = std::map<std::string, int64_t>;

// Nothing where a sequence has no id, or one that another has.
std::optional<NumberById> numbers_by_id(const Tape& tape) {
  NumberById numbers;
  for (int64_t sequence = 0; sequence < tape.num_sequences(); ++sequence) {
    const std::string id = need(tape.entry(sequence)).id;
    if (id.empty() || !numbers.emplace(id, sequence).second) return {};
  }
  return numbers;
}

void pair_by_id(const NumberById& a, const NumberById& b, Pairing& pairing) {
  for (const auto& [id, number] : a) {
    const auto found = b.find(id);
    if (found == b.end()) {
      pairing.only_in_a.push_back(number);
    } else {
      pairing.pairs.emplace_back(number, found->second);
    }
  }
  for (const auto& [id, number] : b) {
    if (!a.contains(id)) pairing.only_in_b.push_back(number);
  }
  std::sort(pairing.pairs.begin(), pairing.pairs.end());
  std::sort(pairing.only_in_a.begin(), pairing.only_in_a.end());
  std::sort(pairing.only_in_b.begin(), pairing.only_in_b.end());
}

void pair_by_number(int64_t in_a, int64_t in_b, Pairing& pairing) {
  const int64_t in_both = std::min(in_a, in_b);
  for (int64_t number = 0; number < in_both; ++number) pairing.pairs.emplace_back(number, number);
  for (int64_t number = in_both; number < in_a; ++number) pairing.only_in_a.push_back(number);
  for (int64_t number = in_both; number < in_b; ++number) pairing.only_in_b.push_back(number);
}

}  // namespace

Stats stats_of(const Tape& tape, const Console& console) {
  Stats stats = need(Stats::create(tape.spec()));
  Progress progress(console, "read", tape.num_sequences());
  for (int64_t sequence = 0; sequence < tape.num_sequences(); ++sequence) {
    need(stats.add(need(tape.read(sequence))));
    progress.advance();
  }
  return stats;
}

Pairing pair_tapes(const Tape& a, const Tape& b) {
  Pairing pairing;
  const auto in_a = numbers_by_id(a);
  const auto in_b = in_a ? numbers_by_id(b) : std::nullopt;
  pairing.by_id = in_a && in_b;
  if (pairing.by_id) {
    pair_by_id(*in_a, *in_b, pairing);
  } else {
    pair_by_number(a.num_sequences(), b.num_sequences(), pairing);
  }
  if (pairing.pairs.empty()) {
    refuse("{} and {}: expected a sequence that stands in both, paired by {}, got none", a.name(), b.name(),
           pairing.by_id ? "id" : "number");
  }
  return pairing;
}

std::string place_of(const Tape& tape, int64_t sequence) {
  const std::string id = need(tape.entry(sequence)).id;
  return id.empty() ? fmt::format("sequence {}", sequence) : fmt::format("sequence {} ({})", sequence, id);
}

Comparison compare_tapes(const Tape& a, const Tape& b, const Pairing& pairing, const CompareOptions& options,
                         const Console& console) {
  Comparison comparison = need(Comparison::create(a.spec(), options));
  Progress progress(console, "compare", static_cast<int64_t>(pairing.pairs.size()));
  for (const auto& [in_a, in_b] : pairing.pairs) {
    need(comparison.add(need(a.read(in_a)), need(b.read(in_b)), in_a),
         fmt::format("{} and {}: {}", a.name(), b.name(), place_of(a, in_a)));
    progress.advance();
  }
  return comparison;
}

}  // namespace moetape::cli
