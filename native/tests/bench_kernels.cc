// Speed of the matmuls, one thread: GB/s of weights at one row, MACs a cycle-free unit (G/s) at more.
//
// bench_kernels [table] [form] [k] [n]: n outputs of k; each cell is the best of a few short runs.
#include "../cpu.h"
#include "../kernels/kernels.h"
#include "test_data.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

using namespace samovar;
using namespace samovar::test;

namespace {

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_of(int times, const auto& body) {
  body();
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const double s = seconds_of(body);
    best = s < best ? s : best;
  }
  return best;
}

void bench_matmul(const Kernels& kernels, Form form, int k, int n) {
  Random random(1);
  const RowType type = input_row(form);
  const int64_t stride = row_bytes(type, k), panel = panel_bytes(form, k), bytes = panel * ((n + 15) / 16);
  Buffer x(stride * 64), w(bytes);
  for (int64_t done = 0, some; done < bytes; done += some) { // one panel's bits will do for all
    some = bytes - done < panel ? bytes - done : panel;
    if (done == 0)
      fill_panels(form, w.data(), some, random);
    else
      std::memcpy(w.data() + done, w.data(), some);
  }
  std::vector<float> row(k), out(static_cast<size_t>(n) * 64);
  for (int r = 0; r < 64; ++r) {
    for (float& v : row)
      v = random.activation();
    uint8_t* to = x.data() + r * stride;
    if (type == RowType::Q8)
      quantize_q8_row(kernels, row.data(), k, to);
    else if (type == RowType::BF16)
      kernels.round_bf16(row.data(), k, to);
    else
      std::memcpy(to, row.data(), k * 4);
  }
  std::printf("%-9s %-5s k=%d n=%d %6.1f MB:", kernels.name, kFormNames[static_cast<int>(form)], k, n,
              bytes * 1e-6);
  for (int rows : {1, 2, 4, 6, 8, 16, 64}) {
    const MatmulArgs args = matmul_args(x, rows, w, form, k, n, out.data(), n);
    const double s =
        best_of(bytes * rows > 200000000 ? 3 : 9, [&] { kernels.matmul[static_cast<int>(form)](args); });
    if (rows == 1)
      std::printf(" %5.1f GB/s |", bytes / s * 1e-9);
    std::printf(" M=%d %.0f", rows, static_cast<double>(rows) * k * n / s * 1e-9);
  }
  std::printf(" GMAC/s\n");
}

void bench_attend(const Kernels& kernels, KvType type, int hd, int rows) {
  const int sequences = 64; // chunks of 512 tokens, so that decoding reads from beyond L2
  const int64_t page = kv_page_bytes(type, hd);
  Buffer cache(page * 16 * sequences);
  Random random(3);
  std::vector<float> k(hd), v(hd), q(hd * 16), m(16), l(16), o(16 * hd);
  for (float& x : q)
    x = random.real();
  for (int t = 0; t < 512; ++t) {
    for (float& x : k)
      x = random.real();
    for (float& x : v)
      x = random.real();
    kernels.kv_store[static_cast<int>(type)](k.data(), v.data(), hd, t % 32, cache.data() + t / 32 * page);
  }
  for (int s = 1; s < sequences; ++s)
    std::memcpy(cache.data() + s * 16 * page, cache.data(), 16 * page);
  std::vector<const float*> queries;
  std::vector<int32_t> first(16, 0), last(16, 511);
  for (int r = 0; r < 16; ++r)
    queries.push_back(q.data() + r * hd);
  const double s = best_of(3, [&] {
    for (int c = 0; c < sequences; ++c) {
      const uint8_t* pages[16];
      for (int p = 0; p < 16; ++p)
        pages[p] = cache.data() + (c * 16 + p) * page;
      AttendArgs args{};
      args.q = queries.data();
      args.rows = rows;
      args.hd = hd;
      args.first = first.data();
      args.last = last.data();
      args.pages = pages;
      args.num_pages = 16;
      args.scale = 0.125f;
      args.m = m.data();
      args.l = l.data();
      args.o = o.data();
      args.o_stride = hd;
      kernels.attend[static_cast<int>(type)](args);
    }
  });
  const char* names[] = {"f32", "bf16", "q8"};
  std::printf("%-9s attend %-4s hd=%d rows=%d: %.2f us a chunk, %.1f GB/s, %.0f GMAC/s\n", kernels.name,
              names[static_cast<int>(type)], hd, rows, s / sequences * 1e6, page * 16 * sequences / s * 1e-9,
              2.0 * rows * hd * 512 * sequences / s * 1e-9);
}

void bench_rows(const Kernels& kernels) {
  const int n = 1536, times = 2000;
  Random random(5);
  std::vector<float> x(n), y(n), z(n), pairs(2 * n);
  Buffer row(row_bytes(RowType::Q8, n));
  for (float& v : x)
    v = random.activation();
  for (float& v : y)
    v = random.activation();
  for (float& v : pairs)
    v = random.activation();
  const auto show = [&](const char* name, const auto& body) {
    const double s = best_of(3, [&] {
      for (int i = 0; i < times; ++i)
        body();
    });
    std::printf(" %s %.0f ns", name, s / times * 1e9);
  };
  std::printf("%-9s %d floats:", kernels.name, n);
  show("quantize_q8", [&] { quantize_q8_row(kernels, x.data(), n, row.data()); });
  show("rms_norm", [&] { kernels.rms_norm(x.data(), y.data(), nullptr, n, 1e-5f, z.data()); });
  show("silu_mul", [&] { kernels.silu_mul(pairs.data(), n, n, z.data()); });
  show("gelu_tanh_mul", [&] { kernels.gelu_tanh_mul(pairs.data(), n, n, z.data()); });
  show("argmax", [&] { kernels.argmax(x.data(), n); });
  show("exp_sum", [&] { kernels.exp_sum(x.data(), n, 0, 1, z.data()); });
  std::printf("\n");
}

} // namespace

int main(int argc, char** argv) {
  const std::string table = argc > 1 ? argv[1] : "all", form = argc > 2 ? argv[2] : "all";
  const int k = argc > 3 ? std::atoi(argv[3]) : 576, n = argc > 4 ? std::atoi(argv[4]) : 1536;
  const Kernels* tables[8];
  const int count = available_kernels(tables, 8);
  const FlushDenormals guard;
  for (int t = 0; t < count; ++t) {
    if (table == "all" ? std::string(tables[t]->name) == "portable" : table != tables[t]->name)
      continue;
    for (int f = 0; f < kNumForms; ++f)
      if (form == "all" || form == kFormNames[f])
        bench_matmul(*tables[t], static_cast<Form>(f), k, n);
    if (form != "all" && form != "rows")
      continue;
    bench_rows(*tables[t]);
    for (KvType type : {KvType::F32, KvType::BF16, KvType::Q8})
      for (int rows : {1, 3, 15})
        bench_attend(*tables[t], type, 64, rows);
  }
}
