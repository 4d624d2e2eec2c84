// The numbers of a page, as the JSON that its scripts read (page/facts.js).
#pragma once

#include <string>

#include "moetape/report.h"

namespace moetape::inline v0::report {

// Of data that render_report has checked.
std::string page_json(const ReportData& data, const std::string& title);

}  // namespace moetape::inline v0::report
