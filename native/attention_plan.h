// How the attention of one step is cut into work items.
#pragma once

#include "op.h"

#include <vector>

namespace samovar {

struct AttentionShape {
  int heads;
  int kv_heads;
  int head_dim;
  int window; // tokens a query sees, its own included; 0: all

  int group() const { return heads / kv_heads; }
  int32_t first_visible(int32_t position) const {
    return window > 0 ? std::max(0, position - window + 1) : 0;
  }
  bool operator==(const AttentionShape&) const = default;
};

// The query rows of a sequence for one kv head are its tokens times the heads of the group:
//
//   row       0        1      ...  group-1   group     ...
//   token     0        0             0         1
//   head    kv*group  +1           +group-1  kv*group
//
// They are cut into blocks of at most 16, and a block meets the context chunk by chunk.  Where a
// step has few blocks (one long sequence) each chunk is an item of its own: its partial result
// waits in `partials`, and a second phase folds.  Otherwise the item folds as it goes.  Both ways
// fold the same numbers in the same order.
//
// Keys and values of the step must be stored before anything attends to them.  Where all rows of a
// sequence for a kv head are one item, that item stores them, in the cache of the core that reads
// them next; a phase before stores the others.
class AttentionPlan {
public:
  static constexpr int kMaxAttendRows = 16;

  struct Item {
    int32_t seq;
    int32_t kv_head;
    int32_t first_row;
    int32_t num_rows;
    int32_t first_chunk;
    int32_t num_chunks;
    int64_t partial; // where the partial result of the first chunk lies, or -1
  };

  AttentionPlan(const AttentionShape& shape, int max_tokens, int max_sequences);

  // Cuts a step; allocates nothing.
  void build(const Step& step);

  std::span<const Item> attend() const { return attend_; }
  std::span<const Item> fold() const { return fold_; }

  // Whether the item that attends for sequence `seq` stores its keys and values, too.
  bool stores(const Step& step, size_t seq) const {
    return fold_.empty() && rows_of(step, seq) <= kMaxAttendRows;
  }
  // Whether that holds for all of them.
  bool stores_all() const { return stores_all_; }

  // Floats of one partial result: m[16], l[16], o[rows][head_dim].
  int64_t partial_floats(const Item& item) const { return 32 + int64_t{item.num_rows} * shape_.head_dim; }

  // Floats that all plans share for partial results (16 MiB, touched as used).
  static constexpr int64_t kPartialFloats = int64_t{4} << 20;

private:
  bool split(int threads);
  int rows_of(const Step& step, size_t seq) const {
    return (step.seq_start[seq + 1] - step.seq_start[seq]) * shape_.group();
  }

  AttentionShape shape_;
  size_t max_items_;
  std::vector<Item> attend_;
  std::vector<Item> fold_;
  bool stores_all_ = false;
};

} // namespace samovar
