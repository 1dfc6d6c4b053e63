// The Python module: checks of types and lifetimes; everything else is in the classes that it binds.
#include "bind.h"

#include "arena.h"
#include "cpu.h"
#include "kv_cache.h"
#include "ops/ops.h"
#include "pool.h"
#include "program.h"
#include "runner.h"
#include "weight.h"

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
using IntArray = Array<int32_t>;

std::vector<float> copy_of(const std::optional<FloatArray>& array, const char* name) {
  return array ? View(*array, name).copy() : std::vector<float>();
}

std::shared_ptr<const Weight> pack(const std::vector<Array<uint8_t>>& parts,
                                   const std::vector<std::string>& formats, const std::vector<int64_t>& rows,
                                   int64_t cols, const std::shared_ptr<Arena>& arena,
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
  return Weight::pack(raw, cols, arena, *pool);
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

NumpyArray<int32_t> run(Runner& runner, const IntArray& tokens, const IntArray& positions,
                        const IntArray& seq_start, const IntArray& kv_len, const IntArray& block_table,
                        const IntArray& logit_rows) {
  const View t(tokens, "tokens"), p(positions, "positions"), s(seq_start, "seq_start"), k(kv_len, "kv_len"),
      b(block_table, "block_table", 2), l(logit_rows, "logit_rows");
  std::vector<int32_t> bad;
  {
    const nb::gil_scoped_release release;
    bad = runner.run({t.span(), p.span(), s.span(), k.span(), b.span(), b.shape(0), b.shape(1), l.span()});
  }
  const size_t count = bad.size();
  return make_array(std::move(bad), {count});
}

NumpyArray<const float> logits(const nb::handle& self) {
  const auto& runner = nb::cast<const Runner&>(self);
  return NumpyArray<const float>(
      runner.logits(),
      {static_cast<size_t>(runner.max_logit_rows()), static_cast<size_t>(runner.logits_cols())}, self,
      {runner.logits_stride(), 1});
}

// The part of a list of tokens that `start` gives to each choice.
std::span<const int32_t> slice(const View<int32_t>& start, const View<int32_t>& tokens, size_t i,
                               const char* name) {
  const int32_t begin = start.data()[i], end = start.data()[i + 1];
  check(begin >= 0 && begin <= end && end <= tokens.size(), name, ": ", begin, " to ", end, " at ", i,
        " is not in ", tokens.size(), " tokens");
  return tokens.span().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

NumpyArray<int32_t> sample(Runner& runner, const IntArray& rows, const FloatArray& temperature,
                           const FloatArray& top_p, const FloatArray& min_p, const FloatArray& repeat_penalty,
                           const FloatArray& frequency_penalty, const FloatArray& presence_penalty,
                           const IntArray& top_k, const Array<uint64_t>& seed, const Array<uint32_t>& choice,
                           const IntArray& position, const IntArray& repeat_start,
                           const IntArray& repeat_tokens, const IntArray& reply_start,
                           const IntArray& reply_tokens) {
  const View row(rows, "rows"), k(top_k, "top_k"), at(position, "position");
  const View t(temperature, "temperature"), p(top_p, "top_p"), m(min_p, "min_p"),
      repeat(repeat_penalty, "repeat_penalty"), frequency(frequency_penalty, "frequency_penalty"),
      presence(presence_penalty, "presence_penalty");
  const View seeds(seed, "seed");
  const View number(choice, "choice");
  const View first_repeat(repeat_start, "repeat_start"), repeats(repeat_tokens, "repeat_tokens"),
      first_reply(reply_start, "reply_start"), replies(reply_tokens, "reply_tokens");
  const int64_t n = row.size();
  const auto length = [&](const auto& view, const char* name, int64_t expected) {
    check(view.size() == expected, name, ": expected ", expected, " values, got ", view.size());
  };
  length(t, "temperature", n);
  length(p, "top_p", n);
  length(m, "min_p", n);
  length(repeat, "repeat_penalty", n);
  length(frequency, "frequency_penalty", n);
  length(presence, "presence_penalty", n);
  length(k, "top_k", n);
  length(seeds, "seed", n);
  length(number, "choice", n);
  length(at, "position", n);
  length(first_repeat, "repeat_start", n + 1);
  length(first_reply, "reply_start", n + 1);
  std::vector<Choice> choices;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    choices.push_back({.row = row.data()[i],
                       .temperature = t.data()[i],
                       .top_p = p.data()[i],
                       .min_p = m.data()[i],
                       .top_k = k.data()[i],
                       .repeat_penalty = repeat.data()[i],
                       .frequency_penalty = frequency.data()[i],
                       .presence_penalty = presence.data()[i],
                       .repeat_tokens = slice(first_repeat, repeats, i, "repeat_start"),
                       .reply_tokens = slice(first_reply, replies, i, "reply_start"),
                       .seed = seeds.data()[i],
                       .choice = number.data()[i],
                       .position = static_cast<uint32_t>(at.data()[i])});
  std::vector<int32_t> tokens(choices.size());
  {
    const nb::gil_scoped_release release;
    runner.sample(choices, tokens);
  }
  const size_t count = tokens.size();
  return make_array(std::move(tokens), {count});
}

nb::list profile(Runner& runner, std::optional<bool> enabled) {
  nb::list result;
  for (const Runner::Profile& p : runner.profile()) {
    nb::dict entry;
    entry["kind"] = p.kind;
    entry["origin"] = *p.origin;
    entry["calls"] = p.calls;
    entry["ns"] = p.ns;
    result.append(entry);
  }
  if (enabled)
    runner.set_profiling(*enabled);
  return result;
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
          [](Program& p, int x, int out, int layer, int heads, int kv_heads, int head_dim, float scale,
             int window, std::string origin) {
            add_attention(p, {x, out, layer, heads, kv_heads, head_dim, scale, window, std::move(origin)});
          },
          nb::kw_only(), "x"_a, "out"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a,
          "window"_a, "origin"_a,
          "Store k and v of q|k|v rows in the cache, then attend causally; window 0 sees all, else the last "
          "`window` tokens, the own included.")
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

void bind_runner(nb::module_& m) {
  nb::class_<Runner>(m, "Runner", "Replays a program, a step at a time; owns its activations.")
      .def(
          "__init__",
          [](Runner* self, std::shared_ptr<Program> program, std::shared_ptr<KvCache> cache,
             const KernelTable& kernels, std::shared_ptr<Pool> pool) {
            new (self) Runner(std::move(program), std::move(cache), *kernels.kernels, std::move(pool));
          },
          "program"_a, "kv_cache"_a, "kernels"_a, "pool"_a)
      .def(
          "run", &run, nb::kw_only(), "tokens"_a, "positions"_a, "seq_start"_a, "kv_len"_a, "block_table"_a,
          "logit_rows"_a,
          "Compute a step: sequence s has rows seq_start[s] to seq_start[s+1], its positions are "
          "consecutive\n"
          "and end at kv_len[s] - 1, its blocks are block_table[s].  logit_rows ascend.\n\n"
          "Everything is checked before anything is computed (ValueError).  Returns the rows, usually none,\n"
          "that met a value which is not finite.  Releases the GIL.")
      .def_prop_ro("logits", &logits,
                   nb::for_getter(nb::sig("def logits(self, /) -> numpy.typing.NDArray[numpy.float32]")),
                   "View [max_logit_rows, vocab]; the rows of the last run are valid.")
      .def(
          "sample", &sample, nb::kw_only(), "rows"_a, "temperature"_a, "top_p"_a, "min_p"_a,
          "repeat_penalty"_a, "frequency_penalty"_a, "presence_penalty"_a, "top_k"_a, "seed"_a, "choice"_a,
          "position"_a, "repeat_start"_a, "repeat_tokens"_a, "reply_start"_a, "reply_tokens"_a,
          "One token for each of `rows` of the logits.  Order: penalties, temperature, top-k, min-p, top-p, "
          "one\n"
          "draw (Philox 4x32-10, key seed, counter position and choice).  Temperature 0: the most probable.\n"
          "Tokens repeat_start[i] to repeat_start[i+1] of repeat_tokens are row i's; so with reply_tokens.")
      .def("profile", &profile, "enabled"_a = nb::none(),
           nb::sig("def profile(self, enabled: bool | None = None) -> list[dict[str, object]]"),
           "Time by operation: kind, origin, calls, ns.  True starts measuring from zero, False stops.");
}

NB_MODULE(_native, m) {
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
      .def_prop_ro("threads", &Pool::threads);

  nb::class_<Weight>(m, "Weight", "An immutable matrix in panels, packed exactly.")
      .def_static(
          "pack", &pack, "parts"_a, "formats"_a, "rows"_a, "cols"_a, nb::kw_only(), "arena"_a, "pool"_a,
          "Pack raw GGUF blocks, flat uint8, of one or more parts with `cols` columns; a part may have a\n"
          "format of its own.  ValueError for any size that does not fit.  Releases the GIL.")
      .def_prop_ro("rows", &Weight::rows, "Rows of all parts.")
      .def_prop_ro("cols", &Weight::cols)
      .def_prop_ro("nbytes", &Weight::nbytes, "Bytes of the panels.")
      .def_prop_ro(
          "input_type", [](const Weight& w) { return row_type_name(w.input_type()); },
          "Kind of rows that a product with it reads: f32, q8 or bf16.")
      .def("dequantize", &dequantize, nb::sig("def dequantize(self) -> numpy.typing.NDArray[numpy.float32]"),
           "The exact values, [rows, cols].");

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
      .def("copy_block", &KvCache::copy_block, "src"_a, "dst"_a);

  bind_program(m);
  bind_runner(m);
}

} // namespace
} // namespace samovar
