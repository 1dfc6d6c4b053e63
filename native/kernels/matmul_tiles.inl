// Matmul on matrix tiles: 16 activation rows by 16 outputs (one panel) at a time.
//
// Weights of 64 k are widened to signed bytes once for all rows of the call, one step ahead of their use.
// A tile of them has nonzero rows for one block (or half block) only, so that a tile of 64 activation
// codes serves all blocks in it and each sum stays apart.  Accumulators wait in L1.

// Up to so many rows vectors are faster, here and with a busy sibling.
constexpr int few_rows(Form form) {
  return form == Form::U6 ? 40 : 8;
}

// The weights of some panels are read once.
template <int panels>
constexpr Walk kStream{.rows = kTileRows, .panels = panels, .parts = 1, .ahead = panels == 1 ? 4096 : 2048};

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

// Widens part `at` (of panels * 2) of some panels' 64 k, the blocks `block` and after.
template <Form form, int at, int panels, int sums>
SAMOVAR_INLINE void widen_weights(const uint8_t* w, int64_t panel_stride, int block,
                                  TileWeights<panels, sums>& to) {
  using W = TileWeights<panels, sums>;
  constexpr int p = at / 2, b = at % 2;
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
}

using TileSum = int32_t[kTileRows][16];

// Adds the sums of some rows to their accumulators [rows][panels][16].
template <int panels, int sums, bool minimum, int blocks>
SAMOVAR_INLINE void add_sums(const TileWeights<panels, sums>& w, const TileSum* sum, const uint8_t* x_blocks,
                             int64_t x_stride, int begin, int end, float* acc) {
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
  for (int r = begin; r < end; ++r) {
    const Q8Block* x = reinterpret_cast<const Q8Block*>(x_blocks + r * x_stride);
    F total[panels];
    unroll<panels>(SAMOVAR_BODY(auto p) { total[p] = load(acc + (r * panels + p) * 16); });
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
    unroll<panels>(SAMOVAR_BODY(auto p) { store(acc + (r * panels + p) * 16, total[p]); });
  }
}

// out = acc + bias + add.  Rows of `out` are often a multiple of 4 KB apart, so that few of them fit in L1 at
// once: each is called for shortly before it is written.
template <int panels>
SAMOVAR_INLINE void finish_rows(const MatmulArgs& a, const RowBlocks& blocks, int panel, const float* acc) {
  constexpr int ahead = 8;
  const int column = panel * kPanelRows;
  float* out = a.out + column;
  const auto want = SAMOVAR_BODY(int r) {
    unroll<panels>(SAMOVAR_BODY(auto p) { __builtin_prefetch(out + r * a.out_stride + p * 16, 1, 3); });
  };
  for (int r = 0; r < ahead && r < a.rows; ++r)
    want(r);
  for (int i = 0, r = 0; i < blocks.count; ++i) {
    const float* sums = acc + i * blocks.size * panels * 16;
    for (int at = r - blocks.begin(i); at < blocks.size; ++at, ++r) {
      if (r + ahead < a.rows)
        want(r + ahead);
      unroll<panels>(SAMOVAR_BODY(auto p) {
        const int left = a.n - column - p * 16, count = left < 16 ? left : 16;
        F sum = load(sums + (at * panels + p) * 16);
        if (a.bias)
          sum = add(sum, load_some(a.bias + column + p * 16, count));
        if (a.add)
          sum = add(sum, load_some(a.add + r * a.add_stride + column + p * 16, count));
        store_some(out + r * a.out_stride + p * 16, sum, count);
      });
    }
  }
}

// Tiles 0..3 hold weights, 4 activations, and 5..7 take turns as sums.
//
// While the sums of one block of rows are scaled and added, the products of the next are made, one after
// each share of the rows: a product takes 52 cycles to arrive, and the processor does not look far enough
// ahead to find other work by itself.
template <Form form, int panels>
[[gnu::noinline]] void q8_tiles(const MatmulArgs& a, const RowBlocks& blocks, int panel, bool more) {
  constexpr int sums = scaled_parts(form), per_panel = 2 * sums, tiles = panels * per_panel;
  constexpr int per_chunk = chunk_blocks(form);
  using Weights = TileWeights<panels, sums>;
  static_assert(tiles <= 4);
  alignas(64) float acc[kMaxPartRows * panels * 16];
  alignas(64) TileSum sum[2][tiles];
  Weights weights[3]; // of this step, the next, and the one that is being widened
  __builtin_memset(acc, 0, sizeof(float) * blocks.count * blocks.size * panels * 16);
  for (Weights& w : weights)
    __builtin_memset(w.codes, 0, sizeof w.codes);

  const int num_blocks = (a.k + kBlock - 1) / kBlock, num_chunks = (num_blocks + per_chunk - 1) / per_chunk;
  const uint8_t* first = a.w + panel * a.panel_stride;
  const Slice slice{.panel = panel, .more = more};
  const int share = (blocks.size + tiles - 1) / tiles; // of the rows, for each product
  const uint8_t* x_blocks = a.x + q8_blocks_offset(a.k);

  const auto widen = SAMOVAR_BODY(auto at, int b, Weights& to) {
    const int c = b / per_chunk;
    const uint8_t* w = first + c * chunk_bytes(form);
    if (at == 0 && b % per_chunk == 0)
      fetch_ahead<form, kStream<panels>, 1>(a, slice, c, num_chunks);
    widen_weights<form, at.value>(w, a.panel_stride, b % per_chunk, to);
  };
  const auto begin_dot = SAMOVAR_BODY(auto t, const Weights* fresh, const uint8_t* x) {
    if (fresh)
      tile_load<t.value>(fresh->codes[t / per_panel] + Weights::tile_at(t % per_panel), 64);
    if constexpr (t == 0)
      tile_load<4>(x, a.x_stride);
    tile_zero<5 + t.value % 3>();
    tile_dot_s8<5 + t.value % 3, 4, t.value>();
  };
  const auto end_dot = SAMOVAR_BODY(auto t, TileSum* to) {
    tile_store<5 + t.value % 3>(to[t.value], 64);
  };

  Weights *now = weights, *next = weights + 1, *later = weights + 2;
  unroll<panels * 2>(SAMOVAR_BODY(auto at) { widen(at, 0, *now); });
  if (num_blocks > 2)
    unroll<panels * 2>(SAMOVAR_BODY(auto at) { widen(at, 2, *next); });
  unroll<tiles>(SAMOVAR_BODY(auto t) {
    begin_dot(t, now, a.x);
    end_dot(t, sum[0]);
  });
  int turn = 0;
  for (int b = 0; b < num_blocks; b += 2) {
    for (int i = 0; i < blocks.count; ++i, turn ^= 1) {
      const bool last = i + 1 == blocks.count;
      const Weights* fresh = last ? next : nullptr;
      const uint8_t* x = a.x + blocks.begin(last ? 0 : i + 1) * a.x_stride + (last ? b + 2 : b) * kBlock;
      const bool dot = !last || b + 2 < num_blocks, refill = i == 0 && b + 4 < num_blocks;
      const uint8_t* row_blocks =
          x_blocks + blocks.begin(i) * a.x_stride + b * static_cast<int>(sizeof(Q8Block));
      float* row_acc = acc + i * blocks.size * panels * 16;
      unroll<tiles>(SAMOVAR_BODY(auto t) {
        if (dot)
          begin_dot(t, fresh, x);
        if (t < panels * 2 && refill)
          widen(Index<(t < panels * 2 ? t.value : 0)>{}, b + 4, *later);
        const int begin = t * share, end = begin + share < blocks.size ? begin + share : blocks.size;
        if (b + 1 < num_blocks)
          add_sums<panels, sums, has_minimum(form), 2>(*now, sum[turn], row_blocks, a.x_stride, begin, end,
                                                       row_acc);
        else
          add_sums<panels, sums, has_minimum(form), 1>(*now, sum[turn], row_blocks, a.x_stride, begin, end,
                                                       row_acc);
        if (dot)
          end_dot(t, sum[turn ^ 1]);
      });
    }
    Weights* spare = now;
    now = next, next = later, later = spare;
  }
  finish_rows<panels>(a, blocks, panel, acc);
}

template <Form form> void matmul_q8_tiles(const MatmulArgs& a) {
  if (a.rows <= few_rows(form))
    return matmul_few_rows(form, a);
  const int panels = (a.n + kPanelRows - 1) / kPanelRows, all = panels + a.panels_after;
  for_row_parts(
      a, SAMOVAR_BODY(const MatmulArgs& part) {
        const RowBlocks blocks(part.rows);
        const Tiles guard(blocks.size, 0xf0);
        int panel = 0;
        if constexpr (form != Form::U6)
          for (; panel + 2 <= panels; panel += 2)
            q8_tiles<form, 2>(part, blocks, panel, panel + 4 <= all);
        for (; panel < panels; ++panel)
          q8_tiles<form, 1>(part, blocks, panel, panel + 2 <= all);
      });
}

// Sums stay in tiles for all of k: 0..3 hold them, 4 (and 5) activations, the rest weights.
template <int row_blocks, int panels>
[[gnu::noinline]] void bf16_tiles(const MatmulArgs& a, const RowBlocks& blocks, int panel, bool more) {
  static_assert(row_blocks * panels <= 4);
  constexpr int weights = panels == 4 ? 5 : 6, spare = 8 - weights;
  alignas(64) float acc[kMaxPartRows * 2 * 16];
  const int num_blocks = (a.k + kBlock - 1) / kBlock, num_chunks = (num_blocks + 1) / 2;
  const uint8_t* w = a.w + panel * a.panel_stride;
  const auto go = SAMOVAR_BODY(auto count, int block, bool fetch) {
    const Slice slice{.panel = panel, .more = more};
    unroll<count * panels>(SAMOVAR_BODY(auto c) { tile_zero<c.value>(); });
    for (int b = 0; b < num_blocks; ++b) {
      if (fetch && b % 2 == 0)
        fetch_ahead<Form::BF16, kStream<panels>, 1>(a, slice, b / 2, num_chunks);
      unroll<count>(SAMOVAR_BODY(auto i) {
        tile_load<4 + i.value>(a.x + blocks.begin(block + i) * a.x_stride + b * kTileRowBytes, a.x_stride);
      });
      unroll<panels>(SAMOVAR_BODY(auto p) {
        constexpr int at = weights + p.value % spare;
        tile_load<at>(w + p * a.panel_stride + b * kTileBytes, 64);
        unroll<count>(SAMOVAR_BODY(auto i) { tile_dot_bf16<i * panels + p, 4 + i.value, at>(); });
      });
    }
    unroll<count * panels>(SAMOVAR_BODY(auto c) {
      tile_store<c.value>(acc + ((block + c / panels) * blocks.size * panels + c % panels) * 16, panels * 64);
    });
  };
  int block = 0;
  for (; block + row_blocks <= blocks.count; block += row_blocks)
    go(Index<row_blocks>{}, block, block == 0);
  if (block < blocks.count)
    go(Index<1>{}, block, block == 0);
  finish_rows<panels>(a, blocks, panel, acc);
}

inline void matmul_bf16_tiles(const MatmulArgs& a) {
  const int panels = (a.n + kPanelRows - 1) / kPanelRows, all = panels + a.panels_after;
  for_row_parts(
      a, SAMOVAR_BODY(const MatmulArgs& part) {
        const RowBlocks blocks(part.rows);
        const Tiles guard(blocks.size, blocks.count == 1 ? 0x1f : 0x3f);
        int panel = 0;
        if (blocks.count == 1)
          for (; panel + 4 <= panels; panel += 4)
            bf16_tiles<1, 4>(part, blocks, panel, panel + 8 <= all);
        else
          for (; panel + 2 <= panels; panel += 2)
            bf16_tiles<2, 2>(part, blocks, panel, panel + 4 <= all);
        for (; panel < panels; ++panel)
          bf16_tiles<1, 1>(part, blocks, panel, panel + 2 <= all);
      });
}
