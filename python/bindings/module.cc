#include "module.h"

#include <string_view>

namespace nb = nanobind;

namespace {

// Classes stand under the names by which users reach them: in messages, in pickles.
void name_public_modules(nb::module_& m) {
  for (auto [key, value] : nb::borrow<nb::dict>(m.attr("__dict__"))) {
    if (!PyType_Check(value.ptr())) continue;
    const std::string_view name = nb::cast<const char*>(key);
    const bool is_layout = name == "Layout" || name == "IdMap";
    const bool is_wire =
        name == "Alignment" || name == "Choice" || name == "RouteStream" || name == "Sniffed";
    const bool is_replay = name == "Plan" || name == "RowIds";
    value.attr("__module__") = is_layout   ? "moetape.layout"
                               : is_wire   ? "moetape.wire"
                               : is_replay ? "moetape.replay"
                                           : "moetape";
  }
}

}  // namespace

NB_MODULE(_moetape, m) {
  m.doc() = "The core of moetape. Import the package moetape instead.";
  // Objects alive at the interpreter's end are the user's matter, and a library does not print.
  nb::set_leak_warnings(false);
  moetape::bindings::bind_errors(m);
  moetape::bindings::bind_spec(m);
  moetape::bindings::bind_routes(m);
  moetape::bindings::bind_layout(m);
  moetape::bindings::bind_store(m);
  moetape::bindings::bind_recorder(m);
  moetape::bindings::bind_wire(m);
  moetape::bindings::bind_output_file(m);
  moetape::bindings::bind_tape(m);
  moetape::bindings::bind_answer(m);
  moetape::bindings::bind_spans(m);
  moetape::bindings::bind_row_ids(m);
  moetape::bindings::bind_pipeline(m);
  moetape::bindings::bind_replay(m);
  moetape::bindings::bind_compare(m);
  moetape::bindings::bind_stats(m);
  moetape::bindings::bind_diagnose(m);
  moetape::bindings::bind_report_page(m);
  name_public_modules(m);
}
