// Attention on matrix tiles: scores of two pages at a time, softmax, then values by 64 dims.
//
// Keys and values lie in pages as tiles want them: 16 pairs of dims (tokens) by 16 tokens (dims).

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

// o[.][d ...] += weights . values of some pages.  Tiles 0..3 are sums, 4 weights, 5..7 values.
template <int count, class Values>
SAMOVAR_INLINE void value_tiles(const ChunkScores& t, int page, int end, Values values, int hd, int d,
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
  alignas(64) ChunkScores t;
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
  if (seen.first > seen.last)
    return begin_rows(a);
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
  softmax_rows(a, t, spans, page, end);

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
  make_zeros_positive(a);
}
