// What all matmuls share: the walk over tiles, prefetching, the end of an output.
//
// A tile is `rows` activation rows by `panels` panels by `parts` vectors of a panel's lanes.  Few rows read
// memory at its speed by walking several panels at once, each a stream of its own; many rows keep one or
// two panels in L1 and go over them in blocks of rows.

template <int tile_panels, int tile_parts, int tile_rows> struct Tile {
  static constexpr int rows = tile_rows;
  static constexpr int panels = tile_panels;
  static constexpr int parts = tile_parts;
  static constexpr int units = panels * parts; // vectors of one row
  int row;
  int panel;
  int part;
  bool fetch;      // prefetch this tile's panels
  bool fetch_next; // and the panels of the next tile

  SAMOVAR_INLINE int column(int unit) const {
    return (panel + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
  }
};

// The end of a tile, out of line: out = acc + bias + add for its columns that exist.
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

template <int panels, int parts, int rows, class Compute>
SAMOVAR_INLINE void walk_rows(const MatmulArgs& a, int panel, bool more, Compute compute) {
  // The parts of a panel follow each other, so that a line of `out` is written at once.
  const auto block = SAMOVAR_BODY(auto count, int row) {
    for (int part = 0; part < kParts; part += parts) {
      const bool fetch = row == 0 && part == 0;
      compute(Tile<panels, parts, count.value>{row, panel, part, fetch, fetch && more});
    }
  };
  int row = 0;
  for (; row + rows <= a.rows; row += rows)
    block(Index<rows>{}, row);
  rows_left<rows - 1>(a.rows - row, SAMOVAR_BODY(auto left) { block(left, row); });
}

template <TileShape shape, class Compute> SAMOVAR_INLINE void walk(const MatmulArgs& a, Compute compute) {
  const int panels = (a.n + kPanelRows - 1) / kPanelRows;
  int panel = 0;
  if constexpr (shape.stream_panels > 1) {
    constexpr int step = shape.stream_panels;
    if (a.rows <= shape.few_rows)
      for (; panel + step <= panels; panel += step)
        walk_rows<step, kParts, shape.stream_rows>(a, panel, panel + 2 * step <= panels, compute);
  }
  for (; panel + shape.panels <= panels; panel += shape.panels)
    walk_rows<shape.panels, shape.parts, shape.rows>(a, panel, panel + 2 * shape.panels <= panels, compute);
  if constexpr (shape.panels > 1)
    for (; panel < panels; ++panel)
      walk_rows<1, shape.parts, shape.rows>(a, panel, false, compute);
}

// Fetches the chunk that lies about 2 KB ahead in each panel of the tile, so that one core keeps memory
// busy (1 KB in a lone panel, which more rows read more slowly).  A stream that ends goes on in the next
// tile.
template <Form form, class T>
SAMOVAR_INLINE void prefetch_chunk(const MatmulArgs& a, const T& tile, const uint8_t* w, int c,
                                   int num_chunks) {
  constexpr int64_t bytes = chunk_bytes(form);
  constexpr int64_t distance = T::panels > 1 ? 2048 : 1024;
  constexpr int ahead = static_cast<int>((distance + bytes - 1) / bytes);
  const uint8_t* p = w + ahead * bytes;
  if (!tile.fetch)
    return;
  if (c + ahead >= num_chunks) {
    if (!tile.fetch_next)
      return;
    p += (T::panels - 1) * a.panel_stride;
  }
  for (int64_t i = 0; i < T::panels; ++i, p += a.panel_stride)
    for (int64_t line = 0; line < bytes; line += 64)
      __builtin_prefetch(p + line, 0, 3);
}
