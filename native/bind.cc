// The Python module: checks of types and lifetimes; everything else is in the classes that it binds.
#include "bind.h"

#include "arena.h"
#include "cpu.h"
#include "kv_cache.h"
#include "ops/ops.h"
#include "pool.h"
#include "program.h"
#include "weight.h"

#include <atomic>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>

namespace samovar {
namespace {

using namespace nb::literals;

using FloatArray = Array<float>;

std::vector<float> copy_of(const std::optional<FloatArray>& array, const char* name) {
  return array ? View(*array, name).copy() : std::vector<float>();
}

std::shared_ptr<const Weight> pack(const std::vector<Array<uint8_t>>& parts,
                                   const std::vector<std::string>& formats, const std::vector<int64_t>& rows,
                                   int64_t cols, bool alternate, const std::shared_ptr<Arena>& arena,
                                   const std::shared_ptr<Pool>& pool) {
  check(formats.size() == parts.size() && rows.size() == parts.size(),
        "parts, formats and rows: ", parts.size(), ", ", formats.size(), " and ", rows.size(),
        " items; expected as many of each");
  std::vector<std::optional<View<uint8_t>>> views(parts.size());
  std::vector<Weight::Part> raw;
  for (size_t i = 0; i < parts.size(); ++i) {
    const View<uint8_t>& view = views[i].emplace(parts[i], "parts");
    raw.push_back({view.data(), view.size(), formats[i], rows[i]});
  }
  const nb::gil_scoped_release release;
  return Weight::pack(raw, cols, alternate, arena, *pool);
}

nb::bytes read_block(const KvCache& cache, int block) {
  auto bytes = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, cache.block_bytes()));
  if (!bytes.is_valid())
    nb::raise_python_error();
  auto* out = reinterpret_cast<uint8_t*>(PyBytes_AsString(bytes.ptr()));
  const nb::gil_scoped_release release; // nobody else has seen the bytes yet
  cache.read_block(block, out);
  return bytes;
}

void write_block(KvCache& cache, int block, const Array<uint8_t>& data) {
  const View view(data, "data");
  const nb::gil_scoped_release release;
  cache.write_block(block, view.span());
}

NumpyArray<float> dequantize(const Weight& weight) {
  const auto rows = static_cast<size_t>(weight.rows()), cols = static_cast<size_t>(weight.cols());
  std::vector<float> values(rows * cols);
  {
    const nb::gil_scoped_release release;
    for (size_t row = 0; row < rows; ++row)
      weight.dequantize_row(static_cast<int>(row), values.data() + row * cols);
  }
  return make_array(std::move(values), {rows, cols});
}

void bind_program(nb::module_& m) {
  nb::class_<Program>(
      m, "Program",
      "A flat list of operations over planned buffers; built once, replayed by a Runner.\n\n"
      "Every add_* checks its operands and raises ValueError naming `origin`, the model's line.")
      .def(nb::init<int, int, int, int64_t>(), nb::kw_only(), "max_tokens"_a, "max_logit_rows"_a,
           "max_sequences"_a, "buffer_bytes"_a)
      .def("buffer", &Program::buffer, nb::kw_only(), "offset"_a, "cols"_a, "type"_a, "rows"_a,
           "Declare a matrix of type f32, q8 or bf16 with rows \"tokens\" or \"logits\"; returns its id.")
      .def("set_logits", &Program::set_logits, nb::kw_only(), "x"_a, "Name the logits; ends the program.")
      .def(
          "add_embedding",
          [](Program& p, int out, std::shared_ptr<const Weight> weight, float scale, std::string origin) {
            add_embedding(p, {out, std::move(weight), scale, std::move(origin)});
          },
          nb::kw_only(), "out"_a, "weight"_a, "scale"_a, "origin"_a,
          "out[t] = the weight's row tokens[t] * scale.")
      .def(
          "add_rms_norm",
          [](Program& p, int x, const std::optional<FloatArray>& weight, float eps, int add, int out,
             int out_rows, std::string origin) {
            add_rms_norm(p, {x, copy_of(weight, "weight"), eps, add, out, out_rows, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "weight"_a.none(), "eps"_a, "add"_a = -1, "out"_a = -1, "out_rows"_a = -1,
          "origin"_a, "x / rms(x) * weight [+ add], as f32 into out, as rounded rows into out_rows, or both.")
      .def(
          "add_round_rows",
          [](Program& p, int x, int out, std::string origin) {
            add_round_rows(p, {x, out, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "out"_a, "origin"_a, "f32 rows as q8 or bf16 rows.")
      .def(
          "add_linear",
          [](Program& p, int x, std::shared_ptr<const Weight> weight, int out, int out_col,
             const std::optional<FloatArray>& bias, int add, std::string origin) {
            check(!bias || View(*bias, "bias").size() > 0, "bias: expected values, got none");
            add_linear(p,
                       {x, std::move(weight), out, out_col, copy_of(bias, "bias"), add, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "weight"_a, "out"_a, "out_col"_a = 0, "bias"_a = nb::none(), "add"_a = -1,
          "origin"_a,
          "out[:, out_col:] = x . weight^T [+ bias] [+ the same columns of add]; add may be out itself.")
      .def(
          "add_gated_linear",
          [](Program& p, int x, std::shared_ptr<const Weight> weight, std::string activation,
             const std::optional<FloatArray>& bias, int out, int out_rows, std::string origin) {
            check(!bias || View(*bias, "bias").size() > 0, "bias: expected values, got none");
            add_gated_linear(p, {x, std::move(weight), std::move(activation), copy_of(bias, "bias"), out,
                                 out_rows, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "weight"_a, "activation"_a, "bias"_a = nb::none(), "out"_a = -1,
          "out_rows"_a = -1, "origin"_a,
          "act(gate) * up of x . weight^T [+ bias], where gate and up alternate in the weight; the bias is\n"
          "that of gate, then that of up.  As f32 into out, as rounded rows into out_rows, or both.")
      .def(
          "add_qk_norm",
          [](Program& p, int x, const FloatArray& q_weight, const FloatArray& k_weight, int heads,
             int kv_heads, int head_dim, float eps, std::string origin) {
            add_qk_norm(p, {x, View(q_weight, "q_weight").copy(), View(k_weight, "k_weight").copy(), heads,
                            kv_heads, head_dim, eps, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "q_weight"_a, "k_weight"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "eps"_a,
          "origin"_a, "RMSNorm of each q and each k head of q|k|v rows, in place.")
      .def(
          "add_rope_angles",
          [](Program& p, int out, const Array<double>& inv_freq, float scale, std::string origin) {
            add_rope_angles(p, {out, View(inv_freq, "inv_freq").copy(), scale, std::move(origin)});
          },
          nb::kw_only(), "out"_a, "inv_freq"_a, "scale"_a, "origin"_a,
          "out[t] = cos(position * inv_freq) * scale, then the sines.")
      .def(
          "add_rope",
          [](Program& p, int x, int angles, int heads, int head_dim, std::string origin) {
            add_rope(p, {x, angles, heads, head_dim, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "angles"_a, "heads"_a, "head_dim"_a, "origin"_a,
          "Rotate the first `heads` heads of each row in place, half-split, as far as the angles reach.")
      .def(
          "add_attention",
          [](Program& p, int x, int layer, int heads, int kv_heads, int head_dim, float scale, int window,
             int out, int out_rows, std::string origin) {
            add_attention(
                p, {x, out, out_rows, layer, heads, kv_heads, head_dim, scale, window, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a,
          "out"_a = -1, "out_rows"_a = -1, "origin"_a,
          "Store k and v of q|k|v rows in the cache, then attend causally; window 0 sees all, else the last "
          "`window` tokens, the own included.  As f32 into out, as rounded rows into out_rows, or both.")
      .def(
          "add_gated",
          [](Program& p, int x, std::string activation, int out, int out_rows, std::string origin) {
            add_gated(p, {x, std::move(activation), out, out_rows, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "activation"_a, "out"_a = -1, "out_rows"_a = -1, "origin"_a,
          "act(gate) * up of gate|up rows; activation is silu or gelu_tanh.")
      .def(
          "add_take_logit_rows",
          [](Program& p, int x, int out, std::string origin) {
            add_take_logit_rows(p, {x, out, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "out"_a, "origin"_a, "The rows that need logits.");
}

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false); // a thread that is ended with the process may still hold an engine
  m.doc() = "The native core: weights, KV cache, programs and the kernels that compute them.";

  m.def(
      "cpu_features",
      [] {
        nb::dict features;
        for (const auto& [name, present] : detect_cpu().named())
          features[name] = present;
        return features;
      },
      nb::sig("def cpu_features() -> dict[str, bool]"), "Instruction sets that CPU and system allow.");
  m.def(
      "usable_cores", [] { return usable_cores(); },
      "Threads worth running: min(affinity, floor(cgroup quota), physical cores), at least 1.");
  m.def(
      "available_memory", [] { return available_memory(); },
      "Bytes that can still be allocated: min(MemAvailable, what the cgroups allow).");

  bind_kernels(m);

  nb::class_<Arena>(m, "Arena", "Owns the memory of packed weights, in slabs that ask for huge pages.")
      .def(nb::init<>())
      .def_prop_ro("nbytes", &Arena::nbytes, "Bytes handed out so far.");

  nb::class_<Pool>(m, "Pool", "Threads that run a step; worker 0 is the caller.  Idle, it costs no CPU.")
      .def(nb::init<int>(), "threads"_a)
      .def(
          "add_up",
          [](Pool& pool, int64_t jobs, int64_t items) {
            check(jobs >= 0, "jobs: expected at least 0, got ", jobs);
            check(items >= 1 && items <= Pool::kMaxItems, "items: expected 1 to ", Pool::kMaxItems, ", got ",
                  items);
            std::atomic<int64_t> sum{0};
            for (int64_t job = 0; job < jobs; ++job)
              pool.each(items,
                        [&](int64_t item, int) { sum.fetch_add(item + 1, std::memory_order_relaxed); });
            return sum.load();
          },
          "jobs"_a, "items"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Do jobs of so many items, one after the other; the sum of the items' numbers, from 1.  For tests.")
      .def_prop_ro("threads", &Pool::threads);

  nb::class_<Weight>(m, "Weight", "An immutable matrix in panels, packed exactly.")
      .def_static(
          "pack", &pack, "parts"_a, "formats"_a, "rows"_a, "cols"_a, nb::kw_only(), "alternate"_a = false,
          "arena"_a, "pool"_a,
          "Pack raw GGUF blocks, flat uint8, of one or more parts with `cols` columns; a part may have a\n"
          "format of its own.  alternate: 64 rows of the first part, 64 of the second, and so on, as\n"
          "gated_linear reads them.  ValueError for any size that does not fit.  Releases the GIL.")
      .def_prop_ro("rows", &Weight::rows, "Rows of all parts.")
      .def_prop_ro("cols", &Weight::cols)
      .def_prop_ro("nbytes", &Weight::nbytes, "Bytes of the panels.")
      .def_prop_ro(
          "input_type", [](const Weight& w) { return row_type_name(w.input_type()); },
          "Kind of rows that a product with it reads: f32, q8 or bf16.")
      .def("dequantize", &dequantize, nb::sig("def dequantize(self) -> numpy.typing.NDArray[numpy.float32]"),
           "The exact values, [rows, cols], in the order of the panels.");

  nb::class_<KvCache>(
      m, "KvCache",
      "Keys and values in blocks of 32 tokens; memory is reserved, and touched only as it is used.")
      .def(nb::init<int, int, int, int, std::string_view>(), nb::kw_only(), "layers"_a, "kv_heads"_a,
           "head_dim"_a, "num_blocks"_a, "dtype"_a)
      .def_static("block_bytes_for", &KvCache::block_bytes_for, nb::kw_only(), "layers"_a, "kv_heads"_a,
                  "head_dim"_a, "dtype"_a, "Bytes of one block of a cache with this geometry.")
      .def_prop_ro("num_blocks", &KvCache::num_blocks)
      .def_prop_ro("block_bytes", &KvCache::block_bytes)
      .def_prop_ro("nbytes", &KvCache::nbytes)
      .def("copy_block", &KvCache::copy_block, nb::call_guard<nb::gil_scoped_release>(), "src"_a, "dst"_a,
           "Copy one block over another.  As for all three: no step may write the block meanwhile.")
      .def("read_block", &read_block, "block"_a, "The block's block_bytes bytes.  Releases the GIL.")
      .def("write_block", &write_block, "block"_a, "data"_a,
           nb::sig("def write_block(self, block: int, data: bytes | bytearray | memoryview) -> None"),
           "Fill a block with what read_block gave for a cache of the same kind.  Releases the GIL.\n\n"
           "ValueError for another size, or if a value is not finite; the block is all zeros then.");

  bind_program(m);
  bind_runner(m);
  bind_limits(m);
}

} // namespace
} // namespace samovar
