// What follows from an instruction set's vector type: compile-time loops, 16 virtual lanes, tails.

constexpr int kParts = 16 / kLanes; // vectors that hold the 16 lanes of a panel

template <int n> struct Index {
  static constexpr int value = n;
  constexpr operator int() const { return n; }
};
template <int... n> struct Indices {};
template <int n, int... rest> struct MakeIndices : MakeIndices<n - 1, n - 1, rest...> {};
template <int... rest> struct MakeIndices<0, rest...> {
  using type = Indices<rest...>;
};
template <class Body, int... n> SAMOVAR_INLINE void unroll_over(Body body, Indices<n...>) {
  (body(Index<n>{}), ...);
}
// body(Index<0>), body(Index<1>), ...: the index is a constant, so arrays stay in registers.
template <int n, class Body> SAMOVAR_INLINE void unroll(Body body) {
  unroll_over(body, typename MakeIndices<n>::type{});
}
#define SAMOVAR_BODY(...) [&](__VA_ARGS__) __attribute__((always_inline))

// Loads and stores of the first `count` lanes; the rest read as zero.
[[gnu::noinline]] inline F load_first(const float* p, int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i)
    lanes[i] = p[i];
  return load(lanes);
}
[[gnu::noinline]] inline void store_first(float* p, F x, int count) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < count; ++i)
    p[i] = lanes[i];
}
SAMOVAR_INLINE F load_some(const float* p, int count) {
  return count >= kLanes ? load(p) : load_first(p, count);
}
SAMOVAR_INLINE void store_some(float* p, F x, int count) {
  if (count >= kLanes)
    store(p, x);
  else
    store_first(p, x, count);
}

// body(i, count) for each vector of n floats; only the last may have count < kLanes.
template <class Body> SAMOVAR_INLINE void for_vectors(int n, Body body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body(i, kLanes);
  if (i < n)
    body(i, n - i);
}

// The 16 virtual lanes of sum16 and max16.
struct Lanes16 {
  F part[kParts];
};
SAMOVAR_INLINE Lanes16 lanes16(float x) {
  Lanes16 r;
  unroll<kParts>(SAMOVAR_BODY(auto p) { r.part[p] = set1(x); });
  return r;
}
// body(vector of lanes, i, count) for each vector of n floats, i mod 16 being its first lane.
template <class Body> SAMOVAR_INLINE void for_lanes16(Lanes16& lanes, int n, Body body) {
  int i = 0;
  for (; i + 16 <= n; i += 16)
    unroll<kParts>(SAMOVAR_BODY(auto p) { body(lanes.part[p], i + p * kLanes, kLanes); });
  unroll<kParts>(SAMOVAR_BODY(auto p) {
    const int count = n - i - p * kLanes;
    if (count > 0)
      body(lanes.part[p], i + p * kLanes, count < kLanes ? count : kLanes);
  });
}
// The tree over lanes: l + 8, then + 4, + 2, + 1.
template <class Fold> SAMOVAR_INLINE float fold16(const Lanes16& lanes, Fold fold) {
  float x[16];
  unroll<kParts>(SAMOVAR_BODY(auto p) { store(x + p * kLanes, lanes.part[p]); });
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; ++l)
      x[l] = fold(x[l], x[l + width]);
  return x[0];
}
SAMOVAR_INLINE float sum16(const Lanes16& lanes) {
  return fold16(lanes, SAMOVAR_BODY(float a, float b) { return a + b; });
}
SAMOVAR_INLINE float max16(const Lanes16& lanes) {
  return fold16(lanes, SAMOVAR_BODY(float a, float b) { return a > b ? a : b; });
}

constexpr float kInfinity = __builtin_inff();
constexpr int32_t kUpperHalf = static_cast<int32_t>(0xffff0000u);

// Round to bf16, to nearest even, left in the upper half of each lane; the lower half is not cleared.
SAMOVAR_INLINE I bf16_upper(F x) {
  const I u = as_int(x);
  return iadd(iadd(u, iset1(0x7fff)), iand(shr<16>(u), iset1(1)));
}
SAMOVAR_INLINE I bf16_bits(F x) {
  return iand(bf16_upper(x), iset1(kUpperHalf));
}
// The pairs of bf16 that bf16_even and bf16_odd take apart.
SAMOVAR_INLINE I bf16_pair(F even, F odd) {
  return ior(shr<16>(bf16_upper(even)), bf16_bits(odd));
}
SAMOVAR_INLINE F round_to_bf16(F x) {
  return as_float(bf16_bits(x));
}
// The two bf16 of each 32-bit word.
SAMOVAR_INLINE F bf16_even(I pair) {
  return as_float(shl<16>(pair));
}
SAMOVAR_INLINE F bf16_odd(I pair) {
  return as_float(iand(pair, iset1(kUpperHalf)));
}

// acc[u][r] += the products of 16 pairs of bf16 in the order of AMX's TDPBF16PS: even and odd ones apart from
// zero, then added together, then to acc.  pair(i, u) is a vector of pairs, value(odd, i, r) the factor of
// all its lanes.  If both sums of all do not fit in registers, the odd ones follow the even ones.
template <int rows, int units, class Pair, class Value>
SAMOVAR_INLINE void add_bf16_pairs(Pair pair, Value value, F (&acc)[units][rows]) {
  constexpr int passes = 2 * rows * units <= kBf16Sums ? 1 : 2;
  F sum[2][units][rows];
  const auto each = [&](auto body) __attribute__((always_inline)) {
    unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { body(u, r); }); });
  };
  each(SAMOVAR_BODY(auto u, auto r) { sum[0][u][r] = sum[1][u][r] = zero(); });
  unroll<passes>(SAMOVAR_BODY(auto pass) {
    for (int i = 0; i < 16; ++i)
      unroll<units>(SAMOVAR_BODY(auto u) {
        const I both = pair(i, u);
        unroll<2 / passes>(SAMOVAR_BODY(auto second) {
          constexpr int odd = pass.value + second.value;
          const F factor = odd ? bf16_odd(both) : bf16_even(both);
          unroll<rows>(SAMOVAR_BODY(auto r) {
            sum[odd][u][r] = fma(set1(value(Index<odd>{}, i, r)), factor, sum[odd][u][r]);
          });
        });
      });
  });
  each(SAMOVAR_BODY(auto u, auto r) { acc[u][r] = add(acc[u][r], add(sum[0][u][r], sum[1][u][r])); });
}
