// Elementary functions by fixed polynomials: the same operations, in the same order, everywhere.

// Several vectors side by side: one alone waits for itself most of the time, and a processor does not look
// far enough ahead to find others.
constexpr int kSeveral = kParts > 1 ? 2 : 4;

// exp(x) = p * 2^whole for x of at most 89; t = whole + kRound has that integer in its low bits.
constexpr float kRound = 12582912.0f; // 1.5 * 2^23
template <int n> SAMOVAR_INLINE void exp_parts(const F (&x)[n], F (&p)[n], F (&whole)[n], F (&t)[n]) {
  F q[n];
  unroll<n>(SAMOVAR_BODY(auto i) { t[i] = fma(x[i], set1(0x1.715476p+0f), set1(kRound)); });
  unroll<n>(SAMOVAR_BODY(auto i) { whole[i] = sub(t[i], set1(kRound)); });
  unroll<n>(SAMOVAR_BODY(auto i) { p[i] = fma(whole[i], set1(-0x1.62e4p-1f), x[i]); }); // x - whole * ln 2,
  unroll<n>(SAMOVAR_BODY(auto i) { p[i] = fma(whole[i], set1(-0x1.7f7d1cp-20f), p[i]); }); // in two parts
  // exp(r) = 1 + r + r^2 q(r) on |r| <= 0.35; minimax q, relative error 3.3e-9
  unroll<n>(SAMOVAR_BODY(auto i) { q[i] = fma(set1(0x1.6a1a8ep-10f), p[i], set1(0x1.123fb4p-7f)); });
  unroll<n>(SAMOVAR_BODY(auto i) { q[i] = fma(q[i], p[i], set1(0x1.555916p-5f)); });
  unroll<n>(SAMOVAR_BODY(auto i) { q[i] = fma(q[i], p[i], set1(0x1.55548ap-3f)); });
  unroll<n>(SAMOVAR_BODY(auto i) { q[i] = fma(q[i], p[i], set1(0x1.fffffcp-2f)); });
  unroll<n>(SAMOVAR_BODY(auto i) { p[i] = add(fma(q[i], mul(p[i], p[i]), p[i]), set1(1.0f)); });
}

// exp(x), about 1 ulp.  Below -86.9 (results under 2^-125) it is 0, so -inf gives 0; NaN gives inf.
template <int n> SAMOVAR_INLINE void exp(F (&x)[n]) {
  F y[n], p[n], whole[n], t[n];
  unroll<n>(SAMOVAR_BODY(auto i) { y[i] = min(x[i], set1(89.0f)); }); // 2^127 * 2 * 1.3 is already inf
  exp_parts(y, p, whole, t);
  unroll<n>(SAMOVAR_BODY(auto i) {
    // 2^whole as 2 * 2^(whole - 1): it may be 128
    const I half = shl<23>(iadd(as_int(t[i]), iset1(126 - __builtin_bit_cast(int32_t, kRound))));
    const F result = mul(add(p[i], p[i]), as_float(half));
    x[i] = select_lt(x[i], set1(-86.9f), zero(), result);
  });
}
SAMOVAR_INLINE F exp(F x) {
  F one[1] = {x};
  exp(one);
  return one[0];
}

// x / (1 + exp(-x))
template <int n> SAMOVAR_INLINE void silu(F (&x)[n]) {
  F e[n];
  unroll<n>(SAMOVAR_BODY(auto i) { e[i] = sub(zero(), x[i]); });
  exp(e);
  unroll<n>(SAMOVAR_BODY(auto i) { x[i] = div(x[i], add(set1(1.0f), e[i])); });
}

// x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
template <int n> SAMOVAR_INLINE void gelu_tanh(F (&x)[n]) {
  F e[n];
  unroll<n>(SAMOVAR_BODY(auto i) { e[i] = fma(mul(mul(x[i], x[i]), x[i]), set1(0.044715f), x[i]); });
  unroll<n>(SAMOVAR_BODY(auto i) { e[i] = mul(e[i], set1(-1.5957691216f)); });
  exp(e);
  unroll<n>(SAMOVAR_BODY(auto i) { x[i] = div(x[i], add(set1(1.0f), e[i])); });
}
