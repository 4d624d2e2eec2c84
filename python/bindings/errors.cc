#include "errors.h"

#include <array>
#include <string>

#include "module.h"

namespace moetape::bindings {
namespace {

// Borrowed from the module, which nothing ever unloads.
std::array<PyObject*, kNumErrorCodes> exception_types;

nb::object new_exception(nb::module_& m, const std::string& name, const std::string& doc, nb::handle bases) {
  const std::string full_name = "moetape." + name;
  nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc(full_name.c_str(), doc.c_str(), bases.ptr(), nullptr));
  if (!type.is_valid()) throw nb::python_error();
  m.attr(name.c_str()) = type;
  return type;
}

}  // namespace

void raise(const Error& error) {
  PyErr_SetString(exception_types[static_cast<size_t>(error.code)], error.message.c_str());
  throw nb::python_error();
}

Error error_of(const nb::python_error& exception) {
  Error error = {ErrorCode::kInvalidArgument, nb::str(exception.value()).c_str()};
  for (const ErrorCodeInfo& info : error_codes()) {
    if (exception.matches(exception_types[static_cast<size_t>(info.code)])) error.code = info.code;
  }
  return error;
}

void bind_errors(nb::module_& m) {
  nb::object base = new_exception(
      m, "Error", "Base of all of moetape's errors. `code` names the kind, such as \"out_of_range\".",
      nb::handle(PyExc_Exception));
  base.attr("code") = "error";
  const nb::module_ builtins = nb::module_::import_("builtins");
  for (const ErrorCodeInfo& info : error_codes()) {
    const std::string builtin(info.python_builtin);
    const std::string also = builtin.empty() ? "" : fmt::format(", and Python's {}", builtin);
    nb::object bases = builtin.empty() ? nb::object(nb::make_tuple(base))
                                       : nb::object(nb::make_tuple(base, builtins.attr(builtin.c_str())));
    nb::object type = new_exception(m, std::string(info.python_name),
                                    fmt::format("Error of kind \"{}\"{}.", info.name, also), bases);
    type.attr("code") = nb::str(info.name.data(), info.name.size());
    exception_types[static_cast<size_t>(info.code)] = type.ptr();
  }
}

}  // namespace moetape::bindings
