// Runs every entry of every table that this CPU has on seeded inputs and prints a checksum for each.
//
// A line is "<kernel> <checksum> <tables that agree>".  Exit code 1 if two tables differ.  The same program,
// built for another architecture and run under an emulator, must print the same checksums.
#include "../cpu.h"
#include "../kernels/kernels.h"
#include "../kernels/log.h"
#include "../kernels/rope_angles.h"
#include "test_data.h"

#include <cstdio>
#include <string>
#include <vector>

namespace samovar::test {
namespace {

using Floats = std::vector<float>;

class Checksum { // FNV-1a
public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      hash_ = (hash_ ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  }
  void add(const Floats& x) { add(x.data(), x.size() * sizeof(float)); }
  template <class T> void value(T x) { add(&x, sizeof x); }
  uint64_t value() const { return hash_; }

private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

constexpr float kSpecial[] = {0.0f,          -0.0f,  1e-40f,  -1e-45f,  1.1754944e-38f, 1e-38f,   -3e38f,
                              3.4028235e38f, 1e-20f, -1e-20f, 127.0f,   126.5f,         -0.5f,    1e30f,
                              88.5f,         -87.2f, -200.0f, 3.6e-37f, -1e-37f,        0x1p-126f};

Floats activations(int n, Random& random) {
  Floats x(n);
  for (float& v : x)
    v = random.activation();
  return x;
}

// Whole range of finite floats.
Floats wild(int n, Random& random) {
  Floats x(n);
  for (int i = 0; i < n; ++i) {
    const uint32_t u = random.bits();
    if (random.below(4) == 0)
      x[i] = kSpecial[random.below(sizeof kSpecial / sizeof *kSpecial)];
    else if ((u >> 23 & 255) == 255)
      x[i] = 1.0f;
    else
      std::memcpy(&x[i], &u, 4);
  }
  return x;
}

void matmul(const Kernels& kernels, Form form, Checksum& sum) {
  Random random(static_cast<uint64_t>(form) + 100);
  const auto run = [&](int k, int n, int rows, int mode) {
    const RowType type = input_row(form);
    const int64_t stride = row_bytes(type, k), panel = panel_bytes(form, k), panels = (n + 15) / 16;
    Buffer x(stride * rows), w(panel * panels);
    for (int r = 0; r < rows; ++r) {
      const Floats row = activations(k, random);
      uint8_t* out = x.data() + r * stride;
      if (type == RowType::Q8)
        quantize_q8_row(kernels, row.data(), k, out);
      else if (type == RowType::BF16)
        kernels.round_bf16(row.data(), k, out);
      else
        std::memcpy(out, row.data(), k * 4);
      if (type == RowType::Q8 && mode == 2) { // extremes: +-127 everywhere
        for (int i = 0; i < k; ++i)
          out[i] = r % 2 ? 127 : 0x81;
        for (int b = 0; b < k / 32; ++b) {
          Q8Block& block = reinterpret_cast<Q8Block*>(out + q8_blocks_offset(k))[b];
          block.minus_sum_hi = r % 2 ? -127 * 16 : 127 * 16;
          block.minus_sum = 2 * block.minus_sum_hi;
        }
      }
    }
    fill_panels(form, w.data(), w.size(), random);
    if (type == RowType::Q8 && mode == 2) { // codes all ones, or all zeros in every other panel
      for (int64_t p = 0; p < panels; ++p)
        for (int64_t c = 0; c < panel; c += chunk_bytes(form))
          std::memset(w.data() + p * panel + c, p % 2 ? 0 : 0xff,
                      form == Form::U8 ? 1024
                                       : (chunk_k(form) / 32) *
                                             (form == Form::U4 || form == Form::U4m || form == Form::U4k ? 256
                                              : form == Form::U6 ? 384
                                                                 : 320));
    }
    const Floats bias = activations(n, random);
    const int64_t out_stride = n + 3;
    Floats out = activations(static_cast<int>(out_stride) * rows, random), plus = out;
    MatmulArgs args = matmul_args(x, rows, w, form, k, n, out.data(), out_stride);
    if (mode == 1 || mode == 3) {
      args.bias = mode == 1 ? bias.data() : nullptr;
      args.add = out.data();
      args.add_stride = out_stride;
    }
    kernels.matmul[static_cast<int>(form)](args);
    sum.add(out);
    if (mode == 0 && rows > 1) { // a row alone gives the same bits, and so do other panels around it
      Floats alone(n);
      args.x += stride * (rows - 1);
      args.rows = 1;
      args.out = alone.data();
      kernels.matmul[static_cast<int>(form)](args);
      if (std::memcmp(alone.data(), out.data() + (rows - 1) * out_stride, n * 4) != 0) {
        std::printf("%s: row %d of k=%d n=%d is not as alone\n", kFormNames[static_cast<int>(form)], rows - 1,
                    k, n);
        std::exit(1);
      }
    }
  };
  for (int k : {32, 96, 576, 640})
    for (int n : {1, 16, 40, 200})
      for (int rows : {1, 2, 3, 5, 8, 17})
        run(k, n, rows, (k + n + rows) % 2);
  run(256, 96, 4, 2);
  run(512, 48, 9, 2);
  run(256, 80, 52, 2);
  for (int rows : {16, 33, 47, 64, 131}) // the blocks of matrix tiles, whole and not
    run(rows % 2 ? 608 : 256, rows == 131 ? 24 : 72, rows, rows % 3 == 0);
  for (int rows : {6, 31, 32}) // slices of k, whole and not, prepared for many rows or read as they are
    for (int k : {96, 2048, 2080})
      run(k, 40, rows, k == 2048 ? 0 : 3);
  for (int k : {1280, 1344, 1472}) // the longest slices of some forms
    run(k, 40, 33, 1);
  for (int rows : {128, 129}) // as many rows as are computed at once, and more
    run(1536, 40, rows, 1);
  if (form == Form::F32 || form == Form::F16)
    run(37, 20, 3, 0);
}

void attend(const Kernels& kernels, KvType type, Checksum& sum) {
  Random random(static_cast<uint64_t>(type) + 7);
  for (int hd : {32, 64, 96, 128, 256})
    for (int rows : {1, 3, 4, 7, 16})
      for (int pages : {1, 3, 16}) {
        if (pages == 16 && hd > 64 && rows != 7)
          continue; // enough, and slow under an emulator
        const int64_t page_size = kv_page_bytes(type, hd);
        Buffer cache(page_size * pages);
        std::vector<const uint8_t*> table;
        const int base = 512, tokens = pages * 32 - 5;
        for (int p = 0; p < pages; ++p)
          table.push_back(cache.data() + p * page_size);
        for (int t = 0; t < tokens; ++t) {
          const Floats k = activations(hd, random), v = activations(hd, random);
          kernels.kv_store[static_cast<int>(type)](k.data(), v.data(), hd, t % 32,
                                                   cache.data() + t / 32 * page_size);
        }
        sum.add(cache.data(), cache.size());
        std::vector<Floats> q;
        std::vector<const float*> rows_q;
        std::vector<int32_t> first, last;
        for (int r = 0; r < rows; ++r) {
          q.push_back(activations(hd, random));
          first.push_back(r % 3 == 1 ? base + random.below(tokens) : r % 5 == 4 ? base + 600 : 0);
          last.push_back(r % 4 == 3 ? base + random.below(tokens) : base + tokens - 1);
          if (r == 6)
            last[r] = base - 1; // sees nothing
        }
        for (const Floats& row : q)
          rows_q.push_back(row.data());
        Floats m(rows), l(rows), o(rows * (hd + 16));
        AttendArgs args{};
        args.q = rows_q.data();
        args.rows = rows;
        args.hd = hd;
        args.first = first.data();
        args.last = last.data();
        args.pages = table.data();
        args.num_pages = pages;
        args.base = base;
        args.scale = 0.125f;
        args.m = m.data();
        args.l = l.data();
        args.o = o.data();
        args.o_stride = hd + 16;
        kernels.attend[static_cast<int>(type)](args);
        sum.add(m), sum.add(l), sum.add(o);
        Floats m1(1), l1(1), o1(hd);
        args.q += rows - 1, args.first += rows - 1, args.last += rows - 1;
        args.rows = 1, args.m = m1.data(), args.l = l1.data(), args.o = o1.data();
        kernels.attend[static_cast<int>(type)](args);
        if (m1[0] != m.back() || l1[0] != l.back() ||
            std::memcmp(o1.data(), o.data() + (rows - 1) * (hd + 16), hd * 4) != 0) {
          std::printf("attend: the last of %d rows, hd=%d, is not as alone\n", rows, hd);
          std::exit(1);
        }
        if (rows > 1) {
          kernels.attend_merge(&m[0], &l[0], &o[0], &m[1], &l[1], &o[hd + 16], hd);
          sum.value(m[0]), sum.value(l[0]), sum.add(o.data(), hd * 4);
        }
      }
}

void rows(const Kernels& kernels, const std::string& name, Checksum& sum) {
  Random random(name.size() * 31 + name[0]);
  for (int n : {1, 5, 15, 16, 17, 31, 32, 64, 100, 576, 1537})
    for (bool extreme : {false, true}) {
      Floats x = extreme ? wild(n, random) : activations(n, random);
      const Floats y = activations(n, random), z = activations(n, random);
      Floats out(n);
      if (name == "quantize_q8" || name == "round_bf16") {
        const bool q8 = name == "quantize_q8";
        const auto function = [&](const float* from, int k, uint8_t* to) {
          return q8 ? quantize_q8_row(kernels, from, k, to) : kernels.round_bf16(from, k, to);
        };
        Buffer row(row_bytes(q8 ? RowType::Q8 : RowType::BF16, n));
        std::memset(row.data(), 0xee, row.size());
        sum.value(function(x.data(), n, row.data()));
        sum.add(row.data(), row_bytes(q8 ? RowType::Q8 : RowType::BF16, n));
        for (float bad : {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")}) {
          Floats broken = x;
          broken[random.below(n)] = bad;
          sum.value(function(broken.data(), n, row.data()));
          sum.add(row.data(), row_bytes(q8 ? RowType::Q8 : RowType::BF16, n));
        }
      } else if (name == "rms_norm") {
        if (extreme)
          for (float& v : x)
            v = v > 1e15f || v < -1e15f ? 1e15f : v;
        kernels.rms_norm(x.data(), y.data(), nullptr, n, 1e-5f, out.data());
        sum.add(out);
        kernels.rms_norm(x.data(), nullptr, z.data(), n, 1e-6f, x.data());
        sum.add(x);
      } else if (name == "silu_mul" || name == "gelu_tanh_mul") {
        const auto function = name == "silu_mul" ? kernels.silu_mul : kernels.gelu_tanh_mul;
        x.insert(x.end(), y.begin(), y.end());
        function(x.data(), n, n, out.data());
        sum.add(out);
      } else if (name == "rope") {
        Floats head = activations(2 * n, random);
        kernels.rope(head.data(), y.data(), z.data(), n);
        sum.add(head);
      } else if (name == "scale") {
        kernels.scale(x.data(), 1.7f, n, out.data());
        sum.add(out);
      } else if (name == "divide") {
        kernels.divide(x.data(), 1.7f, n, out.data());
        sum.add(out);
      } else if (name == "argmax") {
        sum.value(kernels.argmax(x.data(), n));
        Floats ties(n, -__builtin_inff());
        ties[n / 2] = ties[n - 1] = 2.0f;
        sum.value(kernels.argmax(ties.data(), n));
        sum.value(kernels.argmax(Floats(n, -__builtin_inff()).data(), n));
        sum.value(kernels.argmax(Floats(n, __builtin_nanf("")).data(), n));
        x[random.below(n)] = __builtin_nanf("");
        sum.value(kernels.argmax(x.data(), n));
      } else if (name == "all_finite") {
        sum.value(kernels.all_finite(x.data(), n));
        for (float bad : {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")}) {
          Floats broken = x;
          broken[random.below(n)] = bad;
          sum.value(kernels.all_finite(broken.data(), n));
        }
      } else if (name == "exp_sum") {
        x[random.below(n)] = -__builtin_inff();
        sum.value(kernels.exp_sum(x.data(), n, 0.25f, extreme ? 1.0f : 30.0f, out.data()));
        sum.add(out);
      }
    }
}

void angles(Checksum& sum) {
  std::vector<double> inv_freq;
  for (double f = 1.0; f > 1e-6; f *= 0.83)
    inv_freq.push_back(f);
  Floats c(inv_freq.size()), s(inv_freq.size());
  for (int position : {0, 1, 2, 7, 511, 8191, 131071, 999983}) {
    rope_angles(inv_freq.data(), static_cast<int>(inv_freq.size()), position, 1.25f, c.data(), s.data());
    sum.add(c), sum.add(s);
  }
}

void logarithms(Checksum& sum) {
  for (double x = 0x1p-1022; x < 0x1p1000; x *= 1.37)
    sum.value(natural_log(x));
  for (double x = 0.5; x < 2.5; x += 1.0 / 1024)
    sum.value(natural_log(x));
}

int run() {
  const Kernels* tables[8];
  const int count = available_kernels(tables, 8);
  bool equal = true;
  const auto report = [&](const std::string& name, auto&& body) {
    std::vector<uint64_t> sums;
    std::string who;
    for (int t = 0; t < count; ++t) {
      Checksum sum;
      const FlushDenormals guard;
      body(*tables[t], sum);
      sums.push_back(sum.value());
      who += std::string(" ") + tables[t]->name;
    }
    for (int t = 0; t + 1 < count; ++t)
      if (sums[t] != sums.back()) {
        std::printf("%s: %s differs from portable\n", name.c_str(), tables[t]->name);
        equal = false;
      }
    std::printf("%s %016llx%s\n", name.c_str(), static_cast<unsigned long long>(sums.back()), who.c_str());
    std::fflush(stdout);
  };
  for (int f = 0; f < kNumForms; ++f)
    report(std::string("matmul_") + kFormNames[f],
           [&](const Kernels& k, Checksum& sum) { matmul(k, static_cast<Form>(f), sum); });
  const char* kv_names[] = {"attend_f32", "attend_bf16", "attend_q8"};
  for (int t = 0; t < 3; ++t)
    report(kv_names[t], [&](const Kernels& k, Checksum& sum) { attend(k, static_cast<KvType>(t), sum); });
  for (const char* name : {
#define SAMOVAR_KERNEL(function) #function,
#include "../kernels/kernels.inc"
       })
    if (std::string(name) != "attend_merge") // checked with attend
      report(name, [&](const Kernels& k, Checksum& sum) { rows(k, name, sum); });
  report("rope_angles", [](const Kernels&, Checksum& sum) { angles(sum); });
  report("natural_log", [](const Kernels&, Checksum& sum) { logarithms(sum); });
  return equal ? 0 : 1;
}

} // namespace
} // namespace samovar::test

int main() {
  return samovar::test::run();
}
