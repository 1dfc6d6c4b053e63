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
  uint8_t* values = page + kv_half_bytes(KvType::Q8, hd);
  float* key_scales = reinterpret_cast<float*>(page + kPageTokens * hd);
  float* value_scales = reinterpret_cast<float*>(values + kPageTokens * hd) + slot * (hd / 32);
  for (int b = 0; b < hd / 32; ++b) {
    Q8Block block;
    int8_t codes[32];
    quantize_block(k + b * 32, codes, block);
    for (int i = 0; i < 32; i += 4)
      __builtin_memcpy(page + ((b * 32 + i) * kPageTokens + slot * 4), codes + i, 4);
    key_scales[b * kPageTokens + slot] = block.d;
    quantize_block(v + b * 32, reinterpret_cast<int8_t*>(values) + slot * hd + b * 32, block);
    value_scales[b] = block.d;
  }
}

// Byte `b` of each word of codes times its scale.
template <int b> SAMOVAR_INLINE F scaled_code(I codes, F scales) {
  return mul(to_float(sra<24>(shl<24 - 8 * b>(codes))), scales);
}

inline void widen_keys(const uint8_t* keys, int hd, uint8_t* out) {
  const float* scales = reinterpret_cast<const float*>(keys + kPageTokens * hd);
  for (int d = 0; d < hd; d += 4)
    for (int t = 0; t < kPageTokens; t += kLanes) {
      const F scale = load(scales + d / 32 * kPageTokens + t);
      const I codes = iload(keys + d * kPageTokens + t * 4);
      uint8_t* pairs = out + (d / 2 * kPageTokens + t) * 4;
      istore(pairs, bf16_pair(scaled_code<0>(codes, scale), scaled_code<1>(codes, scale)));
      istore(pairs + kPageTokens * 4, bf16_pair(scaled_code<2>(codes, scale), scaled_code<3>(codes, scale)));
    }
}

inline void widen_values(const uint8_t* values, int hd, uint8_t* out) {
  const float* scales = reinterpret_cast<const float*>(values + kPageTokens * hd);
  for (int t = 0; t < kPageTokens; t += 2)
    for (int d = 0; d < hd; d += kLanes) {
      const uint8_t* codes = values + t * hd + d;
      const F even = set1(scales[t * (hd / 32) + d / 32]), odd = set1(scales[(t + 1) * (hd / 32) + d / 32]);
      istore(out + (t / 2 * hd + d) * 4,
             bf16_pair(mul(to_float(load_s8(codes)), even), mul(to_float(load_s8(codes + hd)), odd)));
    }
}
