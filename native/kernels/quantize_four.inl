// Four blocks of a Q8 row at once, for AVX-512: reductions and divisions of the four side by side.

// The sum of each of the four words of 128 bits over the four such parts of a vector.
SAMOVAR_INLINE __m128i add_parts(I x) {
  x = iadd(x, _mm512_shuffle_i32x4(x, x, 0x4e));
  return _mm512_castsi512_si128(iadd(x, _mm512_shuffle_i32x4(x, x, 0xb1)));
}

// What quantize_block makes of four blocks; false, and nothing done, if any needs a closer look.
SAMOVAR_INLINE bool quantize_four(const float* x, int8_t* codes, Q8Block* blocks) {
  F v[4][2];
  I most[4]; // magnitudes as integers, which have their order, and what is not finite above them
  unroll<4>(SAMOVAR_BODY(auto b) {
    unroll<2>(SAMOVAR_BODY(auto half) { v[b][half] = load(x + b * kBlock + half * kLanes); });
    const I magnitude = iset1(0x7fffffff);
    most[b] = _mm512_max_epi32(iand(as_int(v[b][0]), magnitude), iand(as_int(v[b][1]), magnitude));
  });
  const auto larger = SAMOVAR_BODY(I a, I b) {
    return _mm512_max_epi32(a, b);
  };
  const auto two = SAMOVAR_BODY(I a, I b) {
    return larger(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const I first = two(most[0], most[1]), second = two(most[2], most[3]);
  I all = larger(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  all = larger(all, _mm512_shuffle_i32x4(all, all, 0x4e));
  all = larger(all, _mm512_shuffle_i32x4(all, all, 0xb1));

  const __m128 largest = _mm_castsi128_ps(_mm512_castsi512_si128(all)), limit = _mm_set1_ps(127.0f);
  const __m128 inverse = _mm_div_ps(limit, largest);
  // Not for a NaN (unordered), an infinity (its inverse is 0), and for zero or little more (infinite).
  const __m128 good = _mm_and_ps(_mm_cmp_ps(inverse, _mm_setzero_ps(), _CMP_GT_OQ),
                                 _mm_cmp_ps(inverse, _mm_set1_ps(0x1.fffffep+127f), _CMP_LE_OQ));
  if (_mm_movemask_ps(good) != 15)
    return false;
  const F scales = _mm512_broadcast_f32x4(inverse);
  const F scale[4] = {_mm512_permute_ps(scales, 0x00), _mm512_permute_ps(scales, 0x55),
                      _mm512_permute_ps(scales, 0xaa), _mm512_permute_ps(scales, 0xff)};
  __m128i sums[2]; // of the lower and the upper half of one block, then of the next
  unroll<2>(SAMOVAR_BODY(auto pair) {
    I narrow[2];
    unroll<2>(SAMOVAR_BODY(auto i) {
      constexpr int b = pair * 2 + i;
      narrow[i] = _mm512_packs_epi32(to_int(mul(v[b][0], scale[b])), to_int(mul(v[b][1], scale[b])));
    });
    const I mixed = _mm512_packs_epi16(narrow[0], narrow[1]); // word 4 i + j: codes 4 i.. of half j
    sums[pair] = add_parts(_mm512_dpbusd_epi32(iset1(0), iset1(0x01010101), mixed));
    const I order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    istore(codes + pair * 2 * kBlock, _mm512_permutexvar_epi32(order, mixed));
  });
  const __m128 sums_lo = _mm_castsi128_ps(sums[0]), sums_hi = _mm_castsi128_ps(sums[1]);
  const __m128i lo = _mm_castps_si128(_mm_shuffle_ps(sums_lo, sums_hi, 0x88));
  const __m128i hi = _mm_castps_si128(_mm_shuffle_ps(sums_lo, sums_hi, 0xdd));
  const __m128i sum = _mm_add_epi32(lo, hi);
  __m128 d = _mm_div_ps(largest, limit), dsum = _mm_mul_ps(d, _mm_cvtepi32_ps(sum));
  __m128 minus_sum = _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), sum));
  __m128 minus_hi = _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), hi));
  _MM_TRANSPOSE4_PS(d, dsum, minus_sum, minus_hi);
  float* to = &blocks->d;
  _mm_storeu_ps(to, d);
  _mm_storeu_ps(to + 4, dsum);
  _mm_storeu_ps(to + 8, minus_sum);
  _mm_storeu_ps(to + 12, minus_hi);
  return true;
}

inline bool quantize_q8_fours(const float* x, int k, int8_t* codes, Q8Block* blocks) {
  return quantize_blocks(x, k, codes, blocks, quantize_four);
}
