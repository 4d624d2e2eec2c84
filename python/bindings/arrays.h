// Arrays at the Python border: anything with the buffer protocol or DLPack in CPU memory, of any integer type
// and any strides, viewed without a copy; and our memory as NumPy arrays, without a copy either.
//
// Everything here is created and destroyed with the GIL. An array must not be resized while a call uses it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "args.h"
#include "moetape/array.h"

namespace moetape::bindings {

// In the stubs NumPy's ArrayLike: arrays, tensors that have __array__, and nested sequences of int.
struct ArrayArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("numpy.typing.ArrayLike");
};

struct OptionalArrayArg : Arg {
  static constexpr auto kStubName = nb::detail::const_name("numpy.typing.ArrayLike | None");
};

// Whose memory an array may be in.
enum class Where : uint8_t { kCpu, kCpuOrCuda };

// An integer array that lives as long as this does. Bool, floats, foreign byte order: WrongTypeError; memory
// that it may not be in: UnsupportedError naming the device; more than 4 dimensions: WrongShapeError. Nothing
// waits for a device.
class Array {
 public:
  static constexpr int kMaxDims = 4;

  Array(nb::handle object, const char* name, Where where = Where::kCpu);

  bool on_device() const { return on_device_; }

  const void* data() const { return data_; }
  void* mutable_data() const { return read_only_ ? nullptr : data_; }
  IntType type() const { return type_; }
  int num_dims() const { return num_dims_; }
  int64_t shape(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim]; }  // in elements
  int64_t size() const;
  int64_t size_bytes() const { return size() * int_type_bytes(type_); }
  bool contiguous() const;  // in C order
  std::string shape_text() const;
  const char* name() const { return name_; }

  // WrongShapeError unless it has this many dimensions, which `axes` names: "[rows, columns]".
  void require_dims(int num_dims, const char* axes) const;

  // Element `index` of an array of at most one dimension; 2^63 - 1 stands for all that is more.
  int64_t element(int64_t index) const;

 private:
  struct BufferView {
    ~BufferView() {
      if (view.obj != nullptr) PyBuffer_Release(&view);
    }
    Py_buffer view = {};
  };

  void view_buffer(nb::handle object);
  void view_sequence(nb::handle sequence);
  bool view_exchange_api(nb::handle object);
  void view_dlpack(nb::handle object);
  void view_tensor(const nb::dlpack::dltensor& tensor, nb::handle object);
  void set_num_dims(int num_dims);
  [[noreturn]] void raise_no_integers(nb::handle object) const;

  void require_place(int32_t device_type, int32_t device_id);

  const char* name_;
  Where where_;
  bool on_device_ = false;
  void* data_ = nullptr;
  IntType type_ = IntType::kInt64;
  bool read_only_ = true;
  int num_dims_ = 0;
  int64_t shape_[kMaxDims] = {};
  int64_t strides_[kMaxDims] = {};
  nb::object owner_;
  nb::ndarray<nb::ro> imported_;
  BufferView buffer_;
};

IdsView ids_view(const Array& ids);  // WrongShapeError unless [rows, columns]

// The array itself where it is contiguous in C order, else NumPy's copy that is.
nb::object in_c_order(nb::handle object, const char* name);

// WrongShapeError unless `found` items came for `expected` rows.
void require_length(const char* name, int64_t expected, size_t found);

// One-dimensional integers as Int (int32_t, int64_t): the array itself where it is that already, else
// a checked copy; OutOfRangeError names the first that does not fit.
template <class Int>
class Integers {
 public:
  Integers(nb::handle object, const char* name);
  std::span<const Int> span() const { return span_; }

 private:
  Array array_;
  std::vector<Int> copy_;
  std::span<const Int> span_;
};

// A NumPy array over memory that `owner` keeps alive.
enum class Access : uint8_t { kReadOnly, kWritable };
nb::object numpy_view(const void* data, IntType type, std::initializer_list<int64_t> shape,
                      const std::shared_ptr<const void>& owner, Access access);

// One byte a truth value, 0 or 1: of a one-dimensional array or list of bool or int.
class Flags {
 public:
  Flags(nb::handle object, const char* name);
  std::span<const uint8_t> span() const {
    return {static_cast<const uint8_t*>(array_.data()), static_cast<size_t>(array_.shape(0))};
  }

 private:
  Array array_;
};

// A NumPy bool array of this many elements, and where they stand.
nb::object new_bool_array(int64_t size, bool** data);

// What names an integer type: "int64", a NumPy dtype or scalar type, a torch dtype.
IntType int_type_from(nb::handle dtype, const char* name);

}  // namespace moetape::bindings
