// What one operation of a program is, and what it sees of a step.
#pragma once

#include "dtype.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace samovar {

class AttentionPlan;
class KvCache;

// Which rows a buffer has: one for each token of the step, or one for each row that needs logits.
enum class RowKind { Tokens, Logits };

// A planned matrix of activations.
struct Buffer {
  int64_t offset; // in the memory of a runner
  int64_t stride; // bytes from row to row
  int cols;
  RowType type;
  RowKind rows;
};

// The inputs of one step, checked, and where its results go.
struct Step {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;
  std::span<const int32_t> seq_start;   // sequences + 1
  std::span<const int32_t> kv_len;      // sequences
  std::span<const int32_t> block_table; // sequences x blocks_per_seq
  int blocks_per_seq;
  std::span<const int32_t> logit_rows;

  const Kernels* kernels;
  const KvCache* cache;
  int threads;
  uint8_t* memory;            // of all buffers
  uint8_t* bad;               // for each token: a value of its row was not finite
  float* partials;            // attention chunks that wait to be folded
  const AttentionPlan* plans; // by the program's attention shapes

  int num_rows(RowKind kind) const {
    return static_cast<int>(kind == RowKind::Tokens ? tokens.size() : logit_rows.size());
  }
  uint8_t* row(const Buffer& buffer, int r) const { return memory + buffer.offset + r * buffer.stride; }
  float* floats(const Buffer& buffer, int r) const { return reinterpret_cast<float*>(row(buffer, r)); }
  void mark_bad(RowKind kind, int r) const {
    const auto token = static_cast<size_t>(kind == RowKind::Tokens ? r : logit_rows[static_cast<size_t>(r)]);
    std::atomic_ref(bad[token]).store(1, std::memory_order_relaxed);
  }
};

// One operation.  A step runs its phases one after the other, each as independent work items that
// any worker may take in any order; results never depend on who computes what.
class Op {
public:
  Op(std::string kind, std::string origin) : kind_(std::move(kind)), origin_(std::move(origin)) {}
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;

  // What it does, and the model file's line; lists, if it does several things.
  const std::string& kind() const { return kind_; }
  const std::string& origin() const { return origin_; }

  virtual int phases() const { return 1; }
  // Bytes that one work item needs for itself.
  virtual int64_t scratch_bytes() const { return 0; }
  // Throws std::invalid_argument if the operation cannot use this cache.
  virtual void check_cache(const KvCache&) const {}
  virtual int64_t items(const Step& step, int phase) const noexcept = 0;
  virtual void run(const Step& step, int phase, int64_t item, uint8_t* scratch) const noexcept = 0;

protected:
  void also_does(const char* kind, const std::string& origin) {
    kind_ += std::string(", ") + kind;
    origin_ += ", " + origin;
  }

private:
  std::string kind_, origin_;
};

// An operation that treats each row alone: row `row` of its output depends on that row of its inputs, and on
// the step.  It runs as a part of a chain.
class RowOp {
public:
  RowOp(const char* kind, std::string origin, RowKind rows, int cols)
      : kind_(kind), origin_(std::move(origin)), rows_(rows), cols_(cols) {}
  RowOp(const RowOp&) = delete;
  RowOp& operator=(const RowOp&) = delete;
  virtual ~RowOp() = default;

  const char* kind() const { return kind_; }
  const std::string& origin() const { return origin_; }
  RowKind rows() const { return rows_; }
  int cols() const { return cols_; }

  virtual int64_t scratch_bytes() const { return 0; }
  virtual void run_row(const Step& step, int row, uint8_t* scratch) const noexcept = 0;

private:
  const char* kind_;
  std::string origin_;
  RowKind rows_;
  int cols_;
};

// Row operations that follow each other: a row goes through all of them while it is in the cache, and no
// worker waits for others in between.  A few rows are one item, which costs no barrier.
class RowChain final : public Op {
public:
  explicit RowChain(std::unique_ptr<RowOp> op) : Op(op->kind(), op->origin()) { add(std::move(op)); }

  RowKind rows() const { return links_.front()->rows(); }
  void append(std::unique_ptr<RowOp> op) {
    also_does(op->kind(), op->origin());
    add(std::move(op));
  }

  int64_t scratch_bytes() const override { return scratch_bytes_; }
  int64_t items(const Step& step, int) const noexcept override {
    const int rows = item_rows();
    return (step.num_rows(this->rows()) + rows - 1) / rows;
  }
  void run(const Step& step, int, int64_t item, uint8_t* scratch) const noexcept override {
    const int begin = static_cast<int>(item) * item_rows();
    const int end = std::min(begin + item_rows(), step.num_rows(rows()));
    for (int r = begin; r < end; ++r)
      for (const auto& op : links_)
        op->run_row(step, r, scratch);
  }

private:
  static constexpr int64_t kItemElements = 4096; // about 1 us of work

  void add(std::unique_ptr<RowOp> op) {
    cols_ += op->cols();
    scratch_bytes_ = std::max(scratch_bytes_, op->scratch_bytes());
    links_.push_back(std::move(op));
  }
  int item_rows() const { return static_cast<int>(std::max<int64_t>(1, kItemElements / cols_)); }

  std::vector<std::unique_ptr<RowOp>> links_;
  int64_t cols_ = 0; // of all
  int64_t scratch_bytes_ = 0;
};

// Whether the magnitude of every value is below the one with these bits.
inline bool all_below(const float* x, int n, uint32_t bits) {
  uint32_t reached = 0; // a sum passes into the top bit exactly from the limit on
  for (int i = 0; i < n; ++i)
    reached |= (std::bit_cast<uint32_t>(x[i]) & 0x7fffffff) + (0x80000000 - bits);
  return reached < 0x80000000;
}

// Writes a Q8 or BF16 row; a value that is not finite marks the row.
inline void write_rounded(const Step& step, const float* x, const Buffer& out, int r) {
  uint8_t* to = step.row(out, r);
  const bool finite = out.type == RowType::Q8 ? quantize_q8_row(*step.kernels, x, out.cols, to)
                                              : step.kernels->round_bf16(x, out.cols, to);
  if (!finite)
    step.mark_bad(out.rows, r);
}

// Writes the columns of such a row from `first_col` on as write_rounded would within the whole row: blocks of
// 32 are rounded alone.  count: a multiple of 32, at most kMaxRoundedCols; whoever writes the last ones adds
// the padding.
constexpr int kMaxRoundedCols = 256;
void write_rounded_columns(const Step& step, const float* x, int count, const Buffer& out, int r,
                           int first_col);

} // namespace samovar
