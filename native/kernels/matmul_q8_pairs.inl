// Matmul of Q8 rows by an instruction that multiplies two rows by two outputs, eight k of each at once.
//
// The panels serve as they are: two words of four k that follow each other, zipped, are eight k of two
// outputs.

template <Form form> struct PairBlock : WeightBlock<form> {};

// q8_block with the same sums; a row that is left over is its own partner.
template <Form form, int units, int rows>
SAMOVAR_INLINE void q8_block(const PairBlock<form> (&w)[units], const Q8Rows<rows>& x, int b,
                             F (&acc)[units][rows]) {
  constexpr int pairs = (rows + 1) / 2, halves = sums_of(form), offset = code_offset(form);
  const auto upper_row = SAMOVAR_BODY(int pair) {
    return 2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair;
  };
  const auto start = SAMOVAR_BODY(int row, int half) {
    const Q8Block& block = x.block(row, b);
    const int upper = block.minus_sum_hi;
    const int minus_sum = halves == 1 ? block.minus_sum : half == 1 ? upper : block.minus_sum - upper;
    return offset_start<offset>(iset1(minus_sum));
  };
  unroll<units>(SAMOVAR_BODY(auto u) {
    I left[halves][pairs], right[halves][pairs]; // two outputs each, of two rows
    unroll<halves>(SAMOVAR_BODY(auto h) {
      unroll<pairs>(SAMOVAR_BODY(auto p) {
        left[h][p] = right[h][p] = lower_halves(start(2 * p, h), start(upper_row(p), h));
      });
    });
    unroll<2>(SAMOVAR_BODY(auto i) { // eight k of the lower half of the block, and eight of the upper one
      I lo[2], hi[2];
      unroll<2>(SAMOVAR_BODY(auto j) { w[u].template codes<2 * i.value + j.value>(lo[j], hi[j]); });
      const I lo_left = zip_lower(lo[0], lo[1]), lo_right = zip_upper(lo[0], lo[1]);
      const I hi_left = zip_lower(hi[0], hi[1]), hi_right = zip_upper(hi[0], hi[1]);
      unroll<pairs>(SAMOVAR_BODY(auto p) {
        const int8_t *one = x.codes(2 * p, b) + 8 * i, *other = x.codes(upper_row(p), b) + 8 * i;
        const I lower = eight_of_each(one, other), upper = eight_of_each(one + 16, other + 16);
        left[0][p] = dot_pairs(left[0][p], lower, lo_left);
        right[0][p] = dot_pairs(right[0][p], lower, lo_right);
        left[halves - 1][p] = dot_pairs(left[halves - 1][p], upper, hi_left);
        right[halves - 1][p] = dot_pairs(right[halves - 1][p], upper, hi_right);
      });
    });
    I sums[halves][1][rows];
    unroll<halves>(SAMOVAR_BODY(auto h) {
      unroll<rows>(SAMOVAR_BODY(auto r) {
        const I &outputs = left[h][r / 2], &others = right[h][r / 2];
        sums[h][0][r] = r % 2 == 0 ? lower_halves(outputs, others) : upper_halves(outputs, others);
      });
    });
    add_scaled<form, 1>(w + u, x, b, sums, acc + u);
  });
}

template <Form form> void matmul_q8_pairs(const MatmulArgs& a) {
  if (a.rows == 1)
    return matmul_one_row(form, a);
  walk<form, kPairTiles>(
      a, SAMOVAR_BODY(const auto& tile) {
        q8_tile<form>(
            a, tile, SAMOVAR_BODY(auto u) {
              return PackedWeights<form, PairBlock<form>>{packed_weights<form>(a, tile, u)};
            });
      });
}

// The fastest that the instruction can multiply, and with the scales of blocks (peak.inl).
inline int64_t peak_pairs(int rounds) {
  constexpr int weights = 4, sums = 16;
  alignas(64) uint8_t codes[weights + 1][16];
  for (int u = 0; u <= weights; ++u)
    for (int i = 0; i < 16; ++i)
      codes[u][i] = static_cast<uint8_t>((u * 5 + i * 7) % 16);
  I w[weights], sum[sums];
  unroll<weights>(SAMOVAR_BODY(auto u) { w[u] = iload(codes[u]); });
  unroll<sums>(SAMOVAR_BODY(auto s) { sum[s] = iset1(0); });
  for (int round = 0; round < rounds; ++round) {
    forget_memory(codes);
    const I rows = iload(codes[weights]);
    unroll<sums>(SAMOVAR_BODY(auto s) { sum[s] = dot_pairs(sum[s], rows, w[s % weights]); });
  }
  alignas(64) int32_t totals[sums][kLanes];
  unroll<sums>(SAMOVAR_BODY(auto s) { istore(totals[s], sum[s]); });
  forget_memory(totals);
  return int64_t{rounds} * sums * 32;
}
inline int64_t peak_pairs_scaled(int rounds) {
  constexpr int rows = kPairTiles.rows;
  alignas(64) uint8_t codes[16][16];
  for (int i = 0; i < 256; ++i)
    codes[i / 16][i % 16] = static_cast<uint8_t>(i * 7 % 16);
  float d[rows] = {}, scales[kLanes] = {0.125f, 0.25f, -0.125f, 0.5f};
  F acc[rows];
  unroll<rows>(SAMOVAR_BODY(auto r) { acc[r] = zero(); });
  for (int round = 0; round < rounds; ++round) {
    forget_memory(codes);
    I sum[rows];
    unroll<rows>(SAMOVAR_BODY(auto r) { sum[r] = iset1(0); });
    unroll<4>(SAMOVAR_BODY(auto i) {
      const I left = iload(codes[2 * i]), right = iload(codes[2 * i + 1]);
      unroll<rows / 2>(SAMOVAR_BODY(auto p) {
        const I pair = iload(codes[8 + p % 8]);
        sum[2 * p] = dot_pairs(sum[2 * p], pair, left);
        sum[2 * p + 1] = dot_pairs(sum[2 * p + 1], pair, right);
      });
    });
    const F scale = load(scales);
    unroll<rows>(SAMOVAR_BODY(auto r) { acc[r] = fma(to_float(sum[r]), mul(scale, set1(d[r])), acc[r]); });
  }
  float totals[rows][kLanes];
  unroll<rows>(SAMOVAR_BODY(auto r) { store(totals[r], acc[r]); });
  forget_memory(totals);
  return int64_t{rounds} * rows * kBlock * kLanes;
}
