// Tickets and what they report.
#include <nanobind/stl/string.h>

#include <chrono>
#include <string>
#include <utility>

#include "args.h"
#include "module.h"
#include "moetape/recorder.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

nb::str fault_name(RowFault fault) {
  const std::string_view name = row_fault_name(fault);
  return nb::str(name.data(), name.size());
}

nb::dict refused_by_fault(const CommitReport& report) {
  nb::dict result;
  for (int i = 0; i < kNumRowFaults; ++i) {
    const int64_t count = report.num_by_fault[static_cast<size_t>(i)];
    if (count > 0) result[fault_name(static_cast<RowFault>(i))] = count;
  }
  return result;
}

std::string report_repr(const CommitReport& report) {
  std::string text = fmt::format("CommitReport(step={}, num_tokens={}, num_kept={}", report.step,
                                 report.num_tokens, report.num_kept);
  if (report.num_no_slot > 0) text += fmt::format(", num_no_slot={}", report.num_no_slot);
  if (report.num_elsewhere > 0) text += fmt::format(", num_elsewhere={}", report.num_elsewhere);
  if (report.num_out_of_range > 0) text += fmt::format(", num_out_of_range={}", report.num_out_of_range);
  if (!report.landed) text += ", landed=False";
  if (report.num_refused > 0) text += fmt::format(", refused={}", nb::repr(refused_by_fault(report)).c_str());
  return text + ")";
}

void bind_report(nb::module_& m) {
  nb::class_<Offender>(m, "Offender", "The first row of a step that was refused. A value.")
      .def_ro("layer", &Offender::layer, "Global layer; -1 where it is about none.")
      .def_ro("row", &Offender::row, "Row of the router's batch.")
      .def_ro("value", &Offender::value, "The id as it came; the slot where it was \"superseded\".")
      .def_prop_ro(
          "fault", [](const Offender& self) { return fault_name(self.fault); },
          "\"negative\", \"too_large\", \"repeated\", \"shared\" (a routed id in a shared column),\n"
          "\"superseded\" (its slot was written in this or a later step) or, on a device, \"unwritten\".")
      .def("__repr__", [](const Offender& self) {
        return fmt::format("Offender(layer={}, row={}, value={}, fault=\"{}\")", self.layer, self.row,
                           self.value, row_fault_name(self.fault));
      });
  nb::class_<CommitReport>(m, "CommitReport", "What a commit did, in tokens. A value.")
      .def_ro("step", &CommitReport::step)
      .def_ro("num_tokens", &CommitReport::num_tokens, "That the slots name.")
      .def_ro("num_kept", &CommitReport::num_kept, "Rows now in the store.")
      .def_ro("num_refused", &CommitReport::num_refused,
              "Rows that are missing because of their ids or slot.")
      .def_ro("num_no_slot", &CommitReport::num_no_slot, "Tokens with slot -1 or the pad slot.")
      .def_ro("num_elsewhere", &CommitReport::num_elsewhere, "Tokens whose rows another rank has.")
      .def_ro("num_out_of_range", &CommitReport::num_out_of_range,
              "Tokens whose slot, given by the device, the store does not have.")
      .def_ro("landed", &CommitReport::landed,
              "False while the device is still at it: only step and num_tokens are known.")
      .def_prop_ro(
          "unwritten",
          [](const CommitReport& self) {
            nb::dict result;
            for (const UnwrittenLayer& layer : self.unwritten) result[nb::int_(layer.layer)] = layer.num_rows;
            return result;
          },
          nb::sig("def unwritten(self) -> dict[int, int]"), "On a device: rows by layer that nobody wrote.")
      .def_prop_ro("refused", &refused_by_fault, nb::sig("def refused(self) -> dict[str, int]"),
                   "Refused rows by fault; empty when none.")
      .def_prop_ro(
          "first_offender",
          [](const CommitReport& self) -> nb::object {
            return self.first_offender ? nb::cast(*self.first_offender) : nb::none();
          },
          nb::sig("def first_offender(self) -> Offender | None"), "The first row that was refused.")
      .def("__repr__", &report_repr);
}

void bind_ticket(nb::module_& m) {
  nb::class_<Ticket>(
      m, "Ticket",
      "What a commit gives. On the CPU it is ready at once. Any thread; also when the recorder is gone.")
      .def_prop_ro("ready", &Ticket::ready, "Whether the rows have landed.")
      .def(
          "wait",
          [](const Ticket& self, SecondsArg timeout) {
            const std::chrono::milliseconds longest = timeout.get("timeout");
            Status status = [&] {
              nb::gil_scoped_release release;
              return self.wait(longest);
            }();
            unwrap(std::move(status));
          },
          "timeout"_a = 10.0, "Waits until the rows have landed; TimeoutError after `timeout` seconds.")
      .def_prop_ro("report", [](const Ticket& self) { return self.report(); }, "The CommitReport.");
}

}  // namespace

void bind_ticket_and_report(nb::module_& m) {
  bind_report(m);
  bind_ticket(m);
}

}  // namespace moetape::bindings
