#include "moetape/report.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "args.h"
#include "module.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

constexpr const char* kRenderReportDoc =
    R"(The page of moetape.report as UTF-8, of (name, stats, bytes of the file, bytes of its parts) for each record.

token_text: token id to UTF-8, or any bytes. sequence_names: of the sequences that the comparison numbers.)";

using RecordTuple =
    std::tuple<std::string, nb::object, std::optional<int64_t>, std::vector<std::pair<std::string, int64_t>>>;

nb::bytes render(const std::vector<RecordTuple>& records, const Comparison* comparison, std::string title,
                 const std::map<int32_t, nb::bytes>& token_text,
                 std::map<int64_t, std::string> sequence_names) {
  ReportData data{.title = std::move(title), .sequence_names = std::move(sequence_names)};
  for (const auto& [name, stats, file_bytes, parts] : records) {
    data.records.push_back(
        {.name = name, .stats = nb::cast<const Stats&>(stats), .file_bytes = file_bytes, .parts = parts});
  }
  if (comparison != nullptr) data.comparison = *comparison;
  for (const auto& [token, text] : token_text) data.token_text[token] = {text.c_str(), text.size()};
  const std::string page = unwrap(long_call(kLongCallBytes, [&] { return render_report(data); }));
  return nb::bytes(page.data(), page.size());
}

}  // namespace

void bind_report_page(nb::module_& m) {
  m.def("render_report", &render, "records"_a, "comparison"_a.none(), "title"_a, "token_text"_a,
        "sequence_names"_a,
        // "None |" goes first, since make_stubs.py drops it at the end of arguments.
        nb::sig("def render_report(records: collections.abc.Sequence[tuple[str, Stats, None | int, "
                "list[tuple[str, int]]]], comparison: None | Comparison, title: str, "
                "token_text: dict[int, bytes], sequence_names: dict[int, str]) -> bytes"),
        kRenderReportDoc);
}

}  // namespace moetape::bindings
