// Attention on matrix tiles: scores of two pages at a time, softmax, then values by 64 dims.
//
// Keys and values lie in pages as tiles want them: 16 pairs of dims (tokens) by 16 tokens (dims).

constexpr int kScoreStride = kContextChunk + 16; // so that rows do not share a few sets of L1

// exp(x) with the bits of math.inl for x <= 0, rounded to bf16; 0 where `seen` is not.
SAMOVAR_INLINE __m256i exp_bf16(F x, __mmask16 seen) {
  constexpr float kRound = 12582912.0f;
  const F t = fma(x, set1(0x1.715476p+0f), set1(kRound));
  const F n = sub(t, set1(kRound));
  F r = fma(n, set1(-0x1.62e4p-1f), x);
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  F q = fma(set1(0x1.6a1a8ep-10f), r, set1(0x1.123fb4p-7f));
  q = fma(q, r, set1(0x1.555916p-5f));
  q = fma(q, r, set1(0x1.55548ap-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  const F p = add(fma(q, mul(r, r), r), set1(1.0f));
  // No result is subnormal, so that scaling by 2^n is exact, and so is what the conversion makes of it.
  const __mmask16 large = _mm512_mask_cmp_ps_mask(seen, x, set1(-86.9f), _CMP_NLT_UQ);
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_scalef_ps(large, p, n)));
}

struct TileScores {
  alignas(64) float s[kMaxAttendRows][kScoreStride];
  alignas(64) uint16_t p[kContextChunk / kPageTokens][kMaxAttendRows][kPageTokens]; // bf16
};

// Tiles 0..3 are sums, 4 queries, 5..7 keys.
template <int pages>
SAMOVAR_INLINE void score_tiles(const uint16_t* q, const uint8_t* const* keys, int hd, float* scores) {
  constexpr int stride = kPageTokens * 4;
  unroll<2 * pages>(SAMOVAR_BODY(auto c) { tile_zero<c.value>(); });
  for (int d = 0; d < hd; d += 32) {
    tile_load<4>(q + d * kMaxAttendRows, 64);
    unroll<2 * pages>(SAMOVAR_BODY(auto c) {
      tile_load<5 + c.value % 3>(keys[c / 2] + d / 2 * stride + c % 2 * 64, stride);
      tile_dot_bf16<c.value, 4, 5 + c.value % 3>();
    });
  }
  unroll<2 * pages>(
      SAMOVAR_BODY(auto c) { tile_store<c.value>(scores + c * 16, kScoreStride * sizeof(float)); });
}

// sum16 and max16 of one vector: the same tree, in registers.
template <class Fold> SAMOVAR_INLINE float fold_vector(F x, Fold fold) {
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = fold(x, _mm512_permute_ps(x, 0x4e));
  return _mm512_cvtss_f32(fold(x, _mm512_permute_ps(x, 0xb1)));
}

// body(i, lanes that are seen) for each vector i that has some
template <class Body> SAMOVAR_INLINE void for_seen(Span seen, Body body) {
  const int begin = seen.first / 16, last = seen.last / 16;
  const auto head = static_cast<__mmask16>(0xffffu << (seen.first % 16));
  const auto tail = static_cast<__mmask16>(0xffffu >> (15 - seen.last % 16));
  body(begin, begin < last ? head : static_cast<__mmask16>(head & tail));
  for (int i = begin + 1; i < last; ++i)
    body(i, static_cast<__mmask16>(0xffff));
  if (begin < last)
    body(last, tail);
}

SAMOVAR_INLINE float largest_score(const float* s, Span seen, F scale) {
  const F nothing = set1(-kInfinity);
  F largest = nothing;
  for_seen(
      seen, SAMOVAR_BODY(int i, __mmask16 lanes) {
        largest = max(_mm512_mask_mul_ps(nothing, lanes, load(s + i * 16), scale), largest);
      });
  return fold_vector(largest, SAMOVAR_BODY(F a, F b) { return max(a, b); });
}

// Turns the scores of pages [page, end) of a row into bf16 weights, zero outside `seen`; returns their sum.
SAMOVAR_INLINE float softmax_row(TileScores& t, int row, int page, int end, Span seen, F scale, F shift) {
  const float* s = t.s[row];
  const auto weights = SAMOVAR_BODY(int i) {
    return reinterpret_cast<__m256i*>(t.p[i / 2][row] + i % 2 * 16);
  };
  F sum = zero();
  for (int i = 2 * page; i < seen.first / 16; ++i)
    *weights(i) = _mm256_setzero_si256();
  for_seen(
      seen, SAMOVAR_BODY(int i, __mmask16 lanes) {
        const __m256i e = exp_bf16(sub(mul(load(s + i * 16), scale), shift), lanes);
        sum = add(sum, as_float(shl<16>(_mm512_cvtepu16_epi32(e))));
        *weights(i) = e;
      });
  for (int i = seen.last / 16 + 1; i < 2 * end; ++i)
    *weights(i) = _mm256_setzero_si256();
  return fold_vector(sum, SAMOVAR_BODY(F a, F b) { return add(a, b); });
}

// o[.][d ...] += weights . values of some pages.  Tiles 0..3 are sums, 4 weights, 5..7 values.
template <int count, class Values>
SAMOVAR_INLINE void value_tiles(const TileScores& t, int page, int end, Values values, int hd, int d,
                                bool more, float* o, int64_t o_stride) {
  unroll<count>(SAMOVAR_BODY(auto c) {
    if (more)
      tile_load<c.value>(o + d + c * 16, o_stride * static_cast<int64_t>(sizeof(float)));
    else
      tile_zero<c.value>();
  });
  for (int p = page; p < end; ++p) {
    tile_load<4>(t.p[p], 64);
    unroll<count>(SAMOVAR_BODY(auto c) {
      tile_load<5 + c.value % 3>(values(p) + (d + c * 16) * 4, hd * 4);
      tile_dot_bf16<c.value, 4, 5 + c.value % 3>();
    });
  }
  unroll<count>(SAMOVAR_BODY(auto c) {
    tile_store<c.value>(o + d + c * 16, o_stride * static_cast<int64_t>(sizeof(float)));
  });
}

template <KvType type> void attend_tiles(const AttendArgs& a) {
  constexpr int64_t kWidened = kv_half_bytes(KvType::BF16, kMaxHeadDim);
  alignas(64) uint16_t q[kMaxHeadDim * kMaxAttendRows]; // bf16 [hd / 32][16 rows][32]
  alignas(64) TileScores t;
  alignas(64) uint8_t widened[type == KvType::Q8 ? 2 * kWidened : 64];
  const int hd = a.hd;
  if (type == KvType::Q8 && a.rows < 4) // widening is most of the work, and quicker between registers
    return attend_few_rows(type, a);
  Span spans[kMaxAttendRows];
  const Span seen = visible_spans(a, spans);
  for (int r = 0; r < a.rows; ++r) {
    a.m[r] = -kInfinity;
    a.l[r] = 0;
    for (int d = 0; d < hd; d += 16)
      _mm256_store_si256(reinterpret_cast<__m256i*>(q + (d / 32 * kMaxAttendRows + r) * 32 + d % 32),
                         _mm512_cvtepi32_epi16(shr<16>(bf16_bits(load(a.q[r] + d)))));
  }
  const auto clear = SAMOVAR_BODY(float x) {
    for (int r = 0; r < a.rows; ++r)
      for (int d = 0; d < hd; d += 16) {
        float* o = a.o + r * a.o_stride + d;
        store(o, x == 0 ? zero() : add(load(o), zero()));
      }
  };
  if (seen.first > seen.last)
    return clear(0);
  const int page = seen.first / kPageTokens, end = seen.last / kPageTokens + 1;

  const Tiles guard(a.rows, 0x1f);
  for (int p = page; p < end; p += 2) {
    const uint8_t* keys[2] = {a.pages[p], a.pages[p + 1 < end ? p + 1 : p]};
    if constexpr (type == KvType::Q8)
      for (int i = 0; i < 2 && p + i < end; ++i) {
        widen_keys(keys[i], hd, widened + i * kWidened);
        keys[i] = widened + i * kWidened;
      }
    if (p + 1 < end)
      score_tiles<2>(q, keys, hd, t.s[0] + p * kPageTokens);
    else
      score_tiles<1>(q, keys, hd, t.s[0] + p * kPageTokens);
  }
  // All maxima first: a row need not wait for its own.
  const F scale = set1(a.scale);
  for (int r = 0; r < a.rows; ++r)
    if (spans[r].first <= spans[r].last)
      a.m[r] = largest_score(t.s[r], spans[r], scale);
  for (int r = 0; r < a.rows; ++r)
    if (spans[r].first <= spans[r].last)
      a.l[r] = softmax_row(t, r, page, end, spans[r], scale, set1(a.m[r]));
    else
      for (int p = page; p < end; ++p)
        __builtin_memset(t.p[p][r], 0, sizeof t.p[p][r]);

  const auto add_values = SAMOVAR_BODY(int first, int stop, bool more, auto values) {
    for (int d = 0; d < hd; d += 64)
      if (d + 64 <= hd)
        value_tiles<4>(t, first, stop, values, hd, d, more, a.o, a.o_stride);
      else
        value_tiles<2>(t, first, stop, values, hd, d, more, a.o, a.o_stride);
  };
  if constexpr (type == KvType::Q8)
    for (int p = page; p < end; ++p) {
      widen_values(a.pages[p] + kv_half_bytes(type, hd), hd, widened);
      add_values(p, p + 1, p > page, SAMOVAR_BODY(int) { return widened; });
    }
  else
    add_values(page, end, false, SAMOVAR_BODY(int p) { return a.pages[p] + kv_half_bytes(type, hd); });
  clear(1); // zeros are positive
}
