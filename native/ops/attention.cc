#include "../kv_cache.h"
#include "../program.h"
#include "ops.h"

#include <limits>

namespace samovar {
namespace {

constexpr int kMaxRows = 16;
constexpr int kMaxDim = 256;
constexpr int kChunkPages = kContextChunk / kPageTokens;
constexpr uint32_t kBf16Infinity = 0x7f7f8000; // what is less stays finite when rounded to bf16
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Phase 0 stores the step's keys and values; phase 1 attends; phase 2 folds chunks that were
// attended to apart (attention_plan.h).
class Attention final : public Op {
public:
  Attention(std::string origin, const Buffer& x, const Buffer& out, AttentionSpec spec, AttentionShape shape,
            int plan)
      : Op("attention", std::move(origin)), x_(x), out_(out), spec_(std::move(spec)), shape_(shape),
        plan_(plan), store_rows_(std::max(1, 4096 / x.cols)) {}

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
    case 0: return (step.num_rows(RowKind::Tokens) + store_rows_ - 1) / store_rows_;
    case 1: return static_cast<int64_t>(plan.attend().size());
    default: return static_cast<int64_t>(plan.fold().size());
    }
  }

  void run(const Step& step, int phase, int64_t item, uint8_t*) const noexcept override {
    const AttentionPlan& plan = step.plans[plan_];
    const auto index = static_cast<size_t>(item);
    switch (phase) {
    case 0: return store(step, static_cast<int>(item) * store_rows_);
    case 1: return attend(step, plan.attend()[index]);
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

  void store(const Step& step, int begin) const {
    const int end = std::min(begin + store_rows_, step.num_rows(RowKind::Tokens));
    size_t s = 0;
    for (int t = begin; t < end; ++t) {
      while (step.seq_start[s + 1] <= t)
        ++s;
      store_token(step, s, t);
    }
  }

  void store_token(const Step& step, size_t s, int t) const {
    static constexpr float kZeros[kMaxDim] = {};
    const int dim = shape_.head_dim;
    float* x = step.floats(x_, t);
    // Whoever gets this page next may read the slot before writing it (times 0): no NaN may stay there.
    const bool good = all_below(x, x_.cols, kBf16Infinity);
    if (!good)
      step.mark_bad(RowKind::Tokens, t);
    const int position = step.positions[static_cast<size_t>(t)];
    const int32_t block = blocks(step, s)[position / kPageTokens];
    const auto kernel = step.kernels->kv_store[static_cast<int>(step.cache->type())];
    const float* k = x + shape_.heads * dim;
    const float* v = k + shape_.kv_heads * dim;
    for (int h = 0; h < shape_.kv_heads; ++h, k += dim, v += dim)
      kernel(good ? k : kZeros, good ? v : kZeros, dim, position % kPageTokens,
             step.cache->page(spec_.layer, block, h));
  }

  void attend(const Step& step, const AttentionPlan::Item& item) const {
    alignas(64) float m[2 * kMaxRows], l[2 * kMaxRows], o[2 * kMaxRows * kMaxDim];
    if (item.partial >= 0) {
      attend_chunk(step, item, item.first_chunk, partial_at(step, item.partial));
      return;
    }
    const Partial all{m, l, o};
    const Partial next{m + kMaxRows, l + kMaxRows, o + kMaxRows * shape_.head_dim};
    start(item, all);
    for (int c = 0; c < item.num_chunks; ++c) {
      attend_chunk(step, item, item.first_chunk + c, next);
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

  void attend_chunk(const Step& step, const AttentionPlan::Item& item, int chunk, const Partial& to) const {
    const float* q[kMaxRows];
    int32_t first[kMaxRows], last[kMaxRows];
    for (int i = 0; i < item.num_rows; ++i) {
      const int t = token(step, item, i);
      q[i] = step.floats(x_, t) + head(item, i) * shape_.head_dim;
      last[i] = step.positions[static_cast<size_t>(t)];
      first[i] = shape_.first_visible(last[i]);
    }
    const int32_t base = chunk * kContextChunk;
    const int num_pages = std::min(kChunkPages, (last[item.num_rows - 1] - base) / kPageTokens + 1);
    const uint8_t* pages[kChunkPages];
    const int32_t* block = blocks(step, static_cast<size_t>(item.seq)) + base / kPageTokens;
    for (int p = 0; p < num_pages; ++p)
      pages[p] = step.cache->page(spec_.layer, block[p], item.kv_head);
    AttendArgs args{};
    args.q = q;
    args.rows = item.num_rows;
    args.hd = shape_.head_dim;
    args.first = first;
    args.last = last;
    args.pages = pages;
    args.num_pages = num_pages;
    args.base = base;
    args.scale = spec_.scale;
    args.m = to.m;
    args.l = to.l;
    args.o = to.o;
    args.o_stride = shape_.head_dim;
    step.kernels->attend[static_cast<int>(step.cache->type())](args);
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
      float* out = step.floats(out_, token(step, item, i)) + head(item, i) * dim;
      for (int d = 0; d < dim; ++d)
        out[d] = all.o[i * dim + d] / all.l[i];
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

  Buffer x_, out_;
  AttentionSpec spec_;
  AttentionShape shape_;
  int plan_;
  int store_rows_;
};

} // namespace

void add_attention(Program& program, AttentionSpec spec) {
  Adding adding(program, "attention", std::move(spec.origin));
  const Buffer x = adding.input("x", spec.x, RowType::F32);
  const Buffer out = adding.output("out", spec.out, RowType::F32);
  adding.tokens_only("x", x);
  adding.same_rows(x, out);
  adding.require(spec.layer >= 0, "layer: expected at least 0, got ", spec.layer);
  adding.require(spec.kv_heads >= 1 && spec.heads >= spec.kv_heads && spec.heads % spec.kv_heads == 0,
                 "heads: expected a multiple of kv_heads, got ", spec.heads, " and ", spec.kv_heads);
  adding.require(spec.head_dim >= 32 && spec.head_dim <= kMaxDim && spec.head_dim % 32 == 0,
                 "head_dim: expected a multiple of 32 up to ", kMaxDim, ", got ", spec.head_dim);
  adding.require(spec.window >= 0, "window: expected at least 0, got ", spec.window);
  adding.require(spec.scale > 0 && spec.scale <= 1e6f, "scale: out of range: ", spec.scale);
  adding.columns("x", x, (int64_t{spec.heads} + 2 * int64_t{spec.kv_heads}) * spec.head_dim);
  adding.columns("out", out, int64_t{spec.heads} * spec.head_dim);
  const AttentionShape shape{spec.heads, spec.kv_heads, spec.head_dim, spec.window};
  const int plan = adding.attention_shape(shape);
  adding.finish(std::make_unique<Attention>(adding.origin(), x, out, std::move(spec), shape, plan));
}

} // namespace samovar
