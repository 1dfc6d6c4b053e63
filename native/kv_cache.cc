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

void KvCache::copy_block(int src, int dst) {
  check(src >= 0 && src < num_blocks_, "src: block ", src, " of ", num_blocks_);
  check(dst >= 0 && dst < num_blocks_, "dst: block ", dst, " of ", num_blocks_);
  if (src == dst)
    return;
  for (int layer = 0; layer < layers_; ++layer)
    std::memcpy(page(layer, dst, 0), page(layer, src, 0), static_cast<size_t>(head_bytes_));
}

} // namespace samovar
