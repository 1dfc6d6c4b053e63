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
// Whether codes are gathered from several words each.
constexpr bool has_split_codes(Form form) {
  return code_bits(form) == 5 || code_bits(form) == 6;
}
constexpr bool has_minimum(Form form) {
  return form == Form::U4m || form == Form::U5m || form == Form::U4k || form == Form::U5k;
}
// Whether a block's scale and minimum are products of two numbers, which pays to make once.
constexpr bool has_scale_products(Form form) {
  return form == Form::U4k || form == Form::U5k;
}
// Of a block: codes, or their lower four bits where a plane holds the fifth.
constexpr int code_bytes(Form form) {
  return form == Form::U8 ? 512 : form == Form::U6 ? 384 : 256;
}
constexpr int plane_bytes(Form form) {
  return code_bits(form) == 5 ? 64 : 0;
}
constexpr int chunk_blocks(Form form) {
  return chunk_k(form) / kBlock;
}
constexpr int scales_offset(Form form) {
  return chunk_blocks(form) * (code_bytes(form) + plane_bytes(form));
}

// Part `part` of block `block` of a chunk: 16/kParts rows by 32 k.
template <Form form> struct WeightBlock {
  const uint8_t* chunk;
  int block;
  int part;

  SAMOVAR_INLINE I word(int offset) const { return iload(chunk + offset + part * kLanes * 4); }
  SAMOVAR_INLINE int code_word(int j) const { return block * code_bytes(form) + j * 64; }
  SAMOVAR_INLINE int plane() const {
    return chunk_blocks(form) * code_bytes(form) + block * plane_bytes(form);
  }

  // Codes of k 4j..4j+3 (lo) and 16+4j..16+4j+3 (hi).
  template <int j> SAMOVAR_INLINE void codes(I& lo, I& hi) const {
    if constexpr (form == Form::U8) {
      lo = byte_codes(word(code_word(j)));
      hi = byte_codes(word(code_word(4 + j)));
      return;
    }
    if constexpr (form == Form::U6) {
      lo = six_bits<j>(code_word(0));
      hi = six_bits<j>(code_word(3));
      return;
    }
    const I both = word(code_word(j)), mask = iset1(0x0f0f0f0f);
    lo = iand(both, mask);
    hi = iand(shr<4>(both), mask);
    if constexpr (code_bits(form) == 5) {
      const I bits = word(plane()), bit = iset1(0x10101010);
      lo = ior(lo, iand(shl<4 - j>(bits), bit));
      if constexpr (j == 0)
        hi = ior(hi, iand(bits, bit));
      else
        hi = ior(hi, iand(shr<j>(bits), bit));
    }
  }
  // Vector j of the four that lie in three from `offset` on.
  template <int j> SAMOVAR_INLINE I six_bits(int offset) const {
    if constexpr (j < 3)
      return iand(word(offset + j * 64), iset1(0x3f3f3f3f));
    const I first = iand(shr<6>(word(offset)), iset1(0x03030303));
    const I second = iand(shr<4>(word(offset + 64)), iset1(0x0c0c0c0c));
    return ior(ior(first, second), iand(shr<2>(word(offset + 128)), iset1(0x30303030)));
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

// Into how many parts a block falls that have integer scales of their own: U6 has one for 16 k.
constexpr int scaled_parts(Form form) {
  return form == Form::U6 ? 2 : 1;
}

// body(r, u) for each row and vector, the vectors of a row side by side.
template <int rows, int count, class Body> SAMOVAR_INLINE void for_sums(Body body) {
  unroll<rows * count>(SAMOVAR_BODY(int i) { body(i / count, i % count); });
}

// Where the sum of a row begins.
template <Form form, int scaled_part> SAMOVAR_INLINE I sums_start(const Q8Block& block) {
  const int upper = block.minus_sum_hi;
  const I minus_sum = scaled_parts(form) == 1 ? iset1(block.minus_sum)
                      : scaled_part == 0      ? isub(iset1(block.minus_sum), iset1(upper))
                                              : iset1(upper);
  return offset_start<code_offset(form)>(minus_sum);
}

// The exact sums of a block of 32 k, or of one of its scaled parts, for `count` vectors of weights.  Each
// broadcast of activations serves all of them: a row needs eight for a vector's eight products, and loads are
// as scarce as products.
template <Form form, int scaled_part, int count, int rows, class Block>
SAMOVAR_INLINE void q8_sums(const Block* w, const Q8Rows<rows>& x, int b, I (&sums)[count][rows]) {
  using Sum = Dot<code_bits(form)>;
  constexpr int halves = 2 / scaled_parts(form); // of 16 k
  Sum sum[count][rows];
  for_sums<rows, count>(
      SAMOVAR_BODY(int r, int u) { sum[u][r] = Sum(sums_start<form, scaled_part>(x.block(r, b))); });
  unroll<4>(SAMOVAR_BODY(auto j) {
    I codes[2][count];
    unroll<count>(SAMOVAR_BODY(int u) { w[u].template codes<j.value>(codes[0][u], codes[1][u]); });
    unroll<halves>(SAMOVAR_BODY(auto i) {
      constexpr int half = scaled_part + i.value;
      for_sums<rows, count>(SAMOVAR_BODY(int r, int u) {
        sum[u][r].template add<halves * j.value + i.value, j.value>(codes[half][u],
                                                                    x.codes(r, b) + 16 * half);
      });
    });
  });
  for_sums<rows, count>(SAMOVAR_BODY(int r, int u) { sums[u][r] = sum[u][r].total(); });
}

// As many of a tile's vectors as have room in registers for their sums, what these are added to, and weights.
constexpr int vectors_at_once(Form form, int units, int rows) {
  int count = units;
  while (count > 1 && (units % count != 0 ||
                       scaled_parts(form) * count * rows + units * rows + 2 * count + 3 > kRegisters))
    --count;
  return count;
}

// acc[u][r] += one block of 32 k of `count` vectors.
template <Form form, int count, int rows, class Block>
SAMOVAR_INLINE void add_block(const Block* w, const Q8Rows<rows>& x, int b, F (*acc)[rows]) {
  F total[count][rows]; // with integer scales: below 2^24, so exact
  unroll<scaled_parts(form)>(SAMOVAR_BODY(auto part) {
    I sums[count][rows];
    q8_sums<form, part.value>(w, x, b, sums);
    F scale[count];
    if constexpr (scaled_parts(form) > 1)
      unroll<count>(SAMOVAR_BODY(int u) { scale[u] = w[u].half_scale(part.value); });
    for_sums<rows, count>(SAMOVAR_BODY(int r, int u) {
      const F sum = to_float(sums[u][r]);
      if constexpr (scaled_parts(form) == 1)
        total[u][r] = sum;
      else if constexpr (part.value == 0)
        total[u][r] = mul(sum, scale[u]);
      else
        total[u][r] = fma(sum, scale[u], total[u][r]);
    });
  });
  F d[count];
  unroll<count>(SAMOVAR_BODY(int u) { d[u] = w[u].scale(); });
  for_sums<rows, count>(SAMOVAR_BODY(int r, int u) {
    F& to = acc[u][r];
    to = fma(total[u][r], mul(d[u], set1(x.block(r, b).d)), to);
  });
  if constexpr (has_minimum(form)) {
    F m[count];
    unroll<count>(SAMOVAR_BODY(int u) { m[u] = w[u].minimum(); });
    for_sums<rows, count>(SAMOVAR_BODY(int r, int u) {
      F& to = acc[u][r];
      to = fma(m[u], set1(x.block(r, b).dsum), to);
    });
  }
}
// acc[u][r] += one block of 32 k.
template <Form form, int units, int rows, class Block>
SAMOVAR_INLINE void q8_block(const Block (&w)[units], const Q8Rows<rows>& x, int b, F (&acc)[units][rows]) {
  constexpr int count = vectors_at_once(form, units, rows);
  unroll<units / count>(SAMOVAR_BODY(auto i) {
    const int first = i * count;
    add_block<form, count>(w + first, x, b, acc + first);
  });
}

template <int rows> SAMOVAR_INLINE Q8Rows<rows> q8_rows(const MatmulArgs& a, int first) {
  Q8Rows<rows> x;
  x.blocks = q8_blocks_offset(a.k);
  unroll<rows>(SAMOVAR_BODY(auto r) { x.row[r] = a.x + (first + r) * a.x_stride; });
  return x;
}

// weights_of(u): the weights of the tile's vector u, from where its slice begins.
template <Form form, class T, class WeightsOf>
SAMOVAR_INLINE void q8_tile(const MatmulArgs& a, const T& tile, WeightsOf weights_of) {
  using Weights = decltype(weights_of(Index<0>{}));
  constexpr int rows = T::rows, units = T::units, per_chunk = chunk_blocks(form);
  const Q8Rows<rows> x = q8_rows<rows>(a, tile.row);
  const int num_blocks = (a.k + kBlock - 1) / kBlock;
  const int num_chunks = (num_blocks + per_chunk - 1) / per_chunk;
  Weights w[units];
  unroll<units>(SAMOVAR_BODY(auto u) { w[u] = weights_of(u); });

  F acc[units][rows];
  begin_sums(tile, acc);
  fetch_addends(a, tile, num_chunks);
  int b = tile.slice.first_chunk * per_chunk;
  const auto step = SAMOVAR_BODY(int c, auto i) {
    fetch<form>(a, tile, c, num_chunks, i);
    typename Weights::Block blocks[units];
    unroll<units>(SAMOVAR_BODY(auto u) { blocks[u] = w[u].block(i, tile.part + u % T::parts); });
    q8_block<form>(blocks, x, b, acc);
    ++b;
  };
  for (int c = tile.slice.first_chunk; c < tile.slice.end_chunk; ++c) {
    if constexpr (per_chunk == 2) {
      step(c, Index<0>{});
      if (b < num_blocks)
        step(c, Index<1>{});
    } else {
      for (int i = 0; i < per_chunk && b < num_blocks; ++i)
        step(c, i);
    }
    unroll<units>(SAMOVAR_BODY(auto u) { w[u].next_chunk(); });
  }
  end_sums(a, tile, num_chunks, acc);
}

// Weights as they lie in a panel.
template <Form form, class BlockType = WeightBlock<form>> struct PackedWeights {
  using Block = BlockType;
  const uint8_t* chunk;
  SAMOVAR_INLINE Block block(int i, int part) const { return {chunk, i, part}; }
  SAMOVAR_INLINE void next_chunk() { chunk += chunk_bytes(form); }
};

// Where the slice of a tile begins in the panel of its vector u.
template <Form form, class T>
SAMOVAR_INLINE const uint8_t* packed_weights(const MatmulArgs& a, const T& tile, int u) {
  const int panel = tile.slice.panel + u / T::parts;
  return a.w + panel * a.panel_stride + tile.slice.first_chunk * chunk_bytes(form);
}

template <Form form> void matmul_q8_packed(const MatmulArgs& a) {
  walk<form, form == Form::U8 ? kByteTiles : kQ8Tiles, kQ8Slices.bytes>(
      a, SAMOVAR_BODY(const auto& tile) {
        q8_tile<form>(
            a, tile, SAMOVAR_BODY(auto u) { return PackedWeights<form>{packed_weights<form>(a, tile, u)}; });
      });
}

// Scales as a block of rows needs them, made once for all rows; codes as they lie in a panel.  Making
// products of two numbers for every few rows is a tenth of the work.
template <Form form> struct ScaledWeights {
  struct alignas(64) Prepared { // of a block
    float scale[16];
    float others[scaled_parts(form)][16]; // the minimum, or the scales of halves
  };
  struct Block : WeightBlock<form> {
    const Prepared* prepared;
    SAMOVAR_INLINE F scale() const { return load(prepared->scale + this->part * kLanes); }
    SAMOVAR_INLINE F minimum() const { return load(prepared->others[0] + this->part * kLanes); }
  };
  const uint8_t* chunk;
  const Prepared* prepared;

  SAMOVAR_INLINE static ScaledWeights at(const uint8_t* chunk, const Prepared* prepared) {
    return {chunk, prepared};
  }
  SAMOVAR_INLINE static void prepare(const WeightBlock<form>& from, Prepared& to) {
    const int lane = from.part * kLanes;
    store(to.scale + lane, from.scale());
    if constexpr (has_minimum(form))
      store(to.others[0] + lane, from.minimum());
    if constexpr (scaled_parts(form) > 1)
      unroll<2>(SAMOVAR_BODY(int h) { store(to.others[h] + lane, from.half_scale(h)); });
  }
  SAMOVAR_INLINE Block block(int i, int part) const { return {{chunk, i, part}, prepared + i}; }
  SAMOVAR_INLINE void next_chunk() {
    chunk += chunk_bytes(form);
    prepared += chunk_blocks(form);
  }
};

// Codes too: gathering the five or six bits of each for every few rows is a tenth of the work.
template <Form form> struct UnpackedWeights {
  struct alignas(64) Prepared {
    uint8_t codes[8][64]; // of the lower k, then of the upper
    typename ScaledWeights<form>::Prepared scales;
  };
  struct Block {
    const Prepared* prepared;
    int part;
    template <int j> SAMOVAR_INLINE void codes(I& lo, I& hi) const {
      lo = iload(prepared->codes[j] + part * kLanes * 4);
      hi = iload(prepared->codes[4 + j] + part * kLanes * 4);
    }
    SAMOVAR_INLINE F scale() const { return load(prepared->scales.scale + part * kLanes); }
    SAMOVAR_INLINE F minimum() const { return load(prepared->scales.others[0] + part * kLanes); }
    SAMOVAR_INLINE F half_scale(int half) const {
      return load(prepared->scales.others[half] + part * kLanes);
    }
  };
  const Prepared* prepared;

  SAMOVAR_INLINE static UnpackedWeights at(const uint8_t*, const Prepared* prepared) { return {prepared}; }
  SAMOVAR_INLINE static void prepare(const WeightBlock<form>& from, Prepared& to) {
    unroll<4>(SAMOVAR_BODY(auto j) {
      I lo, hi;
      from.template codes<j.value>(lo, hi);
      istore(to.codes[j] + from.part * kLanes * 4, lo);
      istore(to.codes[4 + j] + from.part * kLanes * 4, hi);
    });
    ScaledWeights<form>::prepare(from, to.scales);
  }
  SAMOVAR_INLINE Block block(int i, int part) const { return {prepared + i, part}; }
  SAMOVAR_INLINE void next_chunk() { prepared += chunk_blocks(form); }
};

// Each slice is prepared once for all rows, which are at least `from_rows`.
template <Form form, class Weights, int from_rows>
[[gnu::noinline]] void matmul_q8_prepared(const MatmulArgs& a) {
  static_assert(kQ8Slices.bytes > 0 && from_rows > kQ8Tiles.rows,
                "k is cut where several blocks of rows are");
  constexpr int per_chunk = chunk_blocks(form);
  constexpr Walk tiles{kQ8Tiles.rows, kQ8Tiles.panels, kQ8Tiles.parts, 0, kQ8Slices.bytes};
  typename Weights::Prepared blocks[tiles.panels * max_slice<form, tiles>() * per_chunk];
  int length = 0; // of the slice, in blocks
  walk_many<form, kQ8Tiles, kQ8Slices.bytes>(
      a, 0,
      SAMOVAR_BODY(const auto& tile) {
        q8_tile<form>(
            a, tile, SAMOVAR_BODY(auto u) {
              return Weights::at(packed_weights<form>(a, tile, u), blocks + u / tile.parts * length);
            });
      },
      SAMOVAR_BODY(auto panels, const Slice& slice) {
        length = (slice.end_chunk - slice.first_chunk) * per_chunk;
        for (int p = 0; p < panels; ++p) {
          const uint8_t* w = a.w + (slice.panel + p) * a.panel_stride + slice.first_chunk * chunk_bytes(form);
          for (int b = 0; b < length; ++b) {
            const uint8_t* chunk = w + b / per_chunk * chunk_bytes(form);
            unroll<kParts>(SAMOVAR_BODY(auto part) {
              Weights::prepare(WeightBlock<form>{chunk, b % per_chunk, part}, blocks[p * length + b]);
            });
          }
        }
      });
}

template <Form form> void matmul_q8(const MatmulArgs& a) {
  if constexpr (kQ8Slices.bytes > 0)
    if (a.rows > kMaxPartRows)
      return for_row_parts(a, SAMOVAR_BODY(const MatmulArgs& part) { matmul_q8<form>(part); });
  if constexpr (kQ8Slices.unpack_rows > 0 && has_split_codes(form))
    if (a.rows >= kQ8Slices.unpack_rows)
      return matmul_q8_prepared<form, UnpackedWeights<form>, kQ8Slices.unpack_rows>(a);
  if constexpr (kQ8Slices.scale_rows > 0 && has_scale_products(form))
    if (a.rows >= kQ8Slices.scale_rows)
      return matmul_q8_prepared<form, ScaledWeights<form>, kQ8Slices.scale_rows>(a);
  matmul_q8_packed<form>(a);
}
