// Matmul of Q8 rows with quantized panels.
//
// Weights are unpacked once for all rows of a tile; the integer sum of a block is exact, so the order
// inside a block is free.

constexpr bool has_chunk_256(Form form) {
  return chunk_k(form) == 256;
}
constexpr int code_bits(Form form) {
  return form == Form::U8                                             ? 8
         : form == Form::U6                                           ? 6
         : form == Form::U5 || form == Form::U5m || form == Form::U5k ? 5
                                                                      : 4;
}
constexpr int code_offset(Form form) {
  return form == Form::U4   ? 8
         : form == Form::U5 ? 16
         : form == Form::U6 ? 32
         : form == Form::U8 ? kByteOffset
                            : 0;
}
// Where a sum of products begins: a power of two times the block's codes, negated.
constexpr int log2_of(int power) {
  return power > 1 ? 1 + log2_of(power / 2) : 0;
}
template <int offset> SAMOVAR_INLINE I offset_start(I minus_sum) {
  static_assert((offset & (offset - 1)) == 0);
  if constexpr (offset == 0)
    return iset1(0);
  else
    return shl<log2_of(offset)>(minus_sum);
}
constexpr bool has_minimum(Form form) {
  return form == Form::U4m || form == Form::U5m || form == Form::U4k || form == Form::U5k;
}
constexpr int nibble_bytes(Form form) {
  return form == Form::U8 ? 512 : 256;
} // of a block
constexpr int plane_bytes(Form form) {
  return code_bits(form) == 5 ? 64 : code_bits(form) == 6 ? 128 : 0;
}
constexpr int chunk_blocks(Form form) {
  return chunk_k(form) / kBlock;
}
constexpr int scales_offset(Form form) {
  return chunk_blocks(form) * (nibble_bytes(form) + plane_bytes(form));
}

// Part `part` of block `block` of a chunk: 16/kParts rows by 32 k.
template <Form form> struct WeightBlock {
  const uint8_t* chunk;
  int block;
  int part;

  SAMOVAR_INLINE I word(int offset) const { return iload(chunk + offset + part * kLanes * 4); }
  SAMOVAR_INLINE int nibbles(int j) const { return block * nibble_bytes(form) + j * 64; }
  SAMOVAR_INLINE int plane() const {
    return chunk_blocks(form) * nibble_bytes(form) + block * plane_bytes(form);
  }

  // Codes of k 4j..4j+3 (lo) and 16+4j..16+4j+3 (hi).
  template <int j> SAMOVAR_INLINE void codes(I& lo, I& hi) const {
    if constexpr (form == Form::U8) {
      lo = byte_codes(word(nibbles(j)));
      hi = byte_codes(word(nibbles(4 + j)));
      return;
    }
    const I both = word(nibbles(j)), mask = iset1(0x0f0f0f0f);
    lo = iand(both, mask);
    hi = iand(shr<4>(both), mask);
    if constexpr (code_bits(form) == 5) {
      const I bits = word(plane()), bit = iset1(0x10101010);
      lo = ior(lo, iand(shl<4 - j>(bits), bit));
      if constexpr (j == 0)
        hi = ior(hi, iand(bits, bit));
      else
        hi = ior(hi, iand(shr<j>(bits), bit));
    } else if constexpr (code_bits(form) == 6) {
      lo = ior(lo, two_bits<j>(word(plane())));
      hi = ior(hi, two_bits<j>(word(plane() + 64)));
    }
  }
  template <int j> SAMOVAR_INLINE static I two_bits(I word) {
    const I bits = iset1(0x30303030);
    if constexpr (j < 2)
      return iand(shl<4 - 2 * j>(word), bits);
    else if constexpr (j == 2)
      return iand(word, bits);
    else
      return iand(shr<2>(word), bits);
  }

  SAMOVAR_INLINE const uint8_t* halves(int offset) const { return chunk + offset + part * kLanes * 2; }

  // The float scale of a code, and the minimum.
  SAMOVAR_INLINE F scale() const {
    constexpr int base = scales_offset(form);
    if constexpr (!has_chunk_256(form))
      return load_f16(halves(base + block * 32));
    else if constexpr (form == Form::U6)
      return load_f16(halves(base + 256));
    else
      return mul(load_f16(halves(base + 256)), to_float(load_u8(chunk + base + block * 16 + part * kLanes)));
  }
  SAMOVAR_INLINE F minimum() const {
    constexpr int base = scales_offset(form);
    if constexpr (!has_chunk_256(form))
      return load_f16(halves(base + 64 + block * 32));
    else
      return sub(zero(), mul(load_f16(halves(base + 256 + 32)),
                             to_float(load_u8(chunk + base + 128 + block * 16 + part * kLanes))));
  }
  // U6: the integer scale of 16 k.
  SAMOVAR_INLINE F half_scale(int half) const {
    return to_float(load_s8(chunk + scales_offset(form) + (block * 2 + half) * 16 + part * kLanes));
  }
};

template <int rows> struct Q8Rows {
  const uint8_t* row[rows];
  int64_t blocks;
  SAMOVAR_INLINE const int8_t* codes(int r, int b) const {
    return reinterpret_cast<const int8_t*>(row[r]) + b * kBlock;
  }
  SAMOVAR_INLINE const Q8Block& block(int r, int b) const {
    return reinterpret_cast<const Q8Block*>(row[r] + blocks)[b];
  }
};

// acc[r] += one block of 32 k.
template <Form form, int rows, class Block>
SAMOVAR_INLINE void q8_block(const Block& w, const Q8Rows<rows>& x, int b, F* acc) {
  using Sum = Dot<code_bits(form)>;
  constexpr int offset = code_offset(form);
  if constexpr (form == Form::U6) { // two sums, each with its own integer scale
    Sum lo[rows] = {}, hi[rows] = {};
    unroll<rows>(SAMOVAR_BODY(auto r) {
      const I both = iset1(x.block(r, b).minus_sum), upper = iset1(x.block(r, b).minus_sum_hi);
      lo[r] = Sum(offset_start<offset>(isub(both, upper)));
      hi[r] = Sum(offset_start<offset>(upper));
    });
    unroll<4>(SAMOVAR_BODY(auto j) {
      I a, c;
      w.template codes<j.value>(a, c);
      unroll<rows>(SAMOVAR_BODY(auto r) {
        lo[r].template add<j.value, j.value>(a, x.codes(r, b));
        hi[r].template add<j.value, j.value>(c, x.codes(r, b) + 16);
      });
    });
    const F d = w.scale(), s_lo = w.half_scale(0), s_hi = w.half_scale(1);
    unroll<rows>(SAMOVAR_BODY(auto r) { // below 2^24, so exact in float
      const F sum = fma(to_float(lo[r].total()), s_lo, mul(to_float(hi[r].total()), s_hi));
      acc[r] = fma(sum, mul(d, set1(x.block(r, b).d)), acc[r]);
    });
  } else {
    Sum sum[rows] = {};
    unroll<rows>(
        SAMOVAR_BODY(auto r) { sum[r] = Sum(offset_start<offset>(iset1(x.block(r, b).minus_sum))); });
    unroll<4>(SAMOVAR_BODY(auto j) {
      I lo, hi;
      w.template codes<j.value>(lo, hi);
      unroll<rows>(SAMOVAR_BODY(auto r) { sum[r].template add<2 * j.value, j.value>(lo, x.codes(r, b)); });
      unroll<rows>(
          SAMOVAR_BODY(auto r) { sum[r].template add<2 * j.value + 1, j.value>(hi, x.codes(r, b) + 16); });
    });
    const F d = w.scale();
    unroll<rows>(SAMOVAR_BODY(auto r) {
      acc[r] = fma(to_float(sum[r].total()), mul(d, set1(x.block(r, b).d)), acc[r]);
    });
    if constexpr (has_minimum(form)) {
      const F m = w.minimum();
      unroll<rows>(SAMOVAR_BODY(auto r) { acc[r] = fma(m, set1(x.block(r, b).dsum), acc[r]); });
    }
  }
}

template <int rows> SAMOVAR_INLINE Q8Rows<rows> q8_rows(const MatmulArgs& a, int first) {
  Q8Rows<rows> x;
  x.blocks = q8_blocks_offset(a.k);
  unroll<rows>(SAMOVAR_BODY(auto r) { x.row[r] = a.x + (first + r) * a.x_stride; });
  return x;
}

template <Form form, class T> inline void q8_tile(const MatmulArgs& a, const T& tile) {
  constexpr int rows = T::rows, units = T::units, per_chunk = chunk_blocks(form);
  const Q8Rows<rows> x = q8_rows<rows>(a, tile.row);
  const int num_blocks = (a.k + kBlock - 1) / kBlock;
  const int num_chunks = (num_blocks + per_chunk - 1) / per_chunk;
  const uint8_t* w = a.w + tile.panel * a.panel_stride;

  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  int b = 0;
  const auto step = SAMOVAR_BODY(auto i) {
    unroll<units>(SAMOVAR_BODY(auto u) {
      const WeightBlock<form> block{w + (u / T::parts) * a.panel_stride, i, tile.part + u % T::parts};
      q8_block<form, rows>(block, x, b, acc[u]);
    });
    ++b;
  };
  for (int c = 0; c < num_chunks; ++c, w += chunk_bytes(form)) {
    prefetch_chunk<form>(a, tile, w, c, num_chunks);
    if constexpr (per_chunk == 2) {
      step(Index<0>{});
      if (b < num_blocks)
        step(Index<1>{});
    } else {
      for (int i = 0; i < per_chunk && b < num_blocks; ++i)
        step(i);
    }
  }
  finish(a, tile, acc);
}

// A block of a panel that is unpacked for many rows: what WeightBlock computes is loaded here.
template <Form form> struct UnpackedBlock {
  struct alignas(64) Data {
    uint8_t codes[8][64]; // of the lower k, then of the upper
    float scale[16];
    float minimum[has_minimum(form) ? 16 : 1];
  };
  const Data& data;
  int part;

  SAMOVAR_INLINE UnpackedBlock(const Data& block, int p) : data(block), part(p) {}
  template <int j> SAMOVAR_INLINE void codes(I& lo, I& hi) const {
    lo = iload(data.codes[j] + part * kLanes * 4);
    hi = iload(data.codes[4 + j] + part * kLanes * 4);
  }
  SAMOVAR_INLINE F scale() const { return load(data.scale + part * kLanes); }
  SAMOVAR_INLINE F minimum() const { return load(data.minimum + part * kLanes); }
};

// Unpacks one part of a block.
template <Form form>
SAMOVAR_INLINE void unpack(const WeightBlock<form>& from, typename UnpackedBlock<form>::Data& to) {
  const int lane = from.part * kLanes;
  unroll<4>(SAMOVAR_BODY(auto j) {
    I lo, hi;
    from.template codes<j.value>(lo, hi);
    istore(to.codes[j] + lane * 4, lo);
    istore(to.codes[4 + j] + lane * 4, hi);
  });
  store(to.scale + lane, from.scale());
  if constexpr (has_minimum(form))
    store(to.minimum + lane, from.minimum());
}

template <Form form, class T>
SAMOVAR_INLINE void unpacked_tile(const MatmulArgs& a, const T& tile,
                                  const typename UnpackedBlock<form>::Data* blocks, int num_blocks) {
  constexpr int rows = T::rows, units = T::units;
  const Q8Rows<rows> x = q8_rows<rows>(a, tile.row);
  F acc[units][rows];
  unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
  for (int b = 0; b < num_blocks; ++b)
    unroll<units>(SAMOVAR_BODY(auto u) {
      q8_block<form, rows>(UnpackedBlock<form>(blocks[b], tile.part + u), x, b, acc[u]);
    });
  finish(a, tile, acc);
}

constexpr int kMaxUnpacked = 64; // blocks, on the stack

// Each panel is unpacked once for all rows: putting a fifth bit to each code for every eight of them is a
// tenth of the work.
template <Form form> [[gnu::noinline]] void matmul_q8_unpacked(const MatmulArgs& a) {
  constexpr int per_chunk = chunk_blocks(form);
  typename UnpackedBlock<form>::Data blocks[kMaxUnpacked];
  const int num_blocks = (a.k + kBlock - 1) / kBlock, panels = (a.n + kPanelRows - 1) / kPanelRows;
  for (int panel = 0; panel < panels; ++panel) {
    const uint8_t* w = a.w + panel * a.panel_stride;
    const bool more = panel + 1 < panels + a.panels_after;
    for (int b = 0; b < num_blocks; ++b) {
      const uint8_t* chunk = w + b / per_chunk * chunk_bytes(form);
      if (more && b % per_chunk == 0)
        for (int64_t line = 0; line < chunk_bytes(form); line += 64)
          __builtin_prefetch(chunk + a.panel_stride + line, 0, 2);
      unroll<kParts>(
          SAMOVAR_BODY(auto part) { unpack(WeightBlock<form>{chunk, b % per_chunk, part}, blocks[b]); });
    }
    walk_rows<1, kQ8Tiles.parts, kQ8Tiles.rows, 0>(
        a, panel, false,
        SAMOVAR_BODY(const auto& tile) { unpacked_tile<form>(a, tile, blocks, num_blocks); });
  }
}

template <Form form> void matmul_q8(const MatmulArgs& a) {
  if constexpr (kQ8Tiles.unpack_rows > 0 && code_bits(form) == 5)
    if (a.rows >= kQ8Tiles.unpack_rows && a.k <= kMaxUnpacked * kBlock)
      return matmul_q8_unpacked<form>(a);
  walk<kQ8Tiles>(a, SAMOVAR_BODY(const auto& tile) { q8_tile<form>(a, tile); });
}
