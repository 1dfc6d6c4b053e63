#include "kv_cache.h"

#include "check.h"

#include <cstring>
#include <new>
#include <sys/mman.h>

namespace samovar {
namespace {

KvType parse_type(std::string_view name) {
  if (name == "f32")
    return KvType::F32;
  if (name == "bf16")
    return KvType::BF16;
  check(name == "q8", "dtype: expected bf16, f32 or q8, got ", name);
  return KvType::Q8;
}

// Whether the magnitudes of `count` numbers, as bits without the sign, are below a limit.
template <class Word> bool all_below(const uint8_t* data, int64_t count, Word limit) {
  constexpr auto kTop = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  Word reached = 0; // a sum passes into the top bit exactly from the limit on
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof word), sizeof word);
    reached |= static_cast<Word>((word & (kTop - 1)) + (kTop - limit));
  }
  return reached < kTop;
}

constexpr uint16_t kBf16Infinity = 0x7f80;
constexpr uint32_t kF32Infinity = 0x7f800000;
constexpr uint32_t kQ8ScaleLimit = 0x7bff8000; // times a code of -128 it rounds to bf16's infinity

} // namespace

int64_t KvCache::block_bytes_for(int layers, int kv_heads, int head_dim, std::string_view dtype) {
  check(layers >= 1 && layers <= 4096, "layers: expected 1 to 4096, got ", layers);
  check(kv_heads >= 1 && kv_heads <= 4096, "kv_heads: expected 1 to 4096, got ", kv_heads);
  check(head_dim >= 32 && head_dim <= 256 && head_dim % 32 == 0,
        "head_dim: attention is implemented for multiples of 32 up to 256, got ", head_dim);
  return int64_t{layers} * kv_heads * kv_page_bytes(parse_type(dtype), head_dim);
}

KvCache::KvCache(int layers, int kv_heads, int head_dim, int num_blocks, std::string_view dtype)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), num_blocks_(num_blocks),
      type_(parse_type(dtype)) {
  block_bytes_for(layers, kv_heads, head_dim, dtype); // for its checks
  check(num_blocks >= 1 && num_blocks <= 1 << 26, "num_blocks: expected 1 to ", 1 << 26, ", got ",
        num_blocks);
  page_bytes_ = kv_page_bytes(type_, head_dim);
  head_bytes_ = kv_heads * page_bytes_;
  if (block_bytes() > (int64_t{1} << 46) / num_blocks)
    throw std::bad_alloc();
  void* base = mmap(nullptr, static_cast<size_t>(nbytes()), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw std::bad_alloc();
  base_ = static_cast<uint8_t*>(base);
}

KvCache::~KvCache() {
  munmap(base_, static_cast<size_t>(nbytes()));
}

void KvCache::check_block(const char* name, int block) const {
  check(block >= 0 && block < num_blocks_, name, ": block ", block, " of ", num_blocks_);
}

void KvCache::copy_block(int src, int dst) {
  check_block("src", src);
  check_block("dst", dst);
  if (src == dst)
    return;
  std::memcpy(page(0, dst, 0), page(0, src, 0), static_cast<size_t>(block_bytes()));
}

void KvCache::read_block(int block, uint8_t* out) const {
  check_block("block", block);
  std::memcpy(out, page(0, block, 0), static_cast<size_t>(block_bytes()));
}

void KvCache::write_block(int block, std::span<const uint8_t> bytes) {
  check_block("block", block);
  check(static_cast<int64_t>(bytes.size()) == block_bytes(), "data: expected ", block_bytes(), " bytes, got ",
        bytes.size());
  uint8_t* to = page(0, block, 0);
  std::memcpy(to, bytes.data(), bytes.size());
  if (all_finite(to)) // the copy: a file that is mapped may change at any time
    return;
  std::memset(to, 0, bytes.size());
  check(false, "data: a value is not finite");
}

// Whether all numbers of a block are finite when they are read.
bool KvCache::all_finite(const uint8_t* block) const {
  if (type_ == KvType::F32)
    return all_below(block, block_bytes() / 4, kF32Infinity);
  if (type_ == KvType::BF16)
    return all_below(block, block_bytes() / 2, kBf16Infinity);
  const int64_t half = page_bytes_ / 2, codes = int64_t{kPageTokens} * head_dim_;
  bool finite = true;
  for (int64_t at = 0; at < block_bytes(); at += half)
    finite &= all_below(block + at + codes, (half - codes) / 4, kQ8ScaleLimit);
  return finite;
}

} // namespace samovar
