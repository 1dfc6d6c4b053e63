#include "attention_plan.h"

namespace samovar {
namespace {

constexpr int kItemsPerThread = 8; // enough for the work to even out
constexpr size_t kSplitItems = 8192;

} // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, int max_tokens, int max_sequences) : shape_(shape) {
  // Each sequence may end with one block that is not full.
  const int64_t blocks = int64_t{max_tokens} * shape.group() / kMaxAttendRows + max_sequences;
  max_items_ = std::max(static_cast<size_t>(blocks * shape.kv_heads), kSplitItems);
  attend_.reserve(max_items_);
  fold_.reserve(max_items_);
}

void AttentionPlan::build(const Step& step) {
  attend_.clear();
  fold_.clear();
  const int group = shape_.group();
  for (size_t s = 0; s + 1 < step.seq_start.size(); ++s) {
    const int rows = rows_of(step, s);
    const int32_t* positions = step.positions.data() + step.seq_start[s];
    for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      // Later blocks see more: they go first, so that what is taken last is small.
      for (int first = (rows - 1) / kMaxAttendRows * kMaxAttendRows; first >= 0; first -= kMaxAttendRows) {
        const int count = std::min(kMaxAttendRows, rows - first);
        const int begin = shape_.first_visible(positions[first / group]) / kContextChunk;
        const int end = positions[(first + count - 1) / group] / kContextChunk + 1;
        attend_.push_back({static_cast<int32_t>(s), kv_head, first, count, begin, end - begin, -1});
      }
    }
  }
  if (!split(step.threads))
    fold_.clear();
  stores_all_ = true;
  for (size_t s = 0; s + 1 < step.seq_start.size(); ++s)
    stores_all_ = stores_all_ && stores(step, s);
}

// Replaces each item by one for each of its chunks, if that is worth it and fits.
bool AttentionPlan::split(int threads) {
  if (threads == 1 || attend_.size() >= static_cast<size_t>(threads) * kItemsPerThread)
    return false;
  size_t items = 0;
  int64_t floats = 0;
  for (const Item& item : attend_) {
    items += static_cast<size_t>(item.num_chunks);
    floats += item.num_chunks * partial_floats(item);
  }
  if (items == attend_.size() || items > max_items_ || floats > kPartialFloats)
    return false;
  fold_.assign(attend_.begin(), attend_.end());
  attend_.clear();
  int64_t offset = 0;
  for (Item& whole : fold_) {
    whole.partial = offset;
    for (int c = 0; c < whole.num_chunks; ++c) {
      Item chunk = whole;
      chunk.first_chunk += c;
      chunk.num_chunks = 1;
      chunk.partial = offset;
      attend_.push_back(chunk);
      offset += partial_floats(whole);
    }
  }
  return true;
}

} // namespace samovar
