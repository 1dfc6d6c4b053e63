// Elementary functions by fixed polynomials: the same operations, in the same order, everywhere.

// exp(x), about 1 ulp.  Below -86.9 (results under 2^-125) it is 0, so -inf gives 0; NaN gives inf.
SAMOVAR_INLINE F exp(F x) {
  constexpr float kRound = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const F y = min(x, set1(89.0f));      // 2^127 * 2 * 1.3 is already inf
  const F t = fma(y, set1(0x1.715476p+0f), set1(kRound));
  const F n = sub(t, set1(kRound));
  F r = fma(n, set1(-0x1.62e4p-1f), y); // y - n ln 2, in two parts
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  // exp(r) = 1 + r + r^2 q(r) on |r| <= 0.35; minimax q, relative error 3.3e-9
  F q = fma(set1(0x1.6a1a8ep-10f), r, set1(0x1.123fb4p-7f));
  q = fma(q, r, set1(0x1.555916p-5f));
  q = fma(q, r, set1(0x1.55548ap-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  const F p = add(fma(q, mul(r, r), r), set1(1.0f));
  // 2^n as 2 * 2^(n-1): n may be 128
  const I half = shl<23>(iadd(as_int(t), iset1(126 - __builtin_bit_cast(int32_t, kRound))));
  const F result = mul(add(p, p), as_float(half));
  return select_lt(x, set1(-86.9f), zero(), result);
}

// x / (1 + exp(-x))
SAMOVAR_INLINE F silu(F x) {
  return div(x, add(set1(1.0f), exp(sub(zero(), x))));
}

// x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
SAMOVAR_INLINE F gelu_tanh(F x) {
  const F inner = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return div(x, add(set1(1.0f), exp(mul(inner, set1(-1.5957691216f)))));
}
