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
  const uint8_t* w = a.w + tile.slice.panel * a.panel_stride;
  const int num_chunks = (a.k + 63) / 64;
  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  for (int c = 0, k = 0; c < num_chunks; ++c, w += chunk_bytes(form)) {
    fetch<form>(a, tile, c, num_chunks);
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

// add(rows of x, pair(i, unit), acc) for each block of 32 k, i being one of its 16 pairs.
template <class T, class Add>
SAMOVAR_INLINE void bf16_blocks(const MatmulArgs& a, const T& tile, Add add_block) {
  constexpr int rows = T::rows, units = T::units;
  const uint8_t* x[rows];
  unroll<rows>(SAMOVAR_BODY(auto r) { x[r] = a.x + (tile.row + r) * a.x_stride; });
  const uint8_t* w = a.w + tile.slice.panel * a.panel_stride;
  const int num_chunks = (a.k + 63) / 64, num_blocks = (a.k + 31) / 32;
  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  for (int b = 0; b < num_blocks; ++b, w += 1024) {
    if (b % 2 == 0)
      fetch<Form::BF16>(a, tile, b / 2, num_chunks);
    add_block(
        x,
        SAMOVAR_BODY(int i, auto u) {
          return iload(w + (u / T::parts) * a.panel_stride + i * 64 +
                       (tile.part + u % T::parts) * kLanes * 4);
        },
        acc);
    unroll<rows>(SAMOVAR_BODY(auto r) { x[r] += 64; });
  }
  finish(a, tile, acc);
}

template <class T> inline void bf16_tile(const MatmulArgs& a, const T& tile) {
  bf16_blocks(
      a, tile, SAMOVAR_BODY(const auto& x, auto pair, auto& acc) {
        alignas(64) float wide[2][T::rows][16]; // even and odd k of the rows, widened once for all units
        unroll<T::rows>(SAMOVAR_BODY(auto r) {
          unroll<kParts>(SAMOVAR_BODY(auto p) {
            const I both = iload(x[r] + p * kLanes * 4);
            store(wide[0][r] + p * kLanes, bf16_even(both));
            store(wide[1][r] + p * kLanes, bf16_odd(both));
          });
        });
        add_bf16_pairs<T::rows, T::units>(
            pair, SAMOVAR_BODY(auto odd, int i, auto r) { return wide[odd][r][i]; }, acc);
      });
}

template <Form form> void matmul_float(const MatmulArgs& a) {
  walk<form, kFloatTiles>(a, SAMOVAR_BODY(const auto& tile) { float_tile<form>(a, tile); });
}

inline void matmul_bf16(const MatmulArgs& a) {
  walk<Form::BF16, kBf16Tiles>(a, SAMOVAR_BODY(const auto& tile) { bf16_tile(a, tile); });
}
