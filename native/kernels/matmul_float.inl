// Matmul of F32 rows with F32 and F16 panels, and of BF16 rows with BF16 panels.

template <Form form> SAMOVAR_INLINE F load_weight(const uint8_t* w, int part) {
  if constexpr (form == Form::F32)
    return load(reinterpret_cast<const float*>(w) + part * kLanes);
  else
    return load_f16(w + part * kLanes * 2);
}

template <Form form, class T> inline void float_tile(const MatmulArgs& a, const T& tile) {
  constexpr int rows = T::rows, units = T::units;
  const float* x[rows];
  unroll<rows>(
      SAMOVAR_BODY(auto r) { x[r] = reinterpret_cast<const float*>(a.x + (tile.row + r) * a.x_stride); });
  const uint8_t* w = a.w + tile.panel * a.panel_stride;
  const int num_chunks = (a.k + 63) / 64;
  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  for (int c = 0, k = 0; c < num_chunks; ++c, w += chunk_bytes(form)) {
    prefetch_chunk<form>(a, tile, w, c, num_chunks);
    const int end = a.k - c * 64 < 64 ? a.k - c * 64 : 64;
    for (int i = 0; i < end; ++i, ++k) {
      F weight[units];
      unroll<units>(SAMOVAR_BODY(auto u) {
        weight[u] = load_weight<form>(w + (u / T::parts) * a.panel_stride + i * (chunk_bytes(form) / 64),
                                      tile.part + u % T::parts);
      });
      unroll<rows>(SAMOVAR_BODY(auto r) {
        const F value = set1(x[r][k]);
        unroll<units>(SAMOVAR_BODY(auto u) { acc[u][r] = fma(value, weight[u], acc[u][r]); });
      });
    }
  }
  finish(a, tile, acc);
}

template <class T> inline void bf16_tile(const MatmulArgs& a, const T& tile) {
  constexpr int rows = T::rows, units = T::units;
  const int32_t* x[rows]; // pairs of k
  unroll<rows>(
      SAMOVAR_BODY(auto r) { x[r] = reinterpret_cast<const int32_t*>(a.x + (tile.row + r) * a.x_stride); });
  const uint8_t* w = a.w + tile.panel * a.panel_stride;
  const int num_chunks = (a.k + 63) / 64, num_blocks = (a.k + 31) / 32;
  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  for (int b = 0; b < num_blocks; ++b, w += 1024) {
    if (b % 2 == 0)
      prefetch_chunk<Form::BF16>(a, tile, w, b / 2, num_chunks);
    alignas(64) float wide[2][rows][16]; // even and odd k of the rows, widened once for all units
    unroll<rows>(SAMOVAR_BODY(auto r) {
      unroll<kParts>(SAMOVAR_BODY(auto p) {
        const I pair = iload(x[r] + b * 16 + p * kLanes);
        store(wide[0][r] + p * kLanes, bf16_even(pair));
        store(wide[1][r] + p * kLanes, bf16_odd(pair));
      });
    });
    add_bf16_pairs<rows, units>(
        SAMOVAR_BODY(int i, auto u) {
          return iload(w + (u / T::parts) * a.panel_stride + i * 64 +
                       (tile.part + u % T::parts) * kLanes * 4);
        },
        SAMOVAR_BODY(auto odd, int i, auto r) { return wide[odd][r][i]; }, acc);
  }
  finish(a, tile, acc);
}

template <Form form> void matmul_float(const MatmulArgs& a) {
  walk<kFloatTiles>(a, SAMOVAR_BODY(const auto& tile) { float_tile<form>(a, tile); });
}

inline void matmul_bf16(const MatmulArgs& a) {
  walk<kBf16Tiles>(a, SAMOVAR_BODY(const auto& tile) { bf16_tile(a, tile); });
}
