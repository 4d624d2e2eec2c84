// Arguments that the functions of wire share.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "args.h"
#include "arrays.h"
#include "moetape/wire.h"

namespace moetape::bindings {

// str, bytes or bytearray.
struct TextArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("str | bytes | bytearray");
};

// The characters or bytes of a TextArg, for as long as this lives; WrongTypeError for another object.
class Text {
 public:
  Text(nb::handle object, const char* name);
  static bool is_text(nb::handle object);

  std::string_view view() const { return view_; }
  int64_t size() const { return static_cast<int64_t>(view_.size()); }

 private:
  std::string_view view_;
  std::optional<Array> bytes_;
};

// The optional arguments of decode, in its order.
struct DecodeArgs {
  OptionalIntArg start;
  OptionalIntArg rows;
  OptionalIntArg version;
  AnyArg dtype;
  IntArg known_from;
  IntArg surplus_rows;

  DecodeOptions options() const;
};

std::optional<IntType> optional_type(AnyArg dtype);

}  // namespace moetape::bindings
