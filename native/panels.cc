#include "panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "GGUF blocks are little-endian");

namespace samovar {
namespace {

uint16_t load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

void store16(uint8_t* p, uint16_t v) {
  std::memcpy(p, &v, sizeof v);
}
void store32(uint8_t* p, uint32_t v) {
  std::memcpy(p, &v, sizeof v);
}

float float_from(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// Without the F16C instructions, and without passing through a float denormal, which DAZ would drop.
float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0)
    return float_from(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  return float_from(sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13);
}

float load_half(const uint8_t* p) {
  return half_to_float(load16(p));
}

// ---- Where the parts of a chunk lie (dtype.h draws them) ---------------------------------------

constexpr int kWord = kPanelRows * 4;                                     // bytes from word to word of a lane
constexpr int kNibbles = 256, kPlane1 = 64, kSextets = 384, kBytes = 512; // bytes of a block of 32 k

// Offsets in a chunk of 64 k: scales follow the codes, minimums the scales.
template <int kCodes> constexpr int scale_at(int block) {
  return 2 * kCodes + block * 32;
}
template <int kCodes> constexpr int minimum_at(int block) {
  return 2 * kCodes + 64 + block * 32;
}

// Offsets in a chunk of 256 k, `codes` being the bytes of all codes.
struct SuperChunk {
  int codes;
  constexpr int scale(int block) const { return codes + block * 16; }
  constexpr int minimum(int block) const { return codes + 128 + block * 16; }
  constexpr int half_scale(int block, int half) const { return codes + block * 32 + half * 16; }
  constexpr int d() const { return codes + 256; }
  constexpr int dmin() const { return codes + 288; }
};
constexpr SuperChunk kU4k{8 * kNibbles}, kU5k{8 * (kNibbles + kPlane1)}, kU6{8 * kSextets};

// ---- Packing: each function fills one lane ------------------------------------------------------

void pack_words(const uint8_t* from, int words, int lane, uint8_t* to) {
  for (int j = 0; j < words; ++j)
    store32(to + j * kWord + lane * 4, load32(from + j * 4));
}

// GGUF keeps bit 4 of q[l] at bit l; the panel wants q[4j + i] at bit 8i + j and q[16 + 4j + i] at
// bit 8i + 4 + j: in each half a 4 x 4 transposition, then one nibble of each half to each byte.
uint32_t plane_word(uint32_t bits) {
  uint32_t swap = (bits ^ (bits >> 3)) & 0x0a0a0a0a;
  bits ^= swap ^ (swap << 3);
  swap = (bits ^ (bits >> 6)) & 0x00cc00cc;
  bits ^= swap ^ (swap << 6);
  const auto spread = [](uint32_t v) {
    v = (v | v << 8) & 0x00ff00ff;
    return (v | v << 4) & 0x0f0f0f0f;
  };
  return spread(bits & 0xffff) | spread(bits >> 16) << 4;
}

// The formats with blocks of 32: f16 d[, f16 m][, u32 high bits], codes.
template <int kHeader, bool kMinimum, bool kPlane>
void pack_q4_q5(const uint8_t* blocks, int64_t k, int lane, uint8_t* panel) {
  constexpr Form form = kPlane ? (kMinimum ? Form::U5m : Form::U5) : kMinimum ? Form::U4m : Form::U4;
  constexpr int codes = kNibbles + (kPlane ? kPlane1 : 0);
  for (int64_t b = 0; b < k / kBlock; ++b, blocks += kHeader + 16) {
    uint8_t* chunk = panel + b / 2 * chunk_bytes(form);
    const int half = static_cast<int>(b % 2);
    pack_words(blocks + kHeader, 4, lane, chunk + half * kNibbles);
    if constexpr (kPlane)
      store32(chunk + 2 * kNibbles + half * kPlane1 + lane * 4, plane_word(load32(blocks + kHeader - 4)));
    store16(chunk + scale_at<codes>(half) + lane * 2, load16(blocks));
    if constexpr (kMinimum)
      store16(chunk + minimum_at<codes>(half) + lane * 2, load16(blocks + 2));
  }
}

void pack_q8_0(const uint8_t* blocks, int64_t k, int lane, uint8_t* panel) {
  for (int64_t b = 0; b < k / kBlock; ++b, blocks += 34) {
    uint8_t* chunk = panel + b / 2 * chunk_bytes(Form::U8);
    const int half = static_cast<int>(b % 2);
    for (int j = 0; j < 8; ++j) // flipping the top bit adds 128
      store32(chunk + half * kBytes + j * kWord + lane * 4, load32(blocks + 2 + j * 4) ^ 0x80808080);
    store16(chunk + scale_at<kBytes>(half) + lane * 2, load16(blocks));
  }
}

// The nibbles of 32 codes that lie in one half of each of 32 bytes.
void pack_nibbles(const uint8_t* codes, int shift, int lane, uint8_t* to) {
  for (int j = 0; j < 4; ++j) {
    const uint32_t low = load32(codes + j * 4) >> shift & 0x0f0f0f0f;
    const uint32_t high = load32(codes + 16 + j * 4) >> shift & 0x0f0f0f0f;
    store32(to + j * kWord + lane * 4, low | high << 4);
  }
}

// 12 bytes hold eight scales and eight minimums of 6 bits.
void pack_scales(const uint8_t* packed, SuperChunk at, int lane, uint8_t* chunk) {
  for (int b = 0; b < 4; ++b) {
    chunk[at.scale(b) + lane] = packed[b] & 63;
    chunk[at.minimum(b) + lane] = packed[b + 4] & 63;
    chunk[at.scale(b + 4) + lane] = static_cast<uint8_t>((packed[b + 8] & 15) | packed[b] >> 6 << 4);
    chunk[at.minimum(b + 4) + lane] = static_cast<uint8_t>(packed[b + 8] >> 4 | packed[b + 4] >> 6 << 4);
  }
}

// f16 d, dmin; 12 bytes of scales; [Q5_K: 32 bytes with bit b of q in bit b]; 128 bytes of nibbles.
template <bool kPlane> void pack_q4_q5_k(const uint8_t* blocks, int64_t k, int lane, uint8_t* panel) {
  constexpr SuperChunk at = kPlane ? kU5k : kU4k;
  constexpr int header = kPlane ? 48 : 16;
  for (int64_t s = 0; s < k / 256; ++s, blocks += header + 128) {
    uint8_t* chunk = panel + s * chunk_bytes(kPlane ? Form::U5k : Form::U4k);
    store16(chunk + at.d() + lane * 2, load16(blocks));
    store16(chunk + at.dmin() + lane * 2, load16(blocks + 2));
    pack_scales(blocks + 4, at, lane, chunk);
    for (int b = 0; b < 8; ++b) {
      pack_nibbles(blocks + header + b / 2 * 32, b % 2 * 4, lane, chunk + b * kNibbles);
      if constexpr (kPlane) {
        uint32_t word = 0; // bit w of byte i is the fifth bit of q[4w + i]
        for (int w = 0; w < 8; ++w)
          word |= (load32(blocks + 16 + w * 4) >> b & 0x01010101) << w;
        store32(chunk + 8 * kNibbles + b * kPlane1 + lane * 4, word);
      }
    }
  }
}

// 128 bytes of nibbles, 64 bytes of bits 4 and 5, 16 scales, f16 d.
void pack_q6_k(const uint8_t* blocks, int64_t k, int lane, uint8_t* panel) {
  for (int64_t s = 0; s < k / 256; ++s, blocks += 210) {
    uint8_t* chunk = panel + s * chunk_bytes(Form::U6);
    store16(chunk + kU6.d() + lane * 2, load16(blocks + 208));
    for (int b = 0; b < 8; ++b) {
      const int group = b / 4, quarter = b % 4;
      const uint8_t* nibbles = blocks + group * 64 + quarter % 2 * 32;
      const uint8_t* upper = blocks + 128 + group * 32; // two bits of each
      const auto codes = [&](int w) {
        return (load32(nibbles + w * 4) >> quarter / 2 * 4 & 0x0f0f0f0f) |
               (load32(upper + w * 4) >> quarter * 2 & 0x03030303) << 4;
      };
      for (int half = 0; half < 2; ++half) {
        const uint32_t last = codes(4 * half + 3);
        for (int j = 0; j < 3; ++j)
          store32(chunk + b * kSextets + (3 * half + j) * kWord + lane * 4,
                  codes(4 * half + j) | (last >> 2 * j & 0x03030303) << 6);
      }
      chunk[kU6.half_scale(b, 0) + lane] = blocks[192 + 2 * b];
      chunk[kU6.half_scale(b, 1) + lane] = blocks[192 + 2 * b + 1];
    }
  }
}

void pack_f32(const uint8_t* row, int64_t k, int lane, uint8_t* panel) {
  for (int64_t i = 0; i < k; ++i)
    store32(panel + i * kWord + lane * 4, load32(row + i * 4));
}

void pack_f16(const uint8_t* row, int64_t k, int lane, uint8_t* panel) {
  for (int64_t i = 0; i < k; ++i)
    store16(panel + i * kPanelRows * 2 + lane * 2, load16(row + i * 2));
}

void pack_bf16(const uint8_t* row, int64_t k, int lane, uint8_t* panel) {
  for (int64_t i = 0; i < k; ++i)
    store16(panel + i / 2 * kWord + lane * 4 + i % 2 * 2, load16(row + i * 2));
}

constexpr BlockFormat kFormats[] = {
    {"F32", 1, 4, Form::F32, pack_f32},
    {"F16", 1, 2, Form::F16, pack_f16},
    {"BF16", 1, 2, Form::BF16, pack_bf16},
    {"Q4_0", 32, 18, Form::U4, pack_q4_q5<2, false, false>},
    {"Q4_1", 32, 20, Form::U4m, pack_q4_q5<4, true, false>},
    {"Q5_0", 32, 22, Form::U5, pack_q4_q5<6, false, true>},
    {"Q5_1", 32, 24, Form::U5m, pack_q4_q5<8, true, true>},
    {"Q8_0", 32, 34, Form::U8, pack_q8_0},
    {"Q4_K", 256, 144, Form::U4k, pack_q4_q5_k<false>},
    {"Q5_K", 256, 176, Form::U5k, pack_q4_q5_k<true>},
    {"Q6_K", 256, 210, Form::U6, pack_q6_k},
};

// ---- Reading back ------------------------------------------------------------------------------

// The codes of a block of 32: byte i of word w is q[4w + i].
struct Codes {
  uint32_t word[8];
};

Codes read_nibbles(const uint8_t* nibbles, int lane) {
  Codes q;
  for (int j = 0; j < 4; ++j) {
    const uint32_t word = load32(nibbles + j * kWord + lane * 4);
    q.word[j] = word & 0x0f0f0f0f;
    q.word[4 + j] = word >> 4 & 0x0f0f0f0f;
  }
  return q;
}

void add_plane1(const uint8_t* plane, int lane, Codes& q) {
  const uint32_t word = load32(plane + lane * 4);
  for (int w = 0; w < 8; ++w)
    q.word[w] |= (word >> w & 0x01010101) << 4;
}

Codes read_sextets(const uint8_t* sextets, int lane) {
  Codes q;
  for (int half = 0; half < 2; ++half) {
    uint32_t last = 0;
    for (int j = 0; j < 3; ++j) {
      const uint32_t word = load32(sextets + (3 * half + j) * kWord + lane * 4);
      q.word[4 * half + j] = word & 0x3f3f3f3f;
      last |= (word >> 6 & 0x03030303) << 2 * j;
    }
    q.word[4 * half + 3] = last;
  }
  return q;
}

// out[i] = scale * (q[i] - offset) + minimum, where the product is exact for every format.
template <int kFirst = 0, int kWords = 8>
void expand(const Codes& q, float scale, int offset, float minimum, float* out) {
  for (int w = kFirst; w < kFirst + kWords; ++w)
    for (int i = 0; i < 4; ++i)
      out[4 * w + i] =
          scale * static_cast<float>(static_cast<int>(q.word[w] >> 8 * i & 255) - offset) + minimum;
}

// One block of a form with chunks of 64.
template <Form form> void read_block(const uint8_t* chunk, int half, int lane, float* out) {
  constexpr bool plane = form == Form::U5 || form == Form::U5m;
  constexpr bool minimum = form == Form::U4m || form == Form::U5m;
  constexpr int codes = form == Form::U8 ? kBytes : kNibbles + (plane ? kPlane1 : 0);
  Codes q;
  if constexpr (form == Form::U8) {
    for (int j = 0; j < 8; ++j)
      q.word[j] = load32(chunk + half * kBytes + j * kWord + lane * 4);
  } else {
    q = read_nibbles(chunk + half * kNibbles, lane);
  }
  if constexpr (plane)
    add_plane1(chunk + 2 * kNibbles + half * kPlane1, lane, q);
  const float m = minimum ? load_half(chunk + minimum_at<codes>(half) + lane * 2) : 0.0f;
  constexpr int offset = form == Form::U8 ? 128 : form == Form::U5 ? 16 : form == Form::U4 ? 8 : 0;
  expand(q, load_half(chunk + scale_at<codes>(half) + lane * 2), offset, m, out);
}

// One block of a form with chunks of 256.
template <Form form> void read_super_block(const uint8_t* chunk, int block, int lane, float* out) {
  constexpr SuperChunk at = form == Form::U6 ? kU6 : form == Form::U5k ? kU5k : kU4k;
  const float d = load_half(chunk + at.d() + lane * 2);
  if constexpr (form == Form::U6) {
    const Codes q = read_sextets(chunk + block * kSextets, lane);
    const auto scale = [&](int half) {
      return d * static_cast<float>(static_cast<int8_t>(chunk[at.half_scale(block, half) + lane]));
    };
    expand<0, 4>(q, scale(0), 32, 0, out);
    expand<4, 4>(q, scale(1), 32, 0, out);
  } else {
    Codes q = read_nibbles(chunk + block * kNibbles, lane);
    if constexpr (form == Form::U5k)
      add_plane1(chunk + 8 * kNibbles + block * kPlane1, lane, q);
    const float dmin = load_half(chunk + at.dmin() + lane * 2);
    expand(q, d * static_cast<float>(chunk[at.scale(block) + lane]), 0,
           -(dmin * static_cast<float>(chunk[at.minimum(block) + lane])), out);
  }
}

template <Form form> void read_lane(const uint8_t* panel, int lane, int64_t k, float* out) {
  constexpr int blocks = chunk_k(form) / kBlock;
  for (int64_t b = 0; b < k / kBlock; ++b) {
    const uint8_t* chunk = panel + b / blocks * chunk_bytes(form);
    const int block = static_cast<int>(b % blocks);
    if constexpr (blocks == 2)
      read_block<form>(chunk, block, lane, out + b * kBlock);
    else
      read_super_block<form>(chunk, block, lane, out + b * kBlock);
  }
}

} // namespace

const BlockFormat* find_block_format(std::string_view name) {
  const auto* found = std::ranges::find(kFormats, name, &BlockFormat::name);
  return found == std::end(kFormats) ? nullptr : found;
}

const char* block_format_names() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";
}

void dequantize_lane(Form form, const uint8_t* panel, int lane, int64_t k, float* out) {
  switch (form) {
  case Form::U4: return read_lane<Form::U4>(panel, lane, k, out);
  case Form::U4m: return read_lane<Form::U4m>(panel, lane, k, out);
  case Form::U4k: return read_lane<Form::U4k>(panel, lane, k, out);
  case Form::U5: return read_lane<Form::U5>(panel, lane, k, out);
  case Form::U5m: return read_lane<Form::U5m>(panel, lane, k, out);
  case Form::U5k: return read_lane<Form::U5k>(panel, lane, k, out);
  case Form::U6: return read_lane<Form::U6>(panel, lane, k, out);
  case Form::U8: return read_lane<Form::U8>(panel, lane, k, out);
  case Form::F32:
    for (int64_t i = 0; i < k; ++i)
      std::memcpy(out + i, panel + i * kWord + lane * 4, 4);
    return;
  case Form::F16:
    for (int64_t i = 0; i < k; ++i)
      out[i] = load_half(panel + (i * kPanelRows + lane) * 2);
    return;
  case Form::BF16:
    for (int64_t i = 0; i < k; ++i)
      out[i] = float_from(static_cast<uint32_t>(load16(panel + i / 2 * kWord + lane * 4 + i % 2 * 2)) << 16);
    return;
  }
}

} // namespace samovar
