// Arrays in and numpy arrays out, for the files that bind to Python.
#pragma once

#include "check.h"
#include "kernels/kernels.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace samovar {

namespace nb = nanobind;

// The table of an instruction set, as Python holds it.
struct KernelTable {
  explicit KernelTable(const char* name);

  const Kernels* kernels;
};

void bind_kernels(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_runner(nb::module_& m);

// An argument that should be an array of T.  Nothing is known of it before a View is taken, so that
// a message can name the argument.
template <class T> struct Array {
  nb::handle source;
};

// The memory of an array argument: C-contiguous, of the right type and number of dimensions, or an
// error that names it.  Made and destroyed with the GIL; read without.
template <class T> class View {
public:
  View(const Array<T>& array, const char* name, int ndim = 1) {
    if (PyObject_GetBuffer(array.source.ptr(), &buffer_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      refuse(name, "a C-contiguous array of ", std::string(nb::type_name(array.source.type()).c_str()));
    }
    const std::string got = buffer_.format == nullptr ? "B" : buffer_.format;
    const std::string formats = std::is_floating_point_v<T> ? "fd" : std::is_signed_v<T> ? "bhilq" : "BHILQ";
    if (got.size() != 1 || formats.find(got) == std::string::npos || buffer_.itemsize != sizeof(T)) {
      PyBuffer_Release(&buffer_);
      refuse(name, "an array of ", "format '" + got + "'");
    }
    if (buffer_.ndim != ndim) {
      const int found = buffer_.ndim;
      PyBuffer_Release(&buffer_);
      check(false, name, ": expected ", ndim, " dimensions, got ", found);
    }
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&buffer_); }

  const T* data() const { return static_cast<const T*>(buffer_.buf); }
  int64_t shape(int i) const { return buffer_.shape[i]; }
  int64_t size() const { return buffer_.len / static_cast<int64_t>(sizeof(T)); }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size())}; }
  std::vector<T> copy() const { return {data(), data() + size()}; }

private:
  [[noreturn]] static void refuse(const char* name, const char* wanted, const std::string& got) {
    const char* kind = std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
    throw nb::type_error(
        (std::string(name) + ": expected " + wanted + kind + std::to_string(8 * sizeof(T)) + ", got " + got)
            .c_str());
  }

  Py_buffer buffer_;
};

template <class T> using NumpyArray = nb::ndarray<nb::numpy, T>;

// A new array that owns the values.
template <class T> NumpyArray<T> make_array(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return NumpyArray<T>(kept->data(), shape, owner);
}

} // namespace samovar

namespace nanobind::detail {

template <class T> struct type_caster<samovar::Array<T>> {
  static constexpr auto kind() {
    if constexpr (std::is_floating_point_v<T>)
      return const_name("float");
    else if constexpr (std::is_signed_v<T>)
      return const_name("int");
    else
      return const_name("uint");
  }
  NB_TYPE_CASTER(samovar::Array<T>, const_name("numpy.typing.NDArray[numpy.") + kind() +
                                        const_name<8 * sizeof(T)>() + const_name("] | array.array[") +
                                        const_name<std::is_floating_point_v<T>>("float", "int") +
                                        const_name("] | memoryview"))

  bool from_python(handle src, uint32_t, cleanup_list*) noexcept {
    value.source = src;
    return true;
  }
};

} // namespace nanobind::detail
