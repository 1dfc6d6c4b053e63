// The fastest that an instruction set can multiply: its product from registers, nothing around it.

// Whether a Dot gathers words before its sum (AVX2): it then needs two registers, but the next product waits
// for a single addition only.
constexpr bool kDotGathers = sizeof(Dot<4>) > sizeof(I);
// As many sums as keep two units busy through the latency of a product, or as registers hold beside weights.
constexpr int kPeakSums = kDotGathers ? 4 : kBf16Sums >= 16 ? 16 : 12;

// What is read again in each round, so that no product can be moved out of the loop.
SAMOVAR_INLINE void forget_memory(const void* p) {
  asm volatile("" : : "r"(p) : "memory");
}

inline int64_t peak_q8(int rounds) {
  constexpr int steps = 8, weights = 4, rows = kPeakSums / weights;
  alignas(64) int8_t a[rows][steps / 4 * 16];
  alignas(64) uint8_t codes[weights][kLanes * 4];
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < steps / 4 * 16; ++i)
      a[r][i] = static_cast<int8_t>((r * 61 + i * 37) % 255 - 127);
  for (int u = 0; u < weights; ++u)
    for (int i = 0; i < kLanes * 4; ++i)
      codes[u][i] = static_cast<uint8_t>((u * 5 + i * 7) % 16);
  I w[weights];
  Dot<4> sum[kPeakSums];
  unroll<weights>(SAMOVAR_BODY(auto u) { w[u] = iload(codes[u]); });
  unroll<kPeakSums>(SAMOVAR_BODY(auto s) { sum[s] = Dot<4>(iset1(0)); });
  const auto product = SAMOVAR_BODY(auto step, auto s) {
    sum[s].template add<step.value, step.value % 4>(w[s % weights], a[s / weights] + step / 4 * 16);
  };
  for (int round = 0; round < rounds; ++round) {
    if constexpr (kDotGathers) { // one by one, or the compiler keeps all products of the round at once
      unroll<kPeakSums>(SAMOVAR_BODY(auto s) {
        forget_memory(a);
        unroll<steps>(SAMOVAR_BODY(auto step) { product(step, s); });
      });
    } else {
      forget_memory(a);
      unroll<steps>(
          SAMOVAR_BODY(auto step) { unroll<kPeakSums>(SAMOVAR_BODY(auto s) { product(step, s); }); });
    }
  }
  alignas(64) int32_t totals[kPeakSums][kLanes];
  unroll<kPeakSums>(SAMOVAR_BODY(auto s) { istore(totals[s], sum[s].total()); });
  forget_memory(totals);
  return int64_t{rounds} * steps * kPeakSums * kLanes * 4;
}

// A tile as q8_block has it at best: so that loads are no limit, each of a row serves two vectors where
// registers hold their sums.
inline int64_t peak_scaled(int rounds) {
  constexpr int rows = kDotGathers ? 2 : 4, vectors = kLanes == 16 ? 2 : 1;
  alignas(64) int8_t a[rows][kBlock];
  alignas(64) uint8_t codes[8][vectors][kLanes * 4];
  float d[rows], scales[vectors][kLanes];
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kBlock; ++i)
      a[r][i] = static_cast<int8_t>((r * 61 + i * 37) % 255 - 127);
    d[r] = r % 2 == 0 ? 0.5f : -0.5f;
  }
  for (int u = 0; u < vectors; ++u) {
    for (int i = 0; i < kLanes; ++i)
      scales[u][i] = static_cast<float>(i - 7) * 0.125f;
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < kLanes * 4; ++i)
        codes[j][u][i] = static_cast<uint8_t>((j * 5 + i * 7 + u) % 16);
  }
  const auto each = SAMOVAR_BODY(auto body) {
    unroll<rows>(SAMOVAR_BODY(auto r) { unroll<vectors>(SAMOVAR_BODY(auto u) { body(r, u); }); });
  };
  F acc[vectors][rows];
  each(SAMOVAR_BODY(auto r, auto u) { acc[u][r] = zero(); });
  for (int round = 0; round < rounds; ++round) {
    forget_memory(a);
    Dot<4> sum[vectors][rows];
    each(SAMOVAR_BODY(auto r, auto u) { sum[u][r] = Dot<4>(iset1(0)); });
    unroll<4>(SAMOVAR_BODY(auto j) {
      I lo[vectors], hi[vectors];
      unroll<vectors>(SAMOVAR_BODY(auto u) { lo[u] = iload(codes[j][u]), hi[u] = iload(codes[4 + j][u]); });
      each(SAMOVAR_BODY(auto r, auto u) { sum[u][r].template add<2 * j.value, j.value>(lo[u], a[r]); });
      each(SAMOVAR_BODY(auto r, auto u) {
        sum[u][r].template add<2 * j.value + 1, j.value>(hi[u], a[r] + 16);
      });
    });
    F scale[vectors];
    unroll<vectors>(SAMOVAR_BODY(auto u) { scale[u] = load(scales[u]); });
    each(SAMOVAR_BODY(auto r, auto u) {
      acc[u][r] = fma(to_float(sum[u][r].total()), mul(scale[u], set1(d[r])), acc[u][r]);
    });
  }
  float totals[vectors][rows][kLanes];
  each(SAMOVAR_BODY(auto r, auto u) { store(totals[u][r], acc[u][r]); });
  forget_memory(totals);
  return int64_t{rounds} * rows * kBlock * vectors * kLanes;
}

// multiply(sum, weights, factor) makes `products` products in each lane.
template <class Multiply> SAMOVAR_INLINE int64_t peak_floats(int rounds, int products, Multiply multiply) {
  constexpr int steps = 8, weights = 3, sums = 12;
  float x[steps], columns[weights][kLanes];
  for (int i = 0; i < steps; ++i)
    x[i] = static_cast<float>(i % 2 == 0 ? i + 1 : -i); // 0 in all: the sums stay where they are
  for (int u = 0; u < weights; ++u)
    for (int i = 0; i < kLanes; ++i)
      columns[u][i] = static_cast<float>((u * 5 + i * 7) % 16) * 0.125f - 1.0f;
  F w[weights], sum[sums];
  unroll<weights>(SAMOVAR_BODY(auto u) { w[u] = load(columns[u]); });
  unroll<sums>(SAMOVAR_BODY(auto s) { sum[s] = set1(static_cast<float>(s)); });
  for (int round = 0; round < rounds; ++round) {
    forget_memory(x);
    unroll<steps>(SAMOVAR_BODY(auto step) {
      unroll<sums>(SAMOVAR_BODY(auto s) { sum[s] = multiply(sum[s], w[s % weights], x[step]); });
    });
  }
  float totals[sums][kLanes];
  unroll<sums>(SAMOVAR_BODY(auto s) { store(totals[s], sum[s]); });
  forget_memory(totals);
  return int64_t{rounds} * steps * sums * kLanes * products;
}

inline int64_t peak_f32(int rounds) {
  return peak_floats(rounds, 1, SAMOVAR_BODY(F sum, F w, float x) { return fma(set1(x), w, sum); });
}
