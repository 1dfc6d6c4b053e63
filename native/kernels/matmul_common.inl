// What all matmuls share: the walk over tiles, prefetching, the end of an output.
//
// A tile is `rows` activation rows by `panels` panels by `parts` vectors of a panel's lanes.  Few rows read
// memory at its speed by walking as many panels at once as the processor likes, each a stream of its own;
// many rows keep one or two panels in L1 and go over them in blocks of rows.

template <int tile_panels, int tile_parts, int tile_rows, int tile_ahead> struct Tile {
  static constexpr int rows = tile_rows;
  static constexpr int panels = tile_panels;
  static constexpr int parts = tile_parts;
  static constexpr int ahead = tile_ahead;     // bytes
  static constexpr int units = panels * parts; // vectors of one row
  int row;
  int panel;
  int part;
  bool more; // whether panels follow that are to be fetched
  int begin; // which 64ths of them in this pass (a block of rows makes one) over the tile's panels
  int end;

  static constexpr int kWhole = 64;

  SAMOVAR_INLINE int column(int unit) const {
    return (panel + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
  }
};

// The end of any tile, out of line: out = acc + bias + add for its columns that exist.
template <class T> [[gnu::noinline]] void finish(const MatmulArgs& a, const T& tile, const float* acc) {
  for (int u = 0; u < T::units; ++u) {
    const int column = tile.column(u), count = a.n - column < kLanes ? a.n - column : kLanes;
    if (count <= 0)
      continue;
    for (int r = 0; r < T::rows; ++r) {
      const int64_t row = tile.row + r;
      F sum = load(acc + (u * T::rows + r) * kLanes);
      if (a.bias)
        sum = add(sum, load_some(a.bias + column, count));
      if (a.add)
        sum = add(sum, load_some(a.add + row * a.add_stride + column, count));
      store_some(a.out + row * a.out_stride + column, sum, count);
    }
  }
}
template <class T>
SAMOVAR_INLINE void finish(const MatmulArgs& a, const T& tile, const F (&acc)[T::units][T::rows]) {
  if (!a.bias && tile.column(T::units - 1) + kLanes <= a.n) // most tiles: from registers
    return unroll<T::units>(SAMOVAR_BODY(auto u) {
      float* out = a.out + tile.row * a.out_stride + tile.column(u);
      const float* addend = a.add ? a.add + tile.row * a.add_stride + tile.column(u) : nullptr;
      unroll<T::rows>(SAMOVAR_BODY(auto r) {
        store(out + r * a.out_stride, addend ? add(acc[u][r], load(addend + r * a.add_stride)) : acc[u][r]);
      });
    });
  alignas(64) float sums[T::units * T::rows * kLanes];
  unroll<T::units>(SAMOVAR_BODY(auto u) {
    unroll<T::rows>(SAMOVAR_BODY(auto r) { store(sums + (u * T::rows + r) * kLanes, acc[u][r]); });
  });
  finish(a, tile, sums);
}

// body(Index<left>) for 0 < left <= most.
template <int most, class Body> SAMOVAR_INLINE void rows_left(int left, Body body) {
  if constexpr (most > 0) {
    if (left == most)
      body(Index<most>{});
    else
      rows_left<most - 1>(left, body);
  }
}

template <int panels, int parts, int rows, int ahead, class Compute>
SAMOVAR_INLINE void walk_rows(const MatmulArgs& a, int panel, bool more, Compute compute) {
  const int passes = (a.rows + rows - 1) / rows * (kParts / parts);
  int pass = 0;
  // The parts of a panel follow each other, so that a line of `out` is written at once.
  const auto block = SAMOVAR_BODY(auto count, int row) {
    using T = Tile<panels, parts, count.value, ahead>;
    for (int part = 0; part < kParts; part += parts, ++pass)
      compute(T{row, panel, part, more, T::kWhole * pass / passes, T::kWhole * (pass + 1) / passes});
  };
  int row = 0;
  for (; row + rows <= a.rows; row += rows)
    block(Index<rows>{}, row);
  rows_left<rows - 1>(a.rows - row, SAMOVAR_BODY(auto left) { block(left, row); });
}

template <TileShape shape, class Compute> SAMOVAR_INLINE void walk(const MatmulArgs& a, Compute compute) {
  const int panels = (a.n + kPanelRows - 1) / kPanelRows, all = panels + a.panels_after;
  int panel = 0;
  if constexpr (shape.few_rows > 0) {
    constexpr int step = shape.stream_panels;
    if (a.rows <= shape.few_rows)
      for (; panel + step <= panels; panel += step)
        walk_rows<step, kParts, shape.stream_rows, shape.stream_ahead>(a, panel, panel + 2 * step <= all,
                                                                       compute);
  }
  constexpr int ahead = shape.panels > 1 ? shape.stream_ahead : shape.ahead;
  for (; panel + shape.panels <= panels; panel += shape.panels)
    walk_rows<shape.panels, shape.parts, shape.rows, ahead>(a, panel, panel + 2 * shape.panels <= all,
                                                            compute);
  if constexpr (shape.panels > 1)
    for (; panel < panels; ++panel)
      walk_rows<1, shape.parts, shape.rows, shape.ahead>(a, panel, panel + 2 <= all, compute);
}

// Calls for what will be read soon, so that one core keeps memory busy.  In a single pass that is the chunk
// T::ahead bytes on in each panel of the tile; a stream that ends goes on in the next tile.  Several passes
// divide the panels of the next tile among them.
template <Form form, class T>
SAMOVAR_INLINE void prefetch_chunk(const MatmulArgs& a, const T& tile, const uint8_t* w, int c,
                                   int num_chunks) {
  constexpr int64_t bytes = chunk_bytes(form);
  const uint8_t* p = w;
  int64_t begin = 0, end = bytes;
  if (tile.end - tile.begin == T::kWhole) {
    constexpr int ahead = static_cast<int>((T::ahead + bytes - 1) / bytes);
    p += ahead * bytes;
    if (c + ahead >= num_chunks) {
      if (!tile.more)
        return;
      p += (T::panels - 1) * a.panel_stride;
    }
  } else {
    if (!tile.more)
      return;
    p += T::panels * a.panel_stride;
    begin = (bytes / 64 * tile.begin / T::kWhole) * 64;
    end = (bytes / 64 * tile.end / T::kWhole) * 64;
  }
  for (int64_t i = 0; i < T::panels; ++i, p += a.panel_stride)
    for (int64_t line = begin; line < end; line += 64)
      __builtin_prefetch(p + line, 0, 3);
}
