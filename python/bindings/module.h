// What each binding file adds to the module _moetape. Later ones use the classes of earlier ones.
#pragma once

#include <nanobind/nanobind.h>

namespace moetape::bindings {

void bind_errors(nanobind::module_& m);
void bind_spec(nanobind::module_& m);
void bind_routes(nanobind::module_& m);
void bind_layout(nanobind::module_& m);
void bind_store(nanobind::module_& m);
void bind_ticket_and_report(nanobind::module_& m);  // by bind_recorder, and so is
void bind_layer_buffer(nanobind::module_& m);
void bind_recorder(nanobind::module_& m);
void bind_wire(nanobind::module_& m);
void bind_output_file(nanobind::module_& m);
void bind_tape(nanobind::module_& m);
void bind_answer(nanobind::module_& m);
void bind_spans(nanobind::module_& m);
void bind_row_ids(nanobind::module_& m);
void bind_pipeline(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_compare(nanobind::module_& m);
void bind_stats(nanobind::module_& m);
void bind_diagnose(nanobind::module_& m);
void bind_report_page(nanobind::module_& m);

}  // namespace moetape::bindings
