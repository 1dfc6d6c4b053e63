// The fastest that the matrix unit can multiply: 16 cycles a product, whose 52 cycles of latency four sums
// cover.

template <RowType type> inline int64_t peak_tiles(int rounds) {
  alignas(64) uint8_t codes[kTileBytes];
  for (int i = 0; i < kTileBytes; ++i) // a bf16 is then about 1
    codes[i] = static_cast<uint8_t>(type == RowType::BF16 && i % 2 == 1 ? 0x3f : i * 37);
  const Tiles guard(kTileRows, 0);
  unroll<4>(SAMOVAR_BODY(auto t) {
    tile_zero<t.value>();
    tile_load<4 + t.value>(codes, kTileRowBytes);
  });
  for (int round = 0; round < rounds; ++round)
    unroll<4>(SAMOVAR_BODY(auto t) {
      if constexpr (type == RowType::Q8)
        tile_dot_s8<t.value, 4 + t.value % 2, 6 + t.value / 2>();
      else
        tile_dot_bf16<t.value, 4 + t.value % 2, 6 + t.value / 2>();
    });
  alignas(64) uint8_t totals[kTileBytes];
  unroll<4>(SAMOVAR_BODY(auto t) { tile_store<t.value>(totals, kTileRowBytes); });
  return int64_t{rounds} * 4 * kTileRows * 16 * kTileRowBytes / (type == RowType::Q8 ? 1 : 2);
}
