// The keys and values of all sequences, in pages.
#pragma once

#include "dtype.h"

#include <string_view>

namespace samovar {

// Pages [layer, block, kv_head]; a block is 32 tokens of every layer and head.  The address space is
// reserved at once; memory is touched, zero at first, only as blocks are used.
class KvCache {
public:
  // Throws std::invalid_argument for a size out of range, std::bad_alloc if the space cannot be had.
  KvCache(int layers, int kv_heads, int head_dim, int num_blocks, std::string_view dtype);
  // Bytes of one block.  Throws std::invalid_argument for a size out of range.
  static int64_t block_bytes_for(int layers, int kv_heads, int head_dim, std::string_view dtype);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  ~KvCache();

  int layers() const { return layers_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  int num_blocks() const { return num_blocks_; }
  KvType type() const { return type_; }
  int64_t block_bytes() const { return layers_ * head_bytes_; }
  int64_t nbytes() const { return num_blocks_ * block_bytes(); }

  uint8_t* page(int layer, int block, int kv_head) const {
    return base_ + (static_cast<int64_t>(layer) * num_blocks_ + block) * head_bytes_ + kv_head * page_bytes_;
  }

  // Throws std::invalid_argument for a block out of range.
  void copy_block(int src, int dst);

private:
  int layers_, kv_heads_, head_dim_, num_blocks_;
  KvType type_;
  int64_t page_bytes_;
  int64_t head_bytes_; // the pages of all heads of one layer's block
  uint8_t* base_ = nullptr;
};

} // namespace samovar
