// Arguments as they came from Python. Each names itself in the error when it does not fit, so that wrong use
// is a moetape.Error and never nanobind's list of overloads. All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "errors.h"

namespace moetape::bindings {

std::string python_type_name(nb::handle object);  // "NoneType"

[[noreturn]] void raise_wrong_type(const char* name, std::string_view expected, nb::handle found);

// Any Python object; the kinds say what it is taken for, and kStubName how it stands in the stubs.
struct Arg {
  nb::handle object;
};

struct AnyArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("object");
};

// An int, or what has __index__; bool is refused.
struct IntArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("int");
  int64_t get(const char* name) const;
  // Within [first, last], else OutOfRangeError.
  int64_t get(const char* name, int64_t first, int64_t last) const;
  template <class Int>
  Int as(const char* name) const {
    return static_cast<Int>(get(name, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max()));
  }
};

struct OptionalIntArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("int | None");
  std::optional<int64_t> get(const char* name) const;
  // 0 when None; a limit itself is at least 1 (InvalidArgumentError).
  int64_t limit(const char* name) const;
};

struct SecondsArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("float");
  // InvalidArgumentError unless 0 or more; more than a year is a year.
  std::chrono::milliseconds get(const char* name) const;
};

struct BoolArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("bool");
  bool get(const char* name) const;
};

// Valid as long as the Python string is.
struct StrArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("str");
  std::string_view get(const char* name) const;
};

struct PathArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("str | os.PathLike[str]");
  std::string get(const char* name) const;
};

struct OptionalStrArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("str | None");
  std::optional<std::string_view> get(const char* name) const;
};

struct OptionalDictArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("dict[int, str] | None");
};

// An instance of the bound class T.
template <class T>
struct ObjectArg : Arg {
  static constexpr auto kStubName = nb::detail::make_caster<T>::Name;
  T& get(const char* name) const {
    T* pointer = get_if();
    if (pointer == nullptr) raise_wrong_type(name, class_name(), object);
    return *pointer;
  }
  T* get_if() const {
    T* pointer = nullptr;
    if (object.is_none() || !nb::try_cast(object, pointer, false)) return nullptr;
    return pointer;
  }
  static std::string class_name() { return nb::cast<std::string>(nb::type<T>().attr("__name__")); }
};

// The same, or None: null.
template <class T>
struct OptionalObjectArg : Arg {
  static constexpr auto kStubName = nb::detail::make_caster<T>::Name + nb::detail::const_name(" | None");
  T* get(const char* name) const { return object.is_none() ? nullptr : &ObjectArg<T>{{object}}.get(name); }
};

// Work of this size is done without the GIL. Below it, releasing costs more than it gives.
inline constexpr int64_t kLongCallBytes = int64_t{1} << 20;

// count items of so many bytes; what is too much for 64 bits is the most they hold.
inline int64_t work_bytes(int64_t count, int64_t bytes) {
  int64_t product = 0;
  return __builtin_mul_overflow(count, bytes, &product) ? std::numeric_limits<int64_t>::max() : product;
}

template <class Function>
auto long_call(int64_t work, Function&& function) {
  if (work < kLongCallBytes) return function();
  nb::gil_scoped_release release;
  return function();
}

// Marks something that one thread at a time may use while the GIL is released; null marks nothing. The GIL
// guards the flag.
class Busy {
 public:
  Busy(bool* flag, std::string_view what) : flag_(flag) {
    if (flag_ == nullptr) return;
    if (*flag_) {
      raise(ErrorCode::kInvalidArgument,
            "{}: expected one call at a time, got a second beside another thread's", what);
    }
    *flag_ = true;
  }
  ~Busy() {
    if (flag_ != nullptr) *flag_ = false;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool* flag_;
};

}  // namespace moetape::bindings

namespace nanobind::detail {

template <class T>
  requires std::derived_from<T, moetape::bindings::Arg>
struct type_caster<T> {
  using Value = T;
  static constexpr auto Name = T::kStubName;
  template <class U>
  using Cast = movable_cast_t<U>;
  template <class U>
  static constexpr bool can_cast() {
    return true;
  }
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    value.object = source;
    return true;
  }
  explicit operator T*() { return &value; }
  explicit operator T&() { return value; }
  explicit operator T&&() { return static_cast<T&&>(value); }
  T value;
};

// None reaches the function, which then says what it expected.
template <class T>
  requires std::derived_from<T, moetape::bindings::Arg>
struct has_arg_defaults<T> : std::true_type {};

}  // namespace nanobind::detail
