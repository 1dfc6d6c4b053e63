// Matmul on matrix tiles: 16 activation rows by 16 outputs (one panel) at a time.
//
// Weights of 64 k are widened to signed bytes once for all rows of the call, one step ahead of their use.
// A tile of them has nonzero rows for one block (or half block) only, so that a tile of 64 activation
// codes serves all blocks in it and each sum stays apart.  Accumulators wait in L1.

constexpr int kTileMaxRows = 128;
constexpr int kTileFewRows = 6; // up to here vectors are faster

// The rows of a call, in equal blocks; the last may begin within the one before.
struct RowBlocks {
  int rows; // of the call
  int count;
  int size;
  SAMOVAR_INLINE explicit RowBlocks(int n)
      : rows(n), count((n + kTileRows - 1) / kTileRows), size((n + count - 1) / count) {}
  SAMOVAR_INLINE int begin(int block) const { return block + 1 < count ? block * size : rows - size; }
};

// 64 k of some panels as tiles.
template <int panels, int sums> struct TileWeights { // sums: of a block, 2 if halves have scales of their own
  static constexpr int kPart = kTileBytes / 2 / sums; // bytes that belong to one sum
  // Where parts lie, and tiles begin, such that zeros are around each part.
  static constexpr int part_at(int i) { return (sums == 1 ? i * 2 : i * 4 - i / 2) * kPart; }
  static constexpr int tile_at(int i) { return part_at(i) - i * kPart; }
  alignas(64) uint8_t codes[panels][(sums == 1 ? 3 : 12) * kPart];
  alignas(64) float scale[panels][2][16];
  alignas(64) float minimum[panels][2][16];
  alignas(64) float half_scale[panels][2][2][16];
};

template <Form form> SAMOVAR_INLINE I signed_codes(I codes) {
  if constexpr (form == Form::U8)
    return _mm512_xor_si512(codes, iset1(static_cast<int32_t>(0x80808080u)));
  else if constexpr (code_offset(form) != 0)
    return _mm512_sub_epi8(codes, iset1(code_offset(form) * 0x01010101));
  else
    return codes;
}

template <Form form, int panels, int sums>
SAMOVAR_INLINE void widen_weights(const uint8_t* w, int64_t panel_stride, int block,
                                  TileWeights<panels, sums>& to) {
  using W = TileWeights<panels, sums>;
  unroll<panels>(SAMOVAR_BODY(auto p) {
    unroll<2>(SAMOVAR_BODY(auto b) {
      const WeightBlock<form> from{w + p * panel_stride, block + b, 0};
      uint8_t* lo_at = to.codes[p] + W::part_at(b * sums);
      uint8_t* hi_at = sums == 1 ? lo_at + 256 : to.codes[p] + W::part_at(b * sums + sums - 1);
      unroll<4>(SAMOVAR_BODY(auto j) {
        I lo, hi;
        from.template codes<j.value>(lo, hi);
        istore(lo_at + j * 64, signed_codes<form>(lo));
        istore(hi_at + j * 64, signed_codes<form>(hi));
      });
      store(to.scale[p][b], from.scale());
      if constexpr (has_minimum(form))
        store(to.minimum[p][b], from.minimum());
      if constexpr (sums == 2) {
        store(to.half_scale[p][b][0], from.half_scale(0));
        store(to.half_scale[p][b][1], from.half_scale(1));
      }
    });
  });
}

using TileSum = int32_t[kTileRows][16];

// The four sums of one block of rows: tiles 0..3 hold weights, 4 activations, 5..7 rotate.
template <int count> SAMOVAR_INLINE void dot_tiles(const uint8_t* x, int64_t x_stride, TileSum* to) {
  tile_load<4>(x, x_stride);
  tile_zero<5>();
  tile_dot_s8<5, 4, 0>();
  if constexpr (count > 1) {
    tile_zero<6>();
    tile_dot_s8<6, 4, 1>();
  }
  if constexpr (count > 2) {
    tile_zero<7>();
    tile_dot_s8<7, 4, 2>();
  }
  tile_store<5>(to[0], 64);
  if constexpr (count > 3) {
    tile_zero<5>();
    tile_dot_s8<5, 4, 3>();
  }
  if constexpr (count > 1)
    tile_store<6>(to[1], 64);
  if constexpr (count > 2)
    tile_store<7>(to[2], 64);
  if constexpr (count > 3)
    tile_store<5>(to[3], 64);
}

// Adds the sums of a block of rows to its accumulators [rows][panels][16].
template <int panels, int sums, bool minimum, int blocks>
SAMOVAR_INLINE void add_sums(const TileWeights<panels, sums>& w, const TileSum* sum, const uint8_t* x_blocks,
                             int64_t x_stride, int rows, float* acc) {
  F scale[panels][2], least[panels][2], half[panels][2][2];
  unroll<panels>(SAMOVAR_BODY(auto p) {
    unroll<blocks>(SAMOVAR_BODY(auto b) {
      scale[p][b] = load(w.scale[p][b]);
      if constexpr (minimum)
        least[p][b] = load(w.minimum[p][b]);
      if constexpr (sums == 2)
        unroll<2>(SAMOVAR_BODY(auto h) { half[p][b][h] = load(w.half_scale[p][b][h]); });
    });
  });
  for (int r = 0; r < rows; ++r, x_blocks += x_stride, acc += panels * 16) {
    const Q8Block* x = reinterpret_cast<const Q8Block*>(x_blocks);
    F total[panels];
    unroll<panels>(SAMOVAR_BODY(auto p) { total[p] = load(acc + p * 16); });
    unroll<blocks>(SAMOVAR_BODY(auto b) {
      const F d = set1(x[b].d), dsum = set1(x[b].dsum);
      unroll<panels>(SAMOVAR_BODY(auto p) {
        constexpr int at = (p * 2 + b) * sums;
        F i = to_float(iload(sum[at][r]));
        if constexpr (sums == 2) // below 2^24, so exact in float
          i = fma(i, half[p][b][0], mul(to_float(iload(sum[at + 1][r])), half[p][b][1]));
        total[p] = fma(i, mul(scale[p][b], d), total[p]);
        if constexpr (minimum)
          total[p] = fma(least[p][b], dsum, total[p]);
      });
    });
    unroll<panels>(SAMOVAR_BODY(auto p) { store(acc + p * 16, total[p]); });
  }
}

// out = acc + bias + add for the columns of one panel
SAMOVAR_INLINE void finish_panel(const MatmulArgs& a, int column, int begin, int end, const float* acc,
                                 int acc_stride) {
  const int count = a.n - column < 16 ? a.n - column : 16;
  for (int r = begin; r < end; ++r, acc += acc_stride) {
    F sum = load(acc);
    if (a.bias)
      sum = add(sum, load_some(a.bias + column, count));
    if (a.add)
      sum = add(sum, load_some(a.add + r * a.add_stride + column, count));
    store_some(a.out + r * a.out_stride + column, sum, count);
  }
}

template <int panels>
SAMOVAR_INLINE void finish_rows(const MatmulArgs& a, const RowBlocks& blocks, int panel, const float* acc) {
  for (int i = 0, done = 0; i < blocks.count; ++i) {
    const int skip = done - blocks.begin(i), end = done = blocks.begin(i) + blocks.size;
    for (int p = 0; p < panels; ++p)
      finish_panel(a, (panel + p) * kPanelRows, blocks.begin(i) + skip, end,
                   acc + ((i * blocks.size + skip) * panels + p) * 16, panels * 16);
  }
}

template <Form form, int panels>
[[gnu::noinline]] void q8_tiles(const MatmulArgs& a, const RowBlocks& blocks, int panel, bool more) {
  constexpr int sums = form == Form::U6 ? 2 : 1;
  constexpr int tiles = panels * 2 * sums;
  constexpr int per_chunk = chunk_blocks(form);
  using Weights = TileWeights<panels, sums>;
  static_assert(tiles <= 4);
  alignas(64) float acc[kTileMaxRows * panels * 16];
  alignas(64) TileSum sum[2][tiles];
  Weights weights[2];
  __builtin_memset(acc, 0, sizeof(float) * blocks.count * blocks.size * panels * 16);
  for (Weights& w : weights)
    __builtin_memset(w.codes, 0, sizeof w.codes);

  const int num_blocks = (a.k + kBlock - 1) / kBlock, num_chunks = (num_blocks + per_chunk - 1) / per_chunk;
  const uint8_t* first = a.w + panel * a.panel_stride;
  const Tile<panels, 1, 1> stream{0, panel, 0, true, more};
  const auto widen = SAMOVAR_BODY(int b) {
    const int c = b / per_chunk;
    const uint8_t* w = first + c * chunk_bytes(form);
    if (b % per_chunk == 0)
      prefetch_chunk<form>(a, stream, w, c, num_chunks);
    widen_weights<form, panels, sums>(w, a.panel_stride, b % per_chunk, weights[b / 2 % 2]);
  };
  const auto dot = SAMOVAR_BODY(int b, int i) {
    dot_tiles<tiles>(a.x + blocks.begin(i) * a.x_stride + b * kBlock, a.x_stride, sum[i % 2]);
  };
  const auto add_up = SAMOVAR_BODY(auto count, int b, int i) {
    add_sums<panels, sums, has_minimum(form), count.value>(
        weights[b / 2 % 2], sum[i % 2],
        a.x + blocks.begin(i) * a.x_stride + q8_blocks_offset(a.k) + b * static_cast<int>(sizeof(Q8Block)),
        a.x_stride, blocks.size, acc + i * blocks.size * panels * 16);
  };

  widen(0);
  for (int b = 0; b < num_blocks; b += 2) {
    const Weights& w = weights[b / 2 % 2];
    unroll<tiles>(SAMOVAR_BODY(auto t) {
      constexpr int per_panel = 2 * sums;
      tile_load<t.value>(w.codes[t / per_panel] + Weights::tile_at(t % per_panel), 64);
    });
    dot(b, 0);
    if (b + 2 < num_blocks)
      widen(b + 2);
    for (int i = 0; i < blocks.count; ++i) {
      if (i + 1 < blocks.count)
        dot(b, i + 1);
      if (b + 1 < num_blocks)
        add_up(Index<2>{}, b, i);
      else
        add_up(Index<1>{}, b, i);
    }
  }
  finish_rows<panels>(a, blocks, panel, acc);
}

// body(part of a, its blocks of rows) for at most 128 rows at a time
template <class Body> SAMOVAR_INLINE void for_row_parts(MatmulArgs a, Body body) {
  const int total = a.rows, parts = (total + kTileMaxRows - 1) / kTileMaxRows;
  for (int p = 0; p < parts; ++p) {
    const int begin = static_cast<int>(static_cast<int64_t>(total) * p / parts);
    const int end = static_cast<int>(static_cast<int64_t>(total) * (p + 1) / parts);
    MatmulArgs part = a;
    part.rows = end - begin;
    part.x += begin * a.x_stride;
    part.out += begin * a.out_stride;
    if (a.add)
      part.add += begin * a.add_stride;
    body(part, RowBlocks(part.rows));
  }
}

template <Form form> void matmul_q8_tiles(const MatmulArgs& a) {
  if (a.rows <= kTileFewRows)
    return matmul_few_rows(form, a);
  const int panels = (a.n + kPanelRows - 1) / kPanelRows;
  for_row_parts(a, SAMOVAR_BODY(const MatmulArgs& part, const RowBlocks& blocks) {
    const Tiles guard(blocks.size, 0xf0);
    int panel = 0;
    if constexpr (form != Form::U6)
      for (; panel + 2 <= panels; panel += 2)
        q8_tiles<form, 2>(part, blocks, panel, panel + 4 <= panels);
    for (; panel < panels; ++panel)
      q8_tiles<form, 1>(part, blocks, panel, panel + 2 <= panels);
  });
}
