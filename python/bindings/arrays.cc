#include "arrays.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

namespace moetape::bindings {
namespace {

// The part of DLPack's exchange table (dlpack.h 1.3) that is used here. Libraries that have it put a capsule
// on the array's type; it costs a tenth of calling __dlpack__.
constexpr const char* kExchangeApiName = "dlpack_exchange_api";
struct ExchangeApi {
  struct Header {
    uint32_t major;
    uint32_t minor;
    Header* previous;
  } header;
  void* allocator;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);
  void* current_stream;
};

// DLPack's numbers of devices.
constexpr int32_t kCpu = 1;
constexpr int32_t kCuda = 2;
constexpr int32_t kCudaHost = 3;
constexpr int32_t kRocmHost = 11;
constexpr int32_t kCudaManaged = 13;

std::string device_name(int32_t type, int32_t id) {
  switch (type) {
    case 2:
      return fmt::format("cuda:{}", id);
    case 8:
      return fmt::format("metal:{}", id);
    case 10:
      return fmt::format("rocm:{}", id);
    case 13:
      return fmt::format("managed memory of cuda:{}", id);
    default:
      return fmt::format("DLPack device {}:{}", type, id);
  }
}

std::optional<IntType> int_type(bool is_signed, int64_t bytes) {
  switch (bytes) {
    case 1:
      return is_signed ? IntType::kInt8 : IntType::kUint8;
    case 2:
      return is_signed ? IntType::kInt16 : IntType::kUint16;
    case 4:
      return is_signed ? IntType::kInt32 : IntType::kUint32;
    case 8:
      return is_signed ? IntType::kInt64 : IntType::kUint64;
    default:
      return std::nullopt;
  }
}

// Of the struct module's formats; nothing for what is no native integer.
std::optional<IntType> int_type_from_format(const char* format, int64_t item_bytes) {
  if (format == nullptr) return IntType::kUint8;
  std::string_view text = format;
  const bool foreign = text.starts_with('>') || text.starts_with('!');
  if (foreign && item_bytes > 1) return std::nullopt;
  if (foreign || text.starts_with('@') || text.starts_with('=') || text.starts_with('<'))
    text.remove_prefix(1);
  if (text.size() != 1) return std::nullopt;
  if (std::string_view("bhilqn").find(text[0]) != text.npos) return int_type(true, item_bytes);
  if (std::string_view("BHILQN").find(text[0]) != text.npos) return int_type(false, item_bytes);
  return std::nullopt;
}

std::string element_type_name(nb::handle object) {
  if (nb::hasattr(object, "dtype")) return nb::str(nb::object(object.attr("dtype"))).c_str();
  return python_type_name(object);
}

nb::module_ numpy() { return nb::module_::import_("numpy"); }

nb::object truth_bytes(nb::handle object, const char* name) {
  nb::object array;
  try {
    array = numpy().attr("asarray")(object);
  } catch (nb::python_error&) {
    raise_wrong_type(name, "an array of bool", object);
  }
  const std::string kind = nb::str(nb::object(array.attr("dtype").attr("kind"))).c_str();
  const bool empty = nb::cast<int64_t>(array.attr("size")) == 0;
  if (kind != "b" && kind != "i" && kind != "u" && !empty) {
    raise(ErrorCode::kWrongType, "{}: expected an array of bool, got {}", name, element_type_name(array));
  }
  return numpy().attr("ascontiguousarray")(array.attr("astype")("bool")).attr("view")("uint8");
}

// The capsule of an array on a device whose producer neither waits nor makes another stream wait: whoever
// hands it on orders the work. Nothing where it gives none.
nb::object without_waiting(nb::handle object) {
  using namespace nb::literals;
  constexpr int kNoSynchronization = -1;
  const auto ask = [&](auto... version) -> nb::object {
    try {
      return object.attr("__dlpack__")("stream"_a = kNoSynchronization, version...);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) throw;
      return {};
    }
  };
  nb::object capsule = ask();
  if (!capsule.is_valid()) capsule = ask("max_version"_a = nb::make_tuple(1, 0));  // read-only ones
  return capsule;
}

}  // namespace

Array::Array(nb::handle object, const char* name, Where where) : name_(name), where_(where) {
  // Its buffer holds what is masked too.
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) == "MaskedArray") {
    raise(ErrorCode::kWrongType, "{}: expected an array of integers, got a masked array", name_);
  }
  if (PyObject_CheckBuffer(object.ptr())) {
    view_buffer(object);
  } else if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr())) {
    view_sequence(object);
  } else if (!view_exchange_api(object)) {
    view_dlpack(object);
  }
  // What tracing tools put in the place of a tensor has none.
  if (data_ == nullptr && size() > 0) raise_wrong_type(name_, "an array with data", object);
}

void Array::require_place(int32_t device_type, int32_t device_id) {
  if (device_type == kCpu || device_type == kCudaHost || device_type == kRocmHost) return;
  on_device_ = where_ == Where::kCpuOrCuda && (device_type == kCuda || device_type == kCudaManaged);
  if (on_device_) return;
  raise(ErrorCode::kUnsupported, "{}: expected an array in {} memory, got one on {}", name_,
        where_ == Where::kCpu ? "CPU" : "CPU or CUDA", device_name(device_type, device_id));
}

void Array::raise_no_integers(nb::handle object) const {
  if (nb::hasattr(object, "is_meta") &&
      (nb::cast<bool>(object.attr("is_meta")) || nb::cast<bool>(object.attr("is_sparse")))) {
    const bool is_meta = nb::cast<bool>(object.attr("is_meta"));
    raise(ErrorCode::kUnsupported, "{}: expected a dense array in CPU memory, got a {} tensor", name_,
          is_meta ? "meta" : "sparse");
  }
  raise(ErrorCode::kWrongType, "{}: expected an array of integers, got {}", name_, element_type_name(object));
}

void Array::set_num_dims(int num_dims) {
  if (num_dims > kMaxDims) {
    raise(ErrorCode::kWrongShape, "{}: expected at most {} dimensions, got {}", name_, kMaxDims, num_dims);
  }
  num_dims_ = num_dims;
}

void Array::view_buffer(nb::handle object) {
  Py_buffer& view = buffer_.view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    raise_no_integers(object);
  }
  const std::optional<IntType> type = int_type_from_format(view.format, view.itemsize);
  if (!type) raise_no_integers(object);
  set_num_dims(view.ndim);
  bool regular = reinterpret_cast<uintptr_t>(view.buf) % static_cast<size_t>(view.itemsize) == 0;
  for (int i = 0; i < num_dims_; ++i) regular &= view.strides[i] % view.itemsize == 0;
  if (!regular) {
    // Fields of records and odd addresses, which typed loads must not meet.
    const nb::object copy = numpy().attr("require")(object, nb::none(), nb::make_tuple("C", "A"));
    PyBuffer_Release(&view);
    view_buffer(copy);
    read_only_ = true;
    return;
  }
  data_ = view.buf;
  type_ = *type;
  read_only_ = view.readonly != 0;
  for (int i = 0; i < num_dims_; ++i) {
    shape_[i] = view.shape[i];
    strides_[i] = view.strides[i] / view.itemsize;
  }
}

void Array::view_sequence(nb::handle sequence) {
  nb::object array;
  try {
    array = numpy().attr("asarray")(sequence);
    // NumPy makes floats of empty lists.
    if (nb::cast<int64_t>(array.attr("size")) == 0) array = array.attr("astype")("int64");
  } catch (nb::python_error&) {
    raise(ErrorCode::kWrongShape, "{}: expected integers in a regular shape, got an uneven {}", name_,
          python_type_name(sequence));
  }
  view_buffer(array);
  read_only_ = true;
}

bool Array::view_exchange_api(nb::handle object) {
  static PyObject* const attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(object.type().ptr(), attribute));
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), kExchangeApiName)) {
    PyErr_Clear();
    return false;
  }
  const auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeApiName));
  if (api->header.major != 1 || api->tensor_from_object == nullptr) return false;
  nb::dlpack::dltensor tensor;
  if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    raise_no_integers(object);
  }
  view_tensor(tensor, object);
  owner_ = nb::borrow(object);
  read_only_ = false;
  return true;
}

void Array::view_dlpack(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__"))
    raise_no_integers(object);
  std::pair<int32_t, int32_t> device;
  // Asked first: the import of another device's array fails without saying so.
  if (!nb::try_cast(nb::object(object.attr("__dlpack_device__")()), device)) raise_no_integers(object);
  require_place(device.first, device.second);
  const nb::object source = on_device_ ? without_waiting(object) : nb::borrow(object);
  if (!source.is_valid() || !nb::try_cast(source, imported_, false)) raise_no_integers(object);
  nb::dlpack::dltensor tensor;
  tensor.data = const_cast<void*>(imported_.data());
  tensor.device = {device.first, device.second};
  tensor.ndim = static_cast<int32_t>(imported_.ndim());
  tensor.dtype = imported_.dtype();
  tensor.shape = const_cast<int64_t*>(imported_.shape_ptr());
  tensor.strides = const_cast<int64_t*>(imported_.stride_ptr());
  view_tensor(tensor, object);
}

void Array::view_tensor(const nb::dlpack::dltensor& tensor, nb::handle object) {
  require_place(tensor.device.device_type, tensor.device.device_id);
  const auto code = static_cast<nb::dlpack::dtype_code>(tensor.dtype.code);
  const bool is_signed = code == nb::dlpack::dtype_code::Int;
  const bool is_integer = is_signed || code == nb::dlpack::dtype_code::UInt;
  const std::optional<IntType> type = int_type(is_signed, tensor.dtype.bits / 8);
  if (!is_integer || tensor.dtype.lanes != 1 || !type) raise_no_integers(object);
  set_num_dims(tensor.ndim);
  data_ = tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  type_ = *type;
  int64_t dense_stride = 1;
  for (int i = num_dims_ - 1; i >= 0; --i) {
    shape_[i] = tensor.shape[i];
    strides_[i] = tensor.strides != nullptr ? tensor.strides[i] : dense_stride;
    dense_stride *= tensor.shape[i];
  }
}

int64_t Array::size() const {
  int64_t size = 1;
  for (int i = 0; i < num_dims_; ++i) size *= shape_[i];
  return size;
}

bool Array::contiguous() const {
  int64_t dense_stride = 1;
  for (int i = num_dims_ - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != dense_stride) return size() == 0;
    dense_stride *= shape_[i];
  }
  return true;
}

std::string Array::shape_text() const {
  return fmt::format("[{}]", fmt::join(std::span(shape_, static_cast<size_t>(num_dims_)), ", "));
}

void Array::require_dims(int num_dims, const char* axes) const {
  if (num_dims_ == num_dims) return;
  raise(ErrorCode::kWrongShape, "{}: expected {}, got shape {}", name_, axes, shape_text());
}

int64_t Array::element(int64_t index) const {
  const int64_t at = num_dims_ == 0 ? 0 : index * strides_[0];
  switch (type_) {
    case IntType::kInt8:
      return static_cast<const int8_t*>(data_)[at];
    case IntType::kUint8:
      return static_cast<const uint8_t*>(data_)[at];
    case IntType::kInt16:
      return static_cast<const int16_t*>(data_)[at];
    case IntType::kUint16:
      return static_cast<const uint16_t*>(data_)[at];
    case IntType::kInt32:
      return static_cast<const int32_t*>(data_)[at];
    case IntType::kUint32:
      return static_cast<const uint32_t*>(data_)[at];
    case IntType::kInt64:
      return static_cast<const int64_t*>(data_)[at];
    case IntType::kUint64:
      break;
  }
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(static_cast<const uint64_t*>(data_)[at], kLargest));
}

IdsView ids_view(const Array& ids) {
  ids.require_dims(2, "[rows, columns]");
  return {ids.data(), ids.type(), ids.shape(0), ids.shape(1), ids.stride(0), ids.stride(1)};
}

nb::object in_c_order(nb::handle object, const char* name) {
  if (const Array array(object, name); array.contiguous()) return nb::borrow(object);
  return numpy().attr("ascontiguousarray")(object);
}

void require_length(const char* name, int64_t expected, size_t found) {
  if (static_cast<size_t>(expected) == found) return;
  raise(ErrorCode::kWrongShape, "{}: expected {}, one per row, got {}", name, expected, found);
}

template <class Int>
Integers<Int>::Integers(nb::handle object, const char* name) : array_(object, name) {
  array_.require_dims(1, "one dimension");
  const auto size = static_cast<size_t>(array_.shape(0));
  const bool as_is = int_type_bytes(array_.type()) == sizeof(Int) &&
                     int_type_signed(array_.type()) == std::is_signed_v<Int> && array_.contiguous();
  if (as_is) {
    span_ = {static_cast<const Int*>(array_.data()), size};
    return;
  }
  copy_.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const int64_t value = array_.element(static_cast<int64_t>(i));
    if (!std::in_range<Int>(value)) {
      raise(ErrorCode::kOutOfRange, "{}[{}]: expected {} to {}, got {}", name, i,
            std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max(), value);
    }
    copy_[i] = static_cast<Int>(value);
  }
  span_ = copy_;
}

template class Integers<int32_t>;
template class Integers<int64_t>;

Flags::Flags(nb::handle object, const char* name) : array_(truth_bytes(object, name), name) {
  array_.require_dims(1, "one dimension");
}

nb::object numpy_view(const void* data, IntType type, std::initializer_list<int64_t> shape,
                      const std::shared_ptr<const void>& owner, Access access) {
  static const std::byte nothing{};
  using Owner = std::shared_ptr<const void>;
  const nb::capsule capsule(new Owner(owner),
                            [](void* pointer) noexcept { delete static_cast<Owner*>(pointer); });
  size_t sizes[Array::kMaxDims] = {};
  std::copy(shape.begin(), shape.end(), sizes);
  const auto code = int_type_signed(type) ? nb::dlpack::dtype_code::Int : nb::dlpack::dtype_code::UInt;
  const nb::dlpack::dtype dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(int_type_bytes(type) * 8),
                                   1};
  void* pointer = const_cast<void*>(data != nullptr ? data : &nothing);
  if (access == Access::kReadOnly) {
    return nb::cast(nb::ndarray<nb::numpy, nb::ro>(pointer, shape.size(), sizes, capsule, nullptr, dtype));
  }
  return nb::cast(nb::ndarray<nb::numpy>(pointer, shape.size(), sizes, capsule, nullptr, dtype));
}

nb::object new_bool_array(int64_t size, bool** data) {
  nb::object array = numpy().attr("empty")(size, "bool");
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_WRITABLE) != 0) throw nb::python_error();
  *data = static_cast<bool*>(view.buf);
  PyBuffer_Release(&view);
  return array;
}

IntType int_type_from(nb::handle dtype, const char* name) {
  nb::object named = nb::borrow(dtype);
  for (const char* attribute : {"name", "__name__"}) {
    if (!nb::hasattr(dtype, attribute)) continue;
    named = dtype.attr(attribute);
    break;
  }
  const std::string text = nb::str(named).c_str();
  const size_t dot = text.rfind('.');
  const std::string_view last = std::string_view(text).substr(dot == text.npos ? 0 : dot + 1);
  for (int i = 0; i <= static_cast<int>(IntType::kUint64); ++i) {
    if (int_type_name(static_cast<IntType>(i)) == last) return static_cast<IntType>(i);
  }
  raise(ErrorCode::kWrongType, "{}: expected an integer type such as \"int64\", got {}", name, text);
}

}  // namespace moetape::bindings
