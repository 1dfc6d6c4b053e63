#include "../kv_cache.h"
#include "../program.h"
#include "ops.h"

#include <cstring>
#include <limits>
#include <optional>

namespace samovar {
namespace {

constexpr int kMaxRows = AttentionPlan::kMaxAttendRows;
constexpr int kMaxDim = 256;
static_assert(kMaxDim <= kMaxRoundedCols);
constexpr int kChunkPages = kContextChunk / kPageTokens;
// Of keys and values that one item reads: L3 gives them as fast as calls for them would, and holds so many.
constexpr int64_t kNearBytes = int64_t{4} << 20;
constexpr uint32_t kBf16Infinity = 0x7f7f8000; // what is less stays finite when rounded to bf16
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Phase 0 stores keys and values, unless phase 1 does so when it attends; phase 2 folds chunks that
// were attended to apart (attention_plan.h).
class Attention final : public Op {
public:
  struct Operands {
    Buffer x;
    std::optional<Buffer> out, out_rows;
  };

  Attention(std::string origin, const Operands& operands, AttentionSpec spec, AttentionShape shape, int plan)
      : Op("attention", std::move(origin)), operands_(operands), spec_(std::move(spec)), shape_(shape),
        plan_(plan), store_rows_(std::max(1, 4096 / operands.x.cols)) {}

  int phases() const override { return 3; }

  void check_cache(const KvCache& cache) const override {
    check(spec_.layer < cache.layers(), origin(), ": attention: layer ", spec_.layer, ", but the cache has ",
          cache.layers());
    check(spec_.kv_heads == cache.kv_heads() && spec_.head_dim == cache.head_dim(), origin(),
          ": attention: ", spec_.kv_heads, " kv heads of ", spec_.head_dim, ", but the cache has ",
          cache.kv_heads(), " of ", cache.head_dim());
  }

  int64_t items(const Step& step, int phase) const noexcept override {
    const AttentionPlan& plan = step.plans[plan_];
    switch (phase) {
    case 0: return plan.stores_all() ? 0 : (step.num_rows(RowKind::Tokens) + store_rows_ - 1) / store_rows_;
    case 1: return static_cast<int64_t>(plan.attend().size());
    default: return static_cast<int64_t>(plan.fold().size());
    }
  }

  void run(const Step& step, int phase, int64_t item, uint8_t*) const noexcept override {
    const AttentionPlan& plan = step.plans[plan_];
    const auto index = static_cast<size_t>(item);
    switch (phase) {
    case 0: return store(step, plan, static_cast<int>(item) * store_rows_);
    case 1: return attend(step, plan, index);
    default: return fold(step, plan, plan.fold()[index]);
    }
  }

private:
  // A result over some context: softmax maximum and sum, and the weighted values, for each row.
  struct Partial {
    float* m;
    float* l;
    float* o;
  };

  void store(const Step& step, const AttentionPlan& plan, int begin) const {
    const int end = std::min(begin + store_rows_, step.num_rows(RowKind::Tokens));
    size_t s = 0;
    for (int t = begin; t < end; ++t) {
      while (step.seq_start[s + 1] <= t)
        ++s;
      if (!plan.stores(step, s))
        for (int h = 0; h < shape_.kv_heads; ++h)
          store_head(step, s, t, h);
    }
  }

  void store_head(const Step& step, size_t s, int t, int h) const {
    static constexpr float kZeros[kMaxDim] = {};
    const int dim = shape_.head_dim, group = shape_.group();
    const float* x = step.floats(operands_.x, t);
    const float* k = x + (shape_.heads + h) * dim;
    const float* v = k + shape_.kv_heads * dim;
    // Whoever gets this page next may read the slot before writing it (times 0): no NaN may stay there.
    const bool good = all_below(k, dim, kBf16Infinity) && all_below(v, dim, kBf16Infinity);
    if (!good || !all_below(x + h * group * dim, group * dim, kBf16Infinity))
      step.mark_bad(RowKind::Tokens, t);
    const int position = step.positions[static_cast<size_t>(t)];
    const int32_t block = blocks(step, s)[position / kPageTokens];
    step.kernels->kv_store[static_cast<int>(step.cache->type())](good ? k : kZeros, good ? v : kZeros, dim,
                                                                 position % kPageTokens,
                                                                 step.cache->page(spec_.layer, block, h));
  }

  // Whether the context of an item was just read for the item before, mostly by the same worker, is read for
  // the one after, and is near.
  bool is_cached(const AttentionPlan& plan, size_t index, KvType type) const {
    const auto items = plan.attend();
    const AttentionPlan::Item& item = items[index];
    const auto shares = [&](const AttentionPlan::Item& other) {
      return other.seq == item.seq && other.kv_head == item.kv_head;
    };
    return index > 0 && index + 1 < items.size() && shares(items[index - 1]) && shares(items[index + 1]) &&
           item.num_chunks * kChunkPages * kv_page_bytes(type, shape_.head_dim) <= kNearBytes;
  }

  // A chunk of an item.
  struct Part {
    const AttentionPlan::Item* item;
    int chunk;
    bool cached = false;
  };

  void attend(const Step& step, const AttentionPlan& plan, size_t index) const {
    const AttentionPlan::Item& item = plan.attend()[index];
    const AttentionPlan::Item* after = index + 1 < plan.attend().size() ? &item + 1 : nullptr;
    const Part end{after, after ? after->first_chunk : 0};
    if (item.partial >= 0) {
      attend_chunk(step, {&item, item.first_chunk}, end, partial_at(step, item.partial));
      return;
    }
    const auto s = static_cast<size_t>(item.seq);
    if (plan.stores(step, s))
      for (int t = step.seq_start[s]; t < step.seq_start[s + 1]; ++t)
        store_head(step, s, t, item.kv_head);
    alignas(64) float m[2 * kMaxRows], l[2 * kMaxRows], o[2 * kMaxRows * kMaxDim];
    const Partial all{m, l, o};
    const Partial next{m + kMaxRows, l + kMaxRows, o + kMaxRows * shape_.head_dim};
    const bool cached = is_cached(plan, index, step.cache->type());
    for (int c = 0; c < item.num_chunks; ++c) {
      const Part part{&item, item.first_chunk + c, cached};
      attend_chunk(step, part, c + 1 < item.num_chunks ? Part{&item, part.chunk + 1} : end, c ? next : all);
      if (c)
        merge(step, item, all, next);
    }
    finish(step, item, all);
  }

  void fold(const Step& step, const AttentionPlan& plan, const AttentionPlan::Item& item) const {
    alignas(64) float m[kMaxRows], l[kMaxRows], o[kMaxRows * kMaxDim];
    const Partial all{m, l, o};
    start(item, all);
    for (int c = 0; c < item.num_chunks; ++c)
      merge(step, item, all, partial_at(step, item.partial + c * plan.partial_floats(item)));
    finish(step, item, all);
  }

  void attend_chunk(const Step& step, const Part& part, const Part& after, const Partial& to) const {
    const AttentionPlan::Item& item = *part.item;
    const float* q[kMaxRows];
    int32_t first[kMaxRows], last[kMaxRows];
    for (int i = 0; i < item.num_rows; ++i) {
      const int t = token(step, item, i);
      q[i] = step.floats(operands_.x, t) + head(item, i) * shape_.head_dim;
      last[i] = step.positions[static_cast<size_t>(t)];
      first[i] = shape_.first_visible(last[i]);
    }
    const int32_t base = part.chunk * kContextChunk;
    const uint8_t *pages[kChunkPages], *next[kChunkPages];
    AttendArgs args{};
    args.num_pages = pages_of(step, part, pages);
    args.num_next = after.item ? pages_of(step, after, next) : 0;
    args.next = next;
    args.q = q;
    args.rows = item.num_rows;
    args.hd = shape_.head_dim;
    args.first = first;
    args.last = last;
    args.pages = pages;
    args.cached = part.cached;
    args.base = base;
    args.scale = spec_.scale;
    args.m = to.m;
    args.l = to.l;
    args.o = to.o;
    args.o_stride = shape_.head_dim;
    step.kernels->attend[static_cast<int>(step.cache->type())](args);
  }

  // The pages that any row of a part sees, in order; returns their number.
  int pages_of(const Step& step, const Part& part, const uint8_t** pages) const {
    const AttentionPlan::Item& item = *part.item;
    const int32_t last = step.positions[static_cast<size_t>(token(step, item, item.num_rows - 1))];
    const int first_page = part.chunk * kChunkPages;
    const int count = std::min(kChunkPages, last / kPageTokens - first_page + 1);
    const int32_t* block = blocks(step, static_cast<size_t>(item.seq)) + first_page;
    for (int p = 0; p < count; ++p)
      pages[p] = step.cache->page(spec_.layer, block[p], item.kv_head);
    return count;
  }

  void start(const AttentionPlan::Item& item, const Partial& all) const {
    std::fill_n(all.m, item.num_rows, kNothing);
    std::fill_n(all.l, item.num_rows, 0.0f);
    std::fill_n(all.o, item.num_rows * shape_.head_dim, 0.0f);
  }

  void merge(const Step& step, const AttentionPlan::Item& item, const Partial& all,
             const Partial& next) const {
    const int dim = shape_.head_dim;
    for (int i = 0; i < item.num_rows; ++i)
      step.kernels->attend_merge(all.m + i, all.l + i, all.o + i * dim, next.m + i, next.l + i,
                                 next.o + i * dim, dim);
  }

  void finish(const Step& step, const AttentionPlan::Item& item, const Partial& all) const {
    const int dim = shape_.head_dim;
    for (int i = 0; i < item.num_rows; ++i) {
      const int t = token(step, item, i), first_col = head(item, i) * dim;
      float* o = all.o + i * dim;
      step.kernels->divide(o, all.l[i], dim, o);
      if (operands_.out)
        std::copy_n(o, dim, step.floats(*operands_.out, t) + first_col);
      if (operands_.out_rows)
        write_rounded_columns(step, o, dim, *operands_.out_rows, t, first_col);
    }
  }

  int token(const Step& step, const AttentionPlan::Item& item, int i) const {
    return step.seq_start[static_cast<size_t>(item.seq)] + (item.first_row + i) / shape_.group();
  }
  int head(const AttentionPlan::Item& item, int i) const {
    return item.kv_head * shape_.group() + (item.first_row + i) % shape_.group();
  }
  static const int32_t* blocks(const Step& step, size_t seq) {
    return step.block_table.data() + seq * static_cast<size_t>(step.blocks_per_seq);
  }
  static Partial partial_at(const Step& step, int64_t offset) {
    float* at = step.partials + offset;
    return {at, at + kMaxRows, at + 2 * kMaxRows};
  }

  Operands operands_;
  AttentionSpec spec_;
  AttentionShape shape_;
  int plan_;
  int store_rows_;
};

} // namespace

void add_attention(Program& program, AttentionSpec spec) {
  Adding adding(program, "attention", std::move(spec.origin));
  Attention::Operands o{.x = adding.input("x", spec.x, RowType::F32), .out = {}, .out_rows = {}};
  adding.tokens_only("x", o.x);
  adding.require(spec.out != -1 || spec.out_rows != -1, "neither out nor out_rows is given");
  if (spec.out != -1)
    o.out = adding.output("out", spec.out, RowType::F32);
  if (spec.out_rows != -1)
    o.out_rows = adding.rounded_output("out_rows", spec.out_rows);
  adding.require(spec.layer >= 0, "layer: expected at least 0, got ", spec.layer);
  adding.require(spec.kv_heads >= 1 && spec.heads >= spec.kv_heads && spec.heads % spec.kv_heads == 0,
                 "heads: expected a multiple of kv_heads, got ", spec.heads, " and ", spec.kv_heads);
  adding.require(spec.head_dim >= 32 && spec.head_dim <= kMaxDim && spec.head_dim % 32 == 0,
                 "head_dim: expected a multiple of 32 up to ", kMaxDim, ", got ", spec.head_dim);
  adding.require(spec.window >= 0, "window: expected at least 0, got ", spec.window);
  adding.require(spec.scale > 0 && spec.scale <= 1e6f, "scale: out of range: ", spec.scale);
  adding.columns("x", o.x, (int64_t{spec.heads} + 2 * int64_t{spec.kv_heads}) * spec.head_dim);
  for (const auto& [name, operand] : {std::pair{"out", o.out}, {"out_rows", o.out_rows}}) {
    if (!operand)
      continue;
    adding.same_rows(o.x, *operand);
    adding.columns(name, *operand, int64_t{spec.heads} * spec.head_dim);
  }
  const AttentionShape shape{spec.heads, spec.kv_heads, spec.head_dim, spec.window};
  const int plan = adding.attention_shape(shape);
  adding.finish(std::make_unique<Attention>(adding.origin(), o, std::move(spec), shape, plan));
}

} // namespace samovar
