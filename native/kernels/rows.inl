// Kernels over one row of floats.

// Quantizes 32 floats; false if any is not finite.
SAMOVAR_INLINE bool quantize_block(const float* x, int8_t* q, Q8Block& block) {
  constexpr int vectors = 32 / kLanes;
  const I magnitude = iset1(0x7fffffff);
  F v[vectors];
  F most = zero();
  I odd = iset1(0); // x - x is 0 for a finite x only
  unroll<vectors>(SAMOVAR_BODY(auto i) {
    v[i] = load(x + i * kLanes);
    most = max(as_float(iand(as_int(v[i]), magnitude)), most);
    odd = ior(odd, as_int(sub(v[i], v[i])));
  });
  const float largest = max_of(most), inverse = 127.0f / largest;
  const bool finite = !any_bit(odd);
  if (!finite || !(inverse <= 0x1.fffffep+127f)) {
    __builtin_memset(q, 0, 32);
    block = Q8Block{};
    return finite;
  }
  const F scale = set1(inverse);
  I sums[2] = {iset1(0), iset1(0)};
  unroll<vectors>(SAMOVAR_BODY(auto i) {
    const I code = to_int(mul(v[i], scale));
    store_s8(q + i * kLanes, code);
    sums[i * 2 / vectors] = iadd(sums[i * 2 / vectors], code);
  });
  const int32_t lo = sum_of(sums[0]), hi = sum_of(sums[1]);
  const float d = largest / 127.0f;
  block = Q8Block{d, d * static_cast<float>(lo + hi), -(lo + hi), -hi};
  return true;
}

// quantize_four(x, codes, blocks) may quantize four blocks, or says that it has not.
template <class QuantizeFour>
SAMOVAR_INLINE bool quantize_blocks(const float* x, int k, int8_t* codes, Q8Block* blocks,
                                    QuantizeFour quantize_four) {
  bool finite = true;
  int b = 0;
  while ((b + 1) * kBlock <= k) {
    const bool four = (b + 4) * kBlock <= k;
    if (four && quantize_four(x + b * kBlock, codes + b * kBlock, blocks + b)) {
      b += 4;
      continue;
    }
    for (const int end = four ? b + 4 : b + 1; b < end; ++b)
      finite &= quantize_block(x + b * kBlock, codes + b * kBlock, blocks[b]);
  }
  if (b * kBlock < k) {
    float tail[kBlock] = {};
    for (int i = b * kBlock; i < k; ++i)
      tail[i - b * kBlock] = x[i];
    finite &= quantize_block(tail, codes + b * kBlock, blocks[b]);
  }
  return finite;
}

inline bool quantize_q8(const float* x, int k, int8_t* codes, Q8Block* blocks) {
  return quantize_blocks(
      x, k, codes, blocks, SAMOVAR_BODY(const float*, int8_t*, Q8Block*) { return false; });
}

inline bool round_bf16(const float* x, int k, uint8_t* out) {
  uint16_t* row = reinterpret_cast<uint16_t*>(out);
  I odd = iset1(0);
  for_vectors(
      k, SAMOVAR_BODY(int i, int count) {
        const F v = load_some(x + i, count);
        odd = ior(odd, as_int(sub(v, v)));
        int32_t bits[kLanes];
        istore(bits, shr<16>(bf16_bits(v)));
        for (int l = 0; l < count; ++l)
          row[i + l] = static_cast<uint16_t>(bits[l]);
      });
  __builtin_memset(row + k, 0, (round_up(k, 64) - k) * 2);
  return !any_bit(odd);
}

inline void rms_norm(const float* x, const float* w, const float* plus, int n, float eps, float* out) {
  Lanes16 squares = lanes16(0.0f);
  for_lanes16(
      squares, n, SAMOVAR_BODY(F & lane, int i, int count) {
        const F v = load_some(x + i, count);
        lane = fma(v, v, lane);
      });
  const float mean = sum16(squares) / static_cast<float>(n);
  const F factor = set1(1.0f / __builtin_sqrtf(mean + eps));
  for_vectors(
      n, SAMOVAR_BODY(int i, int count) {
        F v = mul(load_some(x + i, count), factor);
        if (w)
          v = mul(v, load_some(w + i, count));
        if (plus)
          v = add(v, load_some(plus + i, count));
        store_some(out + i, v, count);
      });
}

// out[i] = act(gate[i]) * up[i]
template <class Act>
SAMOVAR_INLINE void gated(const float* gate, const float* up, int n, float* out, Act act) {
  int i = 0;
  for (; i + kSeveral * kLanes <= n; i += kSeveral * kLanes) {
    F x[kSeveral];
    unroll<kSeveral>(SAMOVAR_BODY(auto v) { x[v] = load(gate + i + v * kLanes); });
    act(x);
    unroll<kSeveral>(
        SAMOVAR_BODY(auto v) { store(out + i + v * kLanes, mul(x[v], load(up + i + v * kLanes))); });
  }
  for_vectors(
      n - i, SAMOVAR_BODY(int j, int count) {
        F x[1] = {load_some(gate + i + j, count)};
        act(x);
        store_some(out + i + j, mul(x[0], load_some(up + i + j, count)), count);
      });
}

// Pairs that alternate in groups; what is read lies never before what was written.
template <class Act> SAMOVAR_INLINE void gated(const float* x, int group, int n, float* out, Act act) {
  for (int first = 0; first < n; first += group)
    gated(x + 2 * first, x + 2 * first + group, group, out + first, act);
}

inline void silu_mul(const float* x, int group, int n, float* out) {
  gated(x, group, n, out, SAMOVAR_BODY(auto& v) { silu(v); });
}

inline void gelu_tanh_mul(const float* x, int group, int n, float* out) {
  gated(x, group, n, out, SAMOVAR_BODY(auto& v) { gelu_tanh(v); });
}

inline void rope(float* x, const float* cos, const float* sin, int half) {
  for_vectors(
      half, SAMOVAR_BODY(int i, int count) {
        const F a = load_some(x + i, count), b = load_some(x + half + i, count);
        const F c = load_some(cos + i, count), s = load_some(sin + i, count);
        store_some(x + i, fma(a, c, sub(zero(), mul(b, s))), count);
        store_some(x + half + i, fma(b, c, mul(a, s)), count);
      });
}

inline void scale(const float* x, float s, int n, float* out) {
  for_vectors(
      n,
      SAMOVAR_BODY(int i, int count) { store_some(out + i, mul(load_some(x + i, count), set1(s)), count); });
}

inline void divide(const float* x, float s, int n, float* out) {
  for_vectors(
      n,
      SAMOVAR_BODY(int i, int count) { store_some(out + i, div(load_some(x + i, count), set1(s)), count); });
}

inline bool all_finite(const float* x, int n) {
  I odd = iset1(0); // as in quantize_block
  for_vectors(
      n, SAMOVAR_BODY(int i, int count) {
        const F v = load_some(x + i, count);
        odd = ior(odd, as_int(sub(v, v)));
      });
  return !any_bit(odd);
}

inline int argmax(const float* x, int n) {
  constexpr int vectors = 16 / kLanes;
  F best[vectors];
  I where[vectors], here[vectors];
  int32_t lane[16];
  for (int l = 0; l < 16; ++l)
    lane[l] = l;
  unroll<vectors>(SAMOVAR_BODY(auto v) {
    best[v] = set1(-kInfinity);
    where[v] = iset1(-1);
    here[v] = iload(lane + v * kLanes);
  });
  int i = 0;
  for (; i + 16 <= n; i += 16)
    unroll<vectors>(SAMOVAR_BODY(auto v) {
      const F value = load(x + i + v * kLanes);
      where[v] = as_int(select_lt(best[v], value, as_float(here[v]), as_float(where[v])));
      best[v] = select_lt(best[v], value, value, best[v]);
      here[v] = iadd(here[v], iset1(16));
    });
  float values[16];
  int32_t at[16];
  unroll<vectors>(SAMOVAR_BODY(auto v) {
    store(values + v * kLanes, best[v]);
    istore(at + v * kLanes, where[v]);
  });
  int result = -1;
  float largest = -kInfinity;
  for (int l = 0; l < 16; ++l)
    if (at[l] >= 0 && (values[l] > largest || (values[l] == largest && at[l] < result)))
      largest = values[l], result = at[l];
  for (; i < n; ++i)
    if (x[i] > largest)
      largest = x[i], result = i;
  if (result >= 0)
    return result;
  for (i = 0; i < n; ++i) // nothing above -inf
    if (x[i] == x[i])
      return i;
  return 0;
}

inline float exp_sum(const float* x, int n, float shift, float factor, float* out) {
  Lanes16 sum = lanes16(0.0f);
  for_lanes16(
      sum, n, SAMOVAR_BODY(F & lane, int i, int count) {
        const F e = exp(mul(sub(load_some(x + i, count), set1(shift)), set1(factor)));
        store_some(out + i, e, count);
        if (count == kLanes)
          lane = add(lane, e);
        else { // lanes past the end hold exp of padding
          float lanes[kLanes];
          store(lanes, e);
          lane = add(lane, load_some(lanes, count));
        }
      });
  return sum16(sum);
}
