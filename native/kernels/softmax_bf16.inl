// Softmax over the finite scores of a chunk for AVX-512 with BF16: the bits of attend.inl, in fewer
// instructions.

constexpr int kScoreStride = kContextChunk + 16; // so that rows do not share a few sets of L1

struct ChunkScores {
  alignas(64) float s[kMaxAttendRows][kScoreStride];
  alignas(64) uint16_t p[kContextChunk / kPageTokens][kMaxAttendRows][kPageTokens]; // bf16
};

// exp(x) with the bits of math.inl for x <= 0, rounded to bf16; 0 where `seen` is not.
template <int n> SAMOVAR_INLINE void exp_bf16(const F (&x)[n], __mmask16 seen, __m256i (&out)[n]) {
  F p[n], whole[n], t[n];
  exp_parts(x, p, whole, t);
  unroll<n>(SAMOVAR_BODY(auto i) {
    // No result is subnormal, so that scaling is exact, and so is what the conversion makes of it.
    const __mmask16 large = _mm512_mask_cmp_ps_mask(seen, x[i], set1(-86.9f), _CMP_NLT_UQ);
    p[i] = _mm512_maskz_scalef_ps(large, p[i], whole[i]);
  });
  unroll<n>(SAMOVAR_BODY(auto i) { out[i] = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p[i])); });
}

// sum16 and max16 of one vector: the same tree, in registers.
template <class Fold> SAMOVAR_INLINE float fold_vector(F x, Fold fold) {
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = fold(x, _mm512_permute_ps(x, 0x4e));
  return _mm512_cvtss_f32(fold(x, _mm512_permute_ps(x, 0xb1)));
}

// body(Index<n>, first, lanes that are seen) for all vectors that have some: `several` at once where all of
// their lanes are seen.
template <int several, class Body> SAMOVAR_INLINE void for_seen(Span seen, Body body) {
  const int last = seen.last / 16;
  const auto all = static_cast<__mmask16>(0xffff);
  const auto head = static_cast<__mmask16>(all << (seen.first % 16));
  const auto tail = static_cast<__mmask16>(all >> (15 - seen.last % 16));
  int i = seen.first / 16;
  if (i == last)
    return body(Index<1>{}, i, static_cast<__mmask16>(head & tail));
  if (head != all)
    body(Index<1>{}, i++, head);
  const int end = tail == all ? last + 1 : last;
  for (; i + several <= end; i += several)
    body(Index<several>{}, i, all);
  for (; i < end; ++i)
    body(Index<1>{}, i, all);
  if (end == last)
    body(Index<1>{}, last, tail);
}

// Larger scores have larger products with the scale, rounded too, so the largest is found before it.
SAMOVAR_INLINE float largest_score(const float* s, Span seen, float scale) {
  constexpr int several = kSeveral;
  const F nothing = set1(-kInfinity);
  F largest[several];
  unroll<several>(SAMOVAR_BODY(auto i) { largest[i] = nothing; });
  for_seen<several>(
      seen, SAMOVAR_BODY(auto n, int first, __mmask16 lanes) {
        unroll<n.value>(SAMOVAR_BODY(auto i) {
          largest[i] = max(_mm512_mask_loadu_ps(nothing, lanes, s + (first + i) * 16), largest[i]);
        });
      });
  unroll<several - 1>(SAMOVAR_BODY(auto i) { largest[0] = max(largest[i + 1], largest[0]); });
  return fold_vector(largest[0], SAMOVAR_BODY(F a, F b) { return max(a, b); }) * scale;
}

// Turns the scores of pages [page, end) of a row into bf16 weights, zero outside `seen`; returns their sum.
SAMOVAR_INLINE float softmax_row(ChunkScores& t, int row, int page, int end, Span seen, F scale, F shift) {
  const float* s = t.s[row];
  const auto weights = SAMOVAR_BODY(int i) {
    return reinterpret_cast<__m256i*>(t.p[i / 2][row] + i % 2 * 16);
  };
  F sum = zero();
  for (int i = 2 * page; i < seen.first / 16; ++i)
    *weights(i) = _mm256_setzero_si256();
  for_seen<kSeveral>(
      seen, SAMOVAR_BODY(auto n, int first, __mmask16 lanes) {
        F x[n.value];
        __m256i e[n.value];
        unroll<n.value>(SAMOVAR_BODY(auto i) { x[i] = sub(mul(load(s + (first + i) * 16), scale), shift); });
        exp_bf16(x, lanes, e);
        unroll<n.value>(SAMOVAR_BODY(auto i) {
          sum = add(sum, as_float(shl<16>(_mm512_cvtepu16_epi32(e[i]))));
          *weights(first + i) = e[i];
        });
      });
  for (int i = seen.last / 16 + 1; i < 2 * end; ++i)
    *weights(i) = _mm256_setzero_si256();
  return fold_vector(sum, SAMOVAR_BODY(F a, F b) { return add(a, b); });
}

// All rows: first maxima, so that a row need not wait for its own.
SAMOVAR_INLINE void softmax_rows(const AttendArgs& a, ChunkScores& t, const Span* spans, int page, int end) {
  const F scale = set1(a.scale);
  for (int r = 0; r < a.rows; ++r)
    if (spans[r].first <= spans[r].last)
      a.m[r] = largest_score(t.s[r], spans[r], a.scale);
  for (int r = 0; r < a.rows; ++r)
    if (spans[r].first <= spans[r].last)
      a.l[r] = softmax_row(t, r, page, end, spans[r], scale, set1(a.m[r]));
    else
      for (int p = page; p < end; ++p)
        __builtin_memset(t.p[p][r], 0, sizeof t.p[p][r]);
}
