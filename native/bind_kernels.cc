// The kernel tables over numpy arrays, for tests.  Arguments are copied into aligned memory.
#include "bind.h"

#include "arena.h"
#include "cpu.h"
#include "kernels/log.h"
#include "kernels/rope_angles.h"
#include "kv_cache.h"
#include "weight.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

namespace samovar {
namespace {

using namespace nb::literals;

using FloatArray = Array<float>;
using Matrix = View<float>;
using Floats = NumpyArray<float>;

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> found(16);
  found.resize(static_cast<size_t>(available_kernels(found.data(), 16)));
  return found;
}

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const Kernels* table : tables())
    names.emplace_back(table->name);
  return names;
}

size_t count(int64_t n) {
  return static_cast<size_t>(n);
}

// Rows in memory as the kernels want it.
class Rows {
public:
  Rows(int64_t rows, int64_t row_bytes)
      : stride(round_up(row_bytes, 64)), data_(arena_.allocate(rows * stride)) {}
  explicit Rows(const Matrix& m) : Rows(m.shape(0), m.shape(1) * 4) {
    for (int64_t r = 0; r < m.shape(0); ++r)
      std::memcpy(row(r), m.data() + r * m.shape(1), count(m.shape(1)) * 4);
  }

  uint8_t* row(int64_t r) { return data_ + r * stride; }
  float* floats(int64_t r) { return reinterpret_cast<float*>(row(r)); }

  const int64_t stride;

private:
  Arena arena_;
  uint8_t* data_;
};

Floats matrix_of(Rows& rows, int64_t n, int64_t cols) {
  std::vector<float> values(count(n * cols));
  for (int64_t r = 0; r < n; ++r)
    std::copy_n(rows.floats(r), cols, values.data() + r * cols);
  return make_array(std::move(values), {count(n), count(cols)});
}

void same_shape(const Matrix& a, const Matrix& b, const char* name) {
  check(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), name, ": expected ", a.shape(0), " x ",
        a.shape(1), ", got ", b.shape(0), " x ", b.shape(1));
}

void length(const View<float>& v, const char* name, int64_t expected) {
  check(v.size() == expected, name, ": expected ", expected, " values, got ", v.size());
}

using Quantized = std::tuple<NumpyArray<int8_t>, Floats, bool>;
Quantized quantize_q8(const KernelTable& table, const FloatArray& x) {
  const Matrix m(x, "x", 2);
  const int64_t rows = m.shape(0), k = m.shape(1), blocks = (k + kBlock - 1) / kBlock;
  Rows in(m), out(1, row_bytes(RowType::Q8, k));
  std::vector<int8_t> q(count(rows * k));
  std::vector<float> d(count(rows * blocks));
  bool finite = true;
  const FlushDenormals guard;
  for (int64_t r = 0; r < rows; ++r) {
    finite &= quantize_q8_row(*table.kernels, in.floats(r), static_cast<int>(k), out.row(0));
    std::memcpy(q.data() + r * k, out.row(0), count(k));
    for (int64_t b = 0; b < blocks; ++b)
      d[count(r * blocks + b)] = reinterpret_cast<const Q8Block*>(out.row(0) + q8_blocks_offset(k))[b].d;
  }
  return {make_array(std::move(q), {count(rows), count(k)}),
          make_array(std::move(d), {count(rows), count(blocks)}), finite};
}

std::pair<NumpyArray<uint16_t>, bool> round_bf16(const KernelTable& table, const FloatArray& x) {
  const Matrix m(x, "x", 2);
  const int64_t rows = m.shape(0), k = m.shape(1);
  Rows in(m), out(1, row_bytes(RowType::BF16, k));
  std::vector<uint16_t> bits(count(rows * k));
  bool finite = true;
  const FlushDenormals guard;
  for (int64_t r = 0; r < rows; ++r) {
    finite &= table.kernels->round_bf16(in.floats(r), static_cast<int>(k), out.row(0));
    std::memcpy(bits.data() + r * k, out.row(0), count(k) * 2);
  }
  return {make_array(std::move(bits), {count(rows), count(k)}), finite};
}

Floats matmul(const KernelTable& table, const FloatArray& x, const Weight& weight,
              const std::optional<FloatArray>& bias, const std::optional<FloatArray>& add) {
  const Matrix m(x, "x", 2);
  const int64_t rows = m.shape(0), k = m.shape(1), n = weight.rows();
  check(rows >= 1, "x: expected at least one row");
  check(k == weight.cols(), "x: expected ", weight.cols(), " columns, got ", k);
  Rows in(m), rounded(rows, row_bytes(weight.input_type(), k)), out(rows, n * 4);
  const FlushDenormals guard;
  for (int64_t r = 0; r < rows; ++r) {
    if (weight.input_type() == RowType::Q8)
      quantize_q8_row(*table.kernels, in.floats(r), static_cast<int>(k), rounded.row(r));
    else if (weight.input_type() == RowType::BF16)
      table.kernels->round_bf16(in.floats(r), static_cast<int>(k), rounded.row(r));
  }
  Rows& read = weight.input_type() == RowType::F32 ? in : rounded;
  std::optional<Matrix> b, a;
  if (bias)
    length(b.emplace(*bias, "bias"), "bias", n);
  if (add) {
    a.emplace(*add, "add", 2);
    check(a->shape(0) == rows && a->shape(1) == n, "add: expected ", rows, " x ", n);
  }
  for (const Weight::Segment& segment : weight.segments()) {
    MatmulArgs args{};
    args.x = read.row(0);
    args.x_stride = read.stride;
    args.rows = static_cast<int>(rows);
    args.k = static_cast<int>(k);
    args.w = segment.panels;
    args.panel_stride = segment.panel_stride;
    args.n = segment.rows;
    args.out = out.floats(0) + segment.first_row;
    args.out_stride = out.stride / 4;
    args.bias = b ? b->data() + segment.first_row : nullptr;
    args.add = a ? a->data() + segment.first_row : nullptr;
    args.add_stride = n;
    table.kernels->matmul[static_cast<int>(segment.form)](args);
  }
  return matrix_of(out, rows, n);
}

Floats rms_norm(const KernelTable& table, const FloatArray& x, const std::optional<FloatArray>& weight,
                const std::optional<FloatArray>& add, float eps) {
  const Matrix m(x, "x", 2);
  Rows rows(m);
  std::optional<Matrix> w, a;
  if (weight)
    length(w.emplace(*weight, "weight"), "weight", m.shape(1));
  if (add)
    same_shape(m, a.emplace(*add, "add", 2), "add");
  const FlushDenormals guard;
  for (int64_t r = 0; r < m.shape(0); ++r)
    table.kernels->rms_norm(rows.floats(r), w ? w->data() : nullptr, a ? a->data() + r * m.shape(1) : nullptr,
                            static_cast<int>(m.shape(1)), eps, rows.floats(r));
  return matrix_of(rows, m.shape(0), m.shape(1));
}

template <auto kKernel> Floats gated(const KernelTable& table, const FloatArray& gate, const FloatArray& up) {
  const Matrix g(gate, "gate", 2), u(up, "up", 2);
  same_shape(g, u, "up");
  const int64_t n = g.shape(1);
  Rows both(g.shape(0), 2 * n * 4);
  const FlushDenormals guard;
  for (int64_t r = 0; r < g.shape(0); ++r) {
    std::copy_n(g.data() + r * n, n, both.floats(r));
    std::copy_n(u.data() + r * n, n, both.floats(r) + n);
    (table.kernels->*kKernel)(both.floats(r), static_cast<int>(n), static_cast<int>(n), both.floats(r));
  }
  return matrix_of(both, g.shape(0), n);
}

Floats rope(const KernelTable& table, const FloatArray& x, const FloatArray& cosines,
            const FloatArray& sines) {
  const Matrix m(x, "x", 2), c(cosines, "cos"), s(sines, "sin");
  length(s, "sin", c.size());
  check(2 * c.size() <= m.shape(1), "cos: expected at most ", m.shape(1) / 2, " values, got ", c.size());
  Rows rows(m);
  const FlushDenormals guard;
  for (int64_t r = 0; r < m.shape(0); ++r)
    table.kernels->rope(rows.floats(r), c.data(), s.data(), static_cast<int>(c.size()));
  return matrix_of(rows, m.shape(0), m.shape(1));
}

std::pair<Floats, Floats> angles(const Array<double>& inv_freq, int position, float scale) {
  const View f(inv_freq, "inv_freq");
  std::vector<float> cosines(count(f.size())), sines(count(f.size()));
  const FlushDenormals guard;
  rope_angles(f.data(), static_cast<int>(f.size()), position, scale, cosines.data(), sines.data());
  return {make_array(std::move(cosines), {count(f.size())}), make_array(std::move(sines), {count(f.size())})};
}

// What `function` makes of each row and `by`.
Floats each_row(void (*function)(const float*, float, int, float*), const FloatArray& x, float by) {
  const Matrix m(x, "x", 2);
  Rows rows(m);
  const FlushDenormals guard;
  for (int64_t r = 0; r < m.shape(0); ++r)
    function(rows.floats(r), by, static_cast<int>(m.shape(1)), rows.floats(r));
  return matrix_of(rows, m.shape(0), m.shape(1));
}

Floats scale(const KernelTable& table, const FloatArray& x, float factor) {
  return each_row(table.kernels->scale, x, factor);
}

Floats divide(const KernelTable& table, const FloatArray& x, float divisor) {
  return each_row(table.kernels->divide, x, divisor);
}

template <auto kernel> auto of_one_row(const KernelTable& table, const FloatArray& x) {
  const View v(x, "x");
  check(v.size() >= 1, "x: expected at least one value");
  Rows row(1, v.size() * 4);
  std::copy_n(v.data(), v.size(), row.floats(0));
  const FlushDenormals guard;
  return (table.kernels->*kernel)(row.floats(0), static_cast<int>(v.size()));
}

std::pair<Floats, float> exp_sum(const KernelTable& table, const FloatArray& x, float shift, float mul) {
  const View v(x, "x");
  Rows row(1, v.size() * 4 + 64);
  std::copy_n(v.data(), v.size(), row.floats(0));
  const FlushDenormals guard;
  const float sum =
      table.kernels->exp_sum(row.floats(0), static_cast<int>(v.size()), shift, mul, row.floats(0));
  return {make_array(std::vector<float>(row.floats(0), row.floats(0) + v.size()), {count(v.size())}), sum};
}

using Attended = std::tuple<Floats, Floats, Floats>;
Attended attend(const KernelTable& table, const FloatArray& q, const FloatArray& k, const FloatArray& v,
                const Array<int32_t>& first, const Array<int32_t>& last, float scale, std::string_view dtype,
                int base) {
  const Matrix queries(q, "q", 2), keys(k, "k", 2), values(v, "v", 2);
  const View f(first, "first"), l(last, "last");
  const int64_t rows = queries.shape(0), hd = queries.shape(1), tokens = keys.shape(0);
  check(rows >= 1 && rows <= 16, "q: expected 1 to 16 rows, got ", rows);
  check(tokens >= 1 && tokens <= kContextChunk, "k: expected 1 to ", kContextChunk, " tokens, got ", tokens);
  check(keys.shape(1) == hd, "k: expected ", hd, " columns, got ", keys.shape(1));
  same_shape(keys, values, "v");
  check(f.size() == rows && l.size() == rows, "first and last: expected ", rows, " values");
  check(base >= 0 && base % kContextChunk == 0, "base: expected a multiple of ", kContextChunk, ", got ",
        base);
  check(hd <= 256, "q: expected at most 256 columns, got ", hd);
  const int pages = static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
  const KvCache cache(1, 1, static_cast<int>(hd), pages, dtype);
  const auto type = static_cast<int>(cache.type());

  Rows query_rows(queries), key_rows(keys), value_rows(values), o(rows, hd * 4);
  const FlushDenormals guard;
  for (int t = 0; t < tokens; ++t)
    table.kernels->kv_store[type](key_rows.floats(t), value_rows.floats(t), static_cast<int>(hd),
                                  t % kPageTokens, cache.page(0, t / kPageTokens, 0));
  const float* pointers[16];
  for (int64_t r = 0; r < rows; ++r)
    pointers[r] = query_rows.floats(r);
  const uint8_t* page_pointers[16];
  for (int p = 0; p < pages; ++p)
    page_pointers[p] = cache.page(0, p, 0);
  std::vector<float> m(16), sums(16);
  AttendArgs args{};
  args.q = pointers;
  args.rows = static_cast<int>(rows);
  args.hd = static_cast<int>(hd);
  args.first = f.data();
  args.last = l.data();
  args.pages = page_pointers;
  args.num_pages = pages;
  args.base = base;
  args.scale = scale;
  args.m = m.data();
  args.l = sums.data();
  args.o = o.floats(0);
  args.o_stride = o.stride / 4;
  table.kernels->attend[type](args);
  m.resize(count(rows));
  sums.resize(count(rows));
  return {make_array(std::move(m), {count(rows)}), make_array(std::move(sums), {count(rows)}),
          matrix_of(o, rows, hd)};
}

Attended attend_merge(const KernelTable& table, float m_a, float l_a, const FloatArray& o_a, float m_b,
                      float l_b, const FloatArray& o_b) {
  const View a(o_a, "o_a"), b(o_b, "o_b");
  length(b, "o_b", a.size());
  check(a.size() >= 32 && a.size() % 32 == 0, "o_a: expected a multiple of 32 values, got ", a.size());
  Rows to(1, a.size() * 4), from(1, b.size() * 4);
  std::copy_n(a.data(), a.size(), to.floats(0));
  std::copy_n(b.data(), b.size(), from.floats(0));
  std::vector<float> m{m_a}, l{l_a};
  const FlushDenormals guard;
  table.kernels->attend_merge(m.data(), l.data(), to.floats(0), &m_b, &l_b, from.floats(0),
                              static_cast<int>(a.size()));
  return {make_array(std::move(m), {1}), make_array(std::move(l), {1}), matrix_of(to, 1, a.size())};
}

} // namespace

KernelTable::KernelTable(const char* name) {
  std::string names;
  for (const Kernels* table : tables()) {
    if (name == nullptr || std::strcmp(name, table->name) == 0) {
      kernels = table;
      return;
    }
    names.append(names.empty() ? "" : ", ").append(table->name);
  }
  check(false, "this CPU has no kernels named ", name, "; available: ", names);
}

void bind_kernels(nb::module_& m) {
  m.def("available", &available, "Names of the kernel tables that this CPU can run, best first.");

  nb::class_<KernelTable>(
      m, "Kernels",
      "The kernels of one instruction set; the best available with None.\n\n"
      "The methods give each kernel over numpy arrays, for tests: what it computes is written\n"
      "in native/kernels/kernels.h.")
      .def(
          "__init__",
          [](KernelTable* self, const std::optional<std::string>& name) {
            new (self) KernelTable(name ? name->c_str() : nullptr);
          },
          "name"_a = nb::none())
      .def_prop_ro("name", [](const KernelTable& t) { return t.kernels->name; })
      .def("quantize_q8", &quantize_q8, "x"_a, "Codes, scales of the blocks, and whether all was finite.")
      .def("round_bf16", &round_bf16, "x"_a, "Bits, and whether all was finite.")
      .def("matmul", &matmul, "x"_a, "weight"_a, "bias"_a = nb::none(), "add"_a = nb::none(),
           "x . weight^T [+ bias] [+ add], x rounded as the weight asks.")
      .def("rms_norm", &rms_norm, "x"_a, "weight"_a = nb::none(), "add"_a = nb::none(), "eps"_a = 1e-6f)
      .def("silu_mul", &gated<&Kernels::silu_mul>, "gate"_a, "up"_a)
      .def("gelu_tanh_mul", &gated<&Kernels::gelu_tanh_mul>, "gate"_a, "up"_a)
      .def("rope", &rope, "x"_a, "cos"_a, "sin"_a)
      .def_static("rope_angles", &angles, "inv_freq"_a, "position"_a, "scale"_a = 1.0f, "Cosines and sines.")
      .def_static("natural_log", &natural_log, "x"_a)
      .def("scale", &scale, "x"_a, "factor"_a)
      .def("divide", &divide, "x"_a, "divisor"_a)
      .def("all_finite", &of_one_row<&Kernels::all_finite>, "x"_a)
      .def("argmax", &of_one_row<&Kernels::argmax>, "x"_a)
      .def("exp_sum", &exp_sum, "x"_a, "shift"_a = 0.0f, "mul"_a = 1.0f, "The exponentials and their sum.")
      .def("attend", &attend, "q"_a, "k"_a, "v"_a, "first"_a, "last"_a, nb::kw_only(), "scale"_a,
           "dtype"_a = "bf16", "base"_a = 0, "One chunk of at most 512 tokens from position base: m, l, o.")
      .def("attend_merge", &attend_merge, "m_a"_a, "l_a"_a, "o_a"_a, "m_b"_a, "l_b"_a, "o_b"_a);
}

} // namespace samovar
