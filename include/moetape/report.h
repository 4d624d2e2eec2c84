// Report: one HTML page that shows what a record holds and where two records disagree.
//
// The page is self-contained: it asks the network for nothing, and a policy in its head forbids it to. Names,
// sequence ids and texts of tokens may hold any bytes: they are shown as text and never run. What is not
// known is shown as missing, never as zero. Tables that grow with the data are cut to what one can read, and
// the page says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moetape/compare.h"
#include "moetape/error.h"
#include "moetape/stats.h"

namespace moetape::inline v0 {

struct ReportRecord {
  std::string name;  // of the file
  Stats stats;
  std::optional<int64_t> file_bytes = {};
  std::vector<std::pair<std::string, int64_t>> parts = {};  // bytes of each part of the file
};

struct ReportData {
  std::vector<ReportRecord> records = {};              // one or two, of one fingerprint
  std::optional<Comparison> comparison = {};           // of the two
  std::string title = {};                              // empty: the names of the records
  std::map<int32_t, std::string> token_text = {};      // of the token ids that are known
  std::map<int64_t, std::string> sequence_names = {};  // of the sequences that `comparison` numbers
};

// The page, in UTF-8; the same data give the same bytes. Any thread. kInvalidArgument for a number of records
// other than one or two, or a comparison of one; kSpecMismatch where the fingerprints differ; kWrongShape
// for tables that do not fit the spec; kOutOfMemory.
Result<std::string> render_report(const ReportData& data);

}  // namespace moetape::inline v0
