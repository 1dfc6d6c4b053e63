// What all matmuls share: the walk over tiles, fetching, the end of an output.
//
// A tile is `rows` activation rows by `panels` panels by `parts` vectors of a panel's lanes.  Few rows read
// memory at its speed by walking as many panels at once as the processor likes, each a stream of its own;
// many rows keep one or two panels, or a slice of them, in L1 and go over them in blocks of rows.

struct Walk {
  int rows; // of a tile
  int panels;
  int parts;
  int ahead;           // bytes before their use that weights are fetched in a single pass
  int slice_bytes = 0; // of the panels that several passes read; 0: k is never cut
};

// Chunks of k of the panels that are walked together.
struct Slice {
  int panel = 0;
  int first_chunk = 0;
  int end_chunk = 0;
  bool more = false; // whether panels follow that are to be fetched
};

// Calls for what comes after a slice, in each of its panels, in as many equal shares as its passes ask for.
struct NextSlice {
  const uint8_t* begin;
  int64_t step;         // of a share, in lines of 64 bytes times 2^16
  int64_t position = 0; // of the next share, likewise

  SAMOVAR_INLINE NextSlice(const uint8_t* from, int64_t bytes, int64_t shares)
      : begin(from), step(((bytes / 64 << 16) + shares - 1) / shares) {}
  template <int panels> SAMOVAR_INLINE void fetch_share(int64_t panel_stride) {
    const int64_t line = position >> 16, end = (position += step) >> 16;
    for (int64_t i = line; i < end; ++i)
      for (int64_t p = 0; p < panels; ++p)
        __builtin_prefetch(begin + p * panel_stride + i * 64, 0, 3);
  }
};

// Calls for what the first pass over the first panels would wait for line by line.
template <int panels> SAMOVAR_INLINE void fetch_begin(const MatmulArgs& a, int64_t bytes) {
  const int64_t end = bytes < a.panel_stride ? bytes : a.panel_stride;
  for (int64_t at = 0; at < end; at += 64)
    for (int64_t p = 0; p < panels; ++p)
      __builtin_prefetch(a.w + p * a.panel_stride + at, 0, 3);
}

template <Walk walk, int tile_rows> struct Tile {
  static constexpr Walk kWalk = walk;
  static constexpr int rows = tile_rows, panels = walk.panels, parts = walk.parts;
  static constexpr int units = panels * parts; // vectors of one row
  Slice slice;
  NextSlice* next; // null: this is the only pass
  float* carried;  // sums of the chunks before the slice, and then for those after it
  int row;
  int part;

  SAMOVAR_INLINE int column(int unit) const {
    return (slice.panel + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
  }
  SAMOVAR_INLINE float* carried_to(int r, int unit) const {
    return carried + ((row + r) * panels + unit / parts) * kPanelRows + (part + unit % parts) * kLanes;
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

// Calls for what `finish` adds: rows that another core wrote a while ago, for which each tile would wait.
template <class T> SAMOVAR_INLINE void fetch_addends(const MatmulArgs& a, const T& tile, int num_chunks) {
  if (a.add && tile.slice.end_chunk == num_chunks)
    unroll<T::panels>(SAMOVAR_BODY(auto p) {
      const float* addend = a.add + tile.row * a.add_stride + tile.column(p * T::parts);
      unroll<T::rows>(SAMOVAR_BODY(auto r) { __builtin_prefetch(addend + r * a.add_stride, 0, 3); });
    });
}

// The sums with which a tile begins its slice of k, and where they go at its end.
template <class T> SAMOVAR_INLINE void begin_sums(const T& tile, F (&acc)[T::units][T::rows]) {
  const bool first = T::kWalk.slice_bytes == 0 || tile.slice.first_chunk == 0;
  unroll<T::units>(SAMOVAR_BODY(int u) {
    unroll<T::rows>(SAMOVAR_BODY(int r) { acc[u][r] = first ? zero() : load(tile.carried_to(r, u)); });
  });
}
template <class T>
SAMOVAR_INLINE void end_sums(const MatmulArgs& a, const T& tile, int num_chunks,
                             const F (&acc)[T::units][T::rows]) {
  if (T::kWalk.slice_bytes == 0 || tile.slice.end_chunk == num_chunks)
    return finish(a, tile, acc);
  unroll<T::units>(SAMOVAR_BODY(int u) {
    unroll<T::rows>(SAMOVAR_BODY(int r) { store(tile.carried_to(r, u), acc[u][r]); });
  });
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

// How many rows share what a kernel keeps on its stack, and body(part of a) for so many at a time.
constexpr int kMaxPartRows = 128;
template <class Body> SAMOVAR_INLINE void for_row_parts(MatmulArgs a, Body body) {
  const int total = a.rows, parts = (total + kMaxPartRows - 1) / kMaxPartRows;
  for (int p = 0; p < parts; ++p) {
    const int begin = static_cast<int>(static_cast<int64_t>(total) * p / parts);
    const int end = static_cast<int>(static_cast<int64_t>(total) * (p + 1) / parts);
    MatmulArgs part = a;
    part.rows = end - begin;
    part.x += begin * a.x_stride;
    part.out += begin * a.out_stride;
    if (a.add)
      part.add += begin * a.add_stride;
    body(part);
  }
}

// Chunks of a slice at most.
template <Form form, Walk walk> constexpr int max_slice() {
  constexpr int64_t fit = walk.slice_bytes / (walk.panels * chunk_bytes(form));
  return fit > 1 ? static_cast<int>(fit) : 1;
}
// How often a tile fetches in each chunk: with each block of Q8 rows, for a burst of calls would be waited
// for.
template <Form form> constexpr int kFetches = input_row(form) == RowType::Q8 ? chunk_k(form) / kBlock : 1;

// compute(tile) for all rows of walk.panels panels.  begin_slice(Index<walk.panels>, slice) comes before the
// tiles of each slice; a walk with slices has at most kMaxPartRows rows.
template <Form form, Walk walk, class Compute, class BeginSlice>
SAMOVAR_INLINE void walk_rows(const MatmulArgs& a, int panel, bool more, Compute compute,
                              BeginSlice begin_slice) {
  constexpr bool sliced = walk.slice_bytes > 0;
  constexpr int64_t bytes = chunk_bytes(form);
  const int passes = (a.rows + walk.rows - 1) / walk.rows * (kParts / walk.parts);
  const int num_chunks = (a.k + chunk_k(form) - 1) / chunk_k(form);
  constexpr int most = max_slice<form, walk>();
  const int slices = sliced && passes > 1 ? (num_chunks + most - 1) / most : 1;
  const int length = (num_chunks + slices - 1) / slices;
  if (sliced && a.cold && panel == 0)
    fetch_begin<walk.panels>(a, passes > 1 ? length * bytes : walk.ahead);
  alignas(64) float carried[sliced ? kMaxPartRows * walk.panels * kPanelRows : 1];
  for (int first = 0; first < num_chunks; first += length) {
    const int left = num_chunks - first, end = left < length ? num_chunks : first + length;
    const Slice slice{panel, first, end, more};
    const uint8_t* w = a.w + panel * a.panel_stride + end * bytes;
    int after = num_chunks - end < length ? num_chunks - end : length; // chunks
    if (end == num_chunks) {
      w = a.w + (panel + walk.panels) * a.panel_stride;
      after = more ? length : 0;
    }
    NextSlice next(w, after * bytes, int64_t{passes} * (end - first) * kFetches<form>);
    begin_slice(Index<walk.panels>{}, slice);
    // The parts of a panel follow each other, so that a line of `out` is written at once.
    const auto block = SAMOVAR_BODY(auto rows, int row) {
      for (int part = 0; part < kParts; part += walk.parts)
        compute(Tile<walk, rows.value>{slice, passes > 1 ? &next : nullptr, carried, row, part});
    };
    int row = 0;
    for (; row + walk.rows <= a.rows; row += walk.rows)
      block(Index<walk.rows>{}, row);
    rows_left<walk.rows - 1>(a.rows - row, SAMOVAR_BODY(auto rows) { block(rows, row); });
  }
}

struct NoSlice {
  template <class Panels> SAMOVAR_INLINE void operator()(Panels, const Slice&) const {}
};

// The panels from `panel` on as far as they go by walk.panels; returns the first one that is left.
template <Form form, Walk walk, class Compute, class BeginSlice = NoSlice>
SAMOVAR_INLINE int walk_panels(const MatmulArgs& a, int panel, Compute compute, BeginSlice begin_slice = {}) {
  const int panels = (a.n + kPanelRows - 1) / kPanelRows, all = panels + a.panels_after;
  for (; panel + walk.panels <= panels; panel += walk.panels)
    walk_rows<form, walk>(a, panel, panel + 2 * walk.panels <= all, compute, begin_slice);
  return panel;
}

// Those from `panel` on in tiles for many rows.
template <Form form, TileShape shape, int slice_bytes, class Compute, class BeginSlice = NoSlice>
SAMOVAR_INLINE void walk_many(const MatmulArgs& a, int panel, Compute compute, BeginSlice begin_slice = {}) {
  constexpr int ahead = shape.panels > 1 ? shape.stream_ahead : shape.ahead;
  panel = walk_panels<form, Walk{shape.rows, shape.panels, shape.parts, ahead, slice_bytes}>(
      a, panel, compute, begin_slice);
  if constexpr (shape.panels > 1)
    walk_panels<form, Walk{shape.rows, 1, shape.parts, shape.ahead, slice_bytes / shape.panels}>(
        a, panel, compute, begin_slice);
}

template <Form form, TileShape shape, int slice_bytes = 0, class Compute>
SAMOVAR_INLINE void walk(const MatmulArgs& a, Compute compute) {
  int panel = 0;
  if constexpr (shape.few_rows > 0)
    if (a.rows <= shape.few_rows)
      panel = walk_panels<form, Walk{shape.stream_rows, shape.stream_panels, kParts, shape.stream_ahead}>(
          a, panel, compute);
  walk_many<form, shape, slice_bytes>(a, panel, compute);
}

// Calls for the weights that lie walk.ahead bytes on in each panel, share `i` of `shares` of what is as long
// as chunk c; a stream that ends goes on in the next panels.
template <Form form, Walk walk, int shares>
SAMOVAR_INLINE void fetch_ahead(const MatmulArgs& a, const Slice& slice, int c, int num_chunks, int i = 0) {
  constexpr int64_t bytes = chunk_bytes(form);
  constexpr int ahead = static_cast<int>((walk.ahead + bytes - 1) / bytes);
  const uint8_t* p = a.w + slice.panel * a.panel_stride + (c + ahead) * bytes;
  if (c + ahead >= num_chunks) {
    if (!slice.more)
      return;
    p += (walk.panels - 1) * a.panel_stride;
  }
  const int64_t begin = bytes / 64 * i / shares, end = bytes / 64 * (i + 1) / shares;
  for (int64_t panel = 0; panel < walk.panels; ++panel, p += a.panel_stride)
#pragma GCC unroll 1 // calls without anything between them wait for each other
    for (int64_t line = begin; line < end; ++line)
      __builtin_prefetch(p + line * 64, 0, 3);
}

// Calls for what will be read soon, so that one core keeps memory busy: call `i` of kFetches in chunk c.
template <Form form, class T>
SAMOVAR_INLINE void fetch(const MatmulArgs& a, const T& tile, int c, int num_chunks, int i = 0) {
  if (tile.next)
    tile.next->template fetch_share<T::panels>(a.panel_stride);
  else
    fetch_ahead<form, T::kWalk, kFetches<form>>(a, tile.slice, c, num_chunks, i);
}
