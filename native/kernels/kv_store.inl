// Storing a token's k and v in a page, and widening a Q8 page to the BF16 layout.

inline void kv_store_f32(const float* k, const float* v, int hd, int slot, uint8_t* page) {
  float* keys = reinterpret_cast<float*>(page);
  for (int d = 0; d < hd; ++d)
    keys[d * kPageTokens + slot] = k[d];
  __builtin_memcpy(page + kv_half_bytes(KvType::F32, hd) + slot * hd * 4, v, hd * 4);
}

inline void kv_store_bf16(const float* k, const float* v, int hd, int slot, uint8_t* page) {
  uint32_t* keys = reinterpret_cast<uint32_t*>(page);
  uint16_t* values = reinterpret_cast<uint16_t*>(page + kv_half_bytes(KvType::BF16, hd));
  uint16_t* value = values + slot / 2 * hd * 2 + slot % 2;
  for (int d = 0; d < hd; d += kLanes) {
    uint32_t a[kLanes], b[kLanes];
    istore(a, bf16_bits(load(k + d)));
    istore(b, bf16_bits(load(v + d)));
    for (int i = 0; i < kLanes; i += 2)
      keys[(d + i) / 2 * kPageTokens + slot] = a[i] >> 16 | a[i + 1];
    for (int i = 0; i < kLanes; ++i)
      value[(d + i) * 2] = static_cast<uint16_t>(b[i] >> 16);
  }
}

inline void kv_store_q8(const float* k, const float* v, int hd, int slot, uint8_t* page) {
  const float* source[2] = {k, v};
  for (int half = 0; half < 2; ++half, page += kv_half_bytes(KvType::Q8, hd)) {
    int8_t* codes = reinterpret_cast<int8_t*>(page) + slot * hd;
    float* scales = reinterpret_cast<float*>(page + kPageTokens * hd) + slot * (hd / 32);
    for (int b = 0; b < hd / 32; ++b) {
      Q8Block block;
      quantize_block(source[half] + b * 32, codes + b * 32, block);
      scales[b] = block.d;
    }
  }
}

// The bf16 of byte `b` of each word of codes, times its scale, in the upper half of each lane.
template <int b> SAMOVAR_INLINE I widen_code(I codes, F scales) {
  return bf16_bits(mul(to_float(sra<24>(shl<24 - 8 * b>(codes))), scales));
}

inline void widen_keys(const uint8_t* keys, int hd, uint8_t* out) {
  const uint8_t* scales = keys + kPageTokens * hd;
  for (int t = 0; t < kPageTokens; t += kLanes)
    for (int b = 0; b < hd / 32; ++b) {
      const F scale = as_float(gather(scales + (t * (hd / 32) + b) * 4, hd / 32 * 4));
      for (int d = b * 32; d < b * 32 + 32; d += 4) {
        const I codes = gather(keys + t * hd + d, hd);
        istore(out + (d / 2 * kPageTokens + t) * 4,
               ior(shr<16>(widen_code<0>(codes, scale)), widen_code<1>(codes, scale)));
        istore(out + ((d / 2 + 1) * kPageTokens + t) * 4,
               ior(shr<16>(widen_code<2>(codes, scale)), widen_code<3>(codes, scale)));
      }
    }
}

inline void widen_values(const uint8_t* values, int hd, uint8_t* out) {
  const float* scales = reinterpret_cast<const float*>(values + kPageTokens * hd);
  for (int t = 0; t < kPageTokens; t += 2)
    for (int d = 0; d < hd; d += kLanes) {
      const F even = set1(scales[t * (hd / 32) + d / 32]), odd = set1(scales[(t + 1) * (hd / 32) + d / 32]);
      const I a = bf16_bits(mul(to_float(load_s8(values + t * hd + d)), even));
      const I b = bf16_bits(mul(to_float(load_s8(values + (t + 1) * hd + d)), odd));
      istore(out + (t / 2 * hd + d) * 4, ior(shr<16>(a), b));
    }
}
