// The limits of the machine in Python.
#include "bind.h"

#include "limits.h"
#include "pool.h"
#include "weight.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>

namespace samovar {
namespace {

using namespace nb::literals;

RowType row_type(std::string_view name) {
  for (const RowType type : {RowType::F32, RowType::Q8, RowType::BF16})
    if (name == row_type_name(type))
      return type;
  check(false, "type: expected f32, q8 or bf16, got ", name);
  return RowType::F32;
}

} // namespace

void bind_limits(nb::module_& m) {
  nb::class_<Limits>(m, "Limits", "What the threads of a pool get from the machine at best.")
      .def(
          "__init__",
          [](Limits* self, std::shared_ptr<Pool> pool, const KernelTable& kernels, int64_t buffer_bytes) {
            const nb::gil_scoped_release release;
            new (self) Limits(std::move(pool), *kernels.kernels, buffer_bytes);
          },
          "pool"_a, "kernels"_a, nb::kw_only(), "buffer_bytes"_a,
          "Takes a buffer to read, of at least 1 MiB, and touches it.  Releases the GIL.")
      .def("read_bytes_per_s", &Limits::read_bytes_per_s, nb::kw_only(), "nbytes"_a, "seconds"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Bytes a second that all threads together read of the first `nbytes` of the buffer, again and\n"
           "again for about `seconds`.  Releases the GIL.")
      .def(
          "macs_per_s",
          [](Limits& limits, std::string_view type, double seconds) {
            return limits.macs_per_s(row_type(type), seconds);
          },
          "type"_a, nb::kw_only(), "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Products, each with its addition, a second: of the kernels' own instruction for rows of type "
          "f32,\n"
          "q8 or bf16, from registers, all threads together.  Releases the GIL.")
      .def("scaled_macs_per_s", &Limits::scaled_macs_per_s, nb::kw_only(), "seconds"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "The same of 8-bit products whose sums over 32 are scaled and added, as those of quantized\n"
           "weights are.  Releases the GIL.");
}

} // namespace samovar
