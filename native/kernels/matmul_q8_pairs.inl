// Matmul of Q8 rows by an instruction that multiplies two rows by two outputs, eight k of each at once.
//
// The panels serve as they are: two words of four k that follow each other, zipped, are eight k of two
// outputs.

template <Form form> struct PairBlock : WeightBlock<form> {};

// The same sums as of any block; a row that is left over is its own partner.
template <Form form, int scaled_part, int count, int rows>
SAMOVAR_INLINE void q8_sums(const PairBlock<form>* w, const Q8Rows<rows>& x, int b, I (&sums)[count][rows]) {
  constexpr int pairs = (rows + 1) / 2, halves = 2 / scaled_parts(form);
  const auto upper_row = SAMOVAR_BODY(int pair) {
    return 2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair;
  };
  const auto start = SAMOVAR_BODY(int row) {
    return sums_start<form, scaled_part>(x.block(row, b));
  };
  unroll<count>(SAMOVAR_BODY(auto u) {
    I left[pairs], right[pairs]; // two outputs each, of two rows
    unroll<pairs>(
        SAMOVAR_BODY(auto p) { left[p] = right[p] = lower_halves(start(2 * p), start(upper_row(p))); });
    unroll<2>(SAMOVAR_BODY(auto i) { // eight k of each half of the block
      I codes[2][2];
      unroll<2>(
          SAMOVAR_BODY(auto j) { w[u].template codes<2 * i.value + j.value>(codes[0][j], codes[1][j]); });
      unroll<halves>(SAMOVAR_BODY(auto h) {
        constexpr int half = scaled_part + h.value;
        const I left_codes = zip_lower(codes[half][0], codes[half][1]);
        const I right_codes = zip_upper(codes[half][0], codes[half][1]);
        unroll<pairs>(SAMOVAR_BODY(auto p) {
          const int at = 8 * i + 16 * half;
          const I eight = eight_of_each(x.codes(2 * p, b) + at, x.codes(upper_row(p), b) + at);
          left[p] = dot_pairs(left[p], eight, left_codes);
          right[p] = dot_pairs(right[p], eight, right_codes);
        });
      });
    });
    unroll<rows>(SAMOVAR_BODY(auto r) {
      const I &outputs = left[r / 2], &others = right[r / 2];
      sums[u][r] = r % 2 == 0 ? lower_halves(outputs, others) : upper_halves(outputs, others);
    });
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
