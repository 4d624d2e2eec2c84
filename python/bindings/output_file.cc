#include "moetape/output_file.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <string>

#include "args.h"
#include "module.h"

namespace moetape::bindings {
namespace {

using namespace nb::literals;

struct OutputHandle {
  std::optional<OutputFile> file;  // none: given up
};

OutputFile& open_file(OutputHandle& self) {
  if (!self.file) raise(ErrorCode::kClosed, "OutputFile: expected an open one, got one that was given up");
  return *self.file;
}

std::unique_ptr<OutputHandle> new_file(PathArg path, BoolArg overwrite) {
  return std::make_unique<OutputHandle>(
      unwrap(OutputFile::create(path.get("path"), overwrite.get("overwrite"))));
}

void finish(OutputHandle& self) {
  OutputFile& file = open_file(self);
  unwrap(long_call(kLongCallBytes, [&] { return file.finish(); }));
}

}  // namespace

void bind_output_file(nb::module_& m) {
  nb::class_<OutputHandle>(
      m, "OutputFile", "A file that appears whole or not at all; what moetape._files.whole_file stands on.")
      .def(nb::new_(&new_file), "path"_a, "overwrite"_a = false)
      .def_prop_ro(
          "hidden_path", [](OutputHandle& self) { return open_file(self).hidden_path(); },
          "Where the bytes go.")
      .def("finish", &finish, "Gives the file its name.")
      .def("give_up", [](OutputHandle& self) { self.file.reset(); }, "Leaves nothing of what is unfinished.");
}

}  // namespace moetape::bindings
