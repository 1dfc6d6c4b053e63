// The keys and values of all sequences, in pages.
#pragma once

#include "dtype.h"

#include <span>
#include <string_view>

namespace samovar {

// Pages [block, layer, kv_head]; a block is 32 tokens of every layer and head.  The address space is
// reserved at once; memory is touched, zero at first, only as blocks are used.  In small pages: new
// blocks are needed in the middle of a step, and zeroing a huge page there costs more than it saves.
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
    return base_ + block * block_bytes() + layer * head_bytes_ + kv_head * page_bytes_;
  }

  // All throw std::invalid_argument for a block out of range, and none waits for a step: whoever calls
  // them knows that no step writes the block meanwhile.
  void copy_block(int src, int dst);
  // The block's pages, layer by layer, block_bytes() in all.
  void read_block(int block, uint8_t* out) const;
  // Throws std::invalid_argument if a value would not be finite where it is read: the bytes may come
  // from anybody, and a page must never hold what harms the next one who gets it.  The block is zero then.
  void write_block(int block, std::span<const uint8_t> bytes);

private:
  void check_block(const char* name, int block) const;
  bool all_finite(const uint8_t* block) const;

  int layers_, kv_heads_, head_dim_, num_blocks_;
  KvType type_;
  int64_t page_bytes_;
  int64_t head_bytes_; // the pages of all heads of a layer, in one block
  uint8_t* base_ = nullptr;
};

} // namespace samovar
