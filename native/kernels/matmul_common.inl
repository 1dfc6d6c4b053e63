// What all matmuls share: the walk over tiles, prefetching, the end of an output.
//
// A tile is `rows` activation rows by `panels` panels by `parts` vectors of a panel's lanes.  Few rows read
// memory at its speed by walking as many panels at once as the processor likes, each a stream of its own;
// many rows keep one or two panels in L1 and go over them in blocks of rows.

// Calls for `bytes` from `next` on, and from each further panel's, in equal shares.
struct Fetch {
  const uint8_t* next;
  int64_t step; // of a share, and where it begins: 2^-16 lines of 64 bytes
  int64_t position = 0;

  SAMOVAR_INLINE Fetch(const uint8_t* from, int64_t bytes, int64_t shares)
      : next(from), step(((bytes / 64 << 16) + shares - 1) / shares) {}
  template <int panels> SAMOVAR_INLINE void share(int64_t panel_stride) {
    const int64_t begin = position >> 16, end = (position += step) >> 16;
    for (int64_t line = begin; line < end; ++line)
      for (int64_t p = 0; p < panels; ++p)
        __builtin_prefetch(next + p * panel_stride + line * 64, 0, 3);
  }
};

template <int tile_panels, int tile_parts, int tile_rows, int tile_ahead, bool tile_sliced = false>
struct Tile {
  static constexpr int rows = tile_rows;
  static constexpr int panels = tile_panels;
  static constexpr int parts = tile_parts;
  static constexpr int ahead = tile_ahead;     // bytes
  static constexpr bool sliced = tile_sliced;  // whether k may be cut
  static constexpr int units = panels * parts; // vectors of one row
  int row = 0;
  int panel = 0;
  int part = 0;
  int first_chunk = 0; // of k
  int end_chunk = 0;
  bool more = false;      // whether panels follow that are to be fetched
  Fetch* fetch = nullptr; // what several tiles over the same weights fetch; null: there is but one
  float* sums = nullptr;  // of chunks before the first one, and for those after the last one

  SAMOVAR_INLINE int column(int unit) const {
    return (panel + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
  }
  SAMOVAR_INLINE float* sums_of(int r, int unit) const {
    return sums + ((row + r) * panels + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
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

// Panels that are walked together, in blocks of rows.  Where these are several, k is cut into slices that
// stay in L1: `sums` go from one to the next.  begin_slice(panels, panel, first chunk, end chunk) comes
// before their tiles.
constexpr int kMaxSlicedRows = 128;
constexpr int max_slice(int panels, int64_t slice_bytes, int64_t chunk_bytes) { // chunks
  const int64_t fit = slice_bytes / (panels * chunk_bytes);
  return fit > 1 ? static_cast<int>(fit) : 1;
}

template <Form form, int panels, int parts, int rows, int ahead, int slice_bytes, int shares, class Compute,
          class BeginSlice>
SAMOVAR_INLINE void walk_rows(const MatmulArgs& a, int panel, bool more, Compute compute,
                              BeginSlice begin_slice) {
  constexpr int64_t bytes = chunk_bytes(form);
  const int passes = (a.rows + rows - 1) / rows * (kParts / parts);
  const int num_chunks = (a.k + chunk_k(form) - 1) / chunk_k(form);
  int slice = num_chunks; // chunks
  if constexpr (slice_bytes > 0)
    if (passes > 1 && a.rows <= kMaxSlicedRows) {
      constexpr int most = max_slice(panels, slice_bytes, bytes);
      const int slices = (num_chunks + most - 1) / most;
      slice = (num_chunks + slices - 1) / slices;
    }
  alignas(64) float sums[slice_bytes > 0 ? kMaxSlicedRows * panels * kPanelRows : 1];
  const uint8_t* w = a.w + panel * a.panel_stride;
  for (int first = 0; first < num_chunks; first += slice) {
    const int end = first + slice < num_chunks ? first + slice : num_chunks;
    const bool last = end == num_chunks;
    const int next = last ? (more ? slice : 0) : (end + slice < num_chunks ? slice : num_chunks - end);
    Fetch fetch(last ? w + panels * a.panel_stride : w + end * bytes, next * bytes,
                int64_t{passes} * (end - first) * shares);
    begin_slice(Index<panels>{}, panel, first, end);
    // The parts of a panel follow each other, so that a line of `out` is written at once.
    const auto block = SAMOVAR_BODY(auto count, int row) {
      for (int part = 0; part < kParts; part += parts)
        compute(Tile<panels, parts, count.value, ahead, (slice_bytes > 0)>{
            row, panel, part, first, end, more, passes > 1 ? &fetch : nullptr, sums});
    };
    int row = 0;
    for (; row + rows <= a.rows; row += rows)
      block(Index<rows>{}, row);
    rows_left<rows - 1>(a.rows - row, SAMOVAR_BODY(auto left) { block(left, row); });
  }
}

struct NoSlice {
  SAMOVAR_INLINE void operator()(int, int, int, int) const {}
};

template <Form form, TileShape shape, int shares = 1, class Compute, class BeginSlice = NoSlice>
SAMOVAR_INLINE void walk(const MatmulArgs& a, Compute compute, BeginSlice begin_slice = {}) {
  const int panels = (a.n + kPanelRows - 1) / kPanelRows, all = panels + a.panels_after;
  int panel = 0;
  if constexpr (shape.few_rows > 0) {
    constexpr int step = shape.stream_panels;
    if (a.rows <= shape.few_rows)
      for (; panel + step <= panels; panel += step)
        walk_rows<form, step, kParts, shape.stream_rows, shape.stream_ahead, 0, shares>(
            a, panel, panel + 2 * step <= all, compute, begin_slice);
  }
  constexpr int ahead = shape.panels > 1 ? shape.stream_ahead : shape.ahead;
  for (; panel + shape.panels <= panels; panel += shape.panels)
    walk_rows<form, shape.panels, shape.parts, shape.rows, ahead, shape.slice_bytes, shares>(
        a, panel, panel + 2 * shape.panels <= all, compute, begin_slice);
  if constexpr (shape.panels > 1)
    for (; panel < panels; ++panel)
      walk_rows<form, 1, shape.parts, shape.rows, shape.ahead, shape.slice_bytes, shares>(
          a, panel, panel + 2 <= all, compute, begin_slice);
}

// Calls for what will be read soon, so that one core keeps memory busy, as much as share `i` of `shares` of
// chunk c has bytes.  In a single pass that is what lies T::ahead bytes on in each panel of the tile; a
// stream that ends goes on in the next tile.  Several passes divide the next slice among them.
template <Form form, int shares = 1, class T>
SAMOVAR_INLINE void prefetch_share(const MatmulArgs& a, const T& tile, int c, int num_chunks, int i = 0) {
  if (tile.fetch)
    return tile.fetch->template share<T::panels>(a.panel_stride);
  constexpr int64_t bytes = chunk_bytes(form);
  constexpr int ahead = static_cast<int>((T::ahead + bytes - 1) / bytes);
  const uint8_t* p = a.w + tile.panel * a.panel_stride + (c + ahead) * bytes;
  if (c + ahead >= num_chunks) {
    if (!tile.more)
      return;
    p += (T::panels - 1) * a.panel_stride;
  }
  const int64_t begin = bytes / 64 * i / shares, end = bytes / 64 * (i + 1) / shares;
  for (int64_t panel = 0; panel < T::panels; ++panel, p += a.panel_stride)
    for (int64_t line = begin; line < end; ++line)
      __builtin_prefetch(p + line * 64, 0, 3);
}
