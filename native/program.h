// A model as a flat list of operations over planned buffers.
#pragma once

#include "attention_plan.h"
#include "check.h"
#include "op.h"

#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

namespace samovar {

// Built once, operation by operation (ops/ops.h), then replayed by a Runner at every step.
class Program {
public:
  Program(int max_tokens, int max_logit_rows, int max_sequences, int64_t buffer_bytes);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Declares a matrix at an offset that the planner chose; returns its id.
  int buffer(int64_t offset, int cols, std::string_view type, std::string_view rows);

  // Names the buffer that holds the logits, which the last operation wrote and checked; ends the program.
  void set_logits(int x);

  // No operation can be added from now on.
  void freeze() { frozen_ = true; }

  int max_tokens() const { return max_tokens_; }
  int max_logit_rows() const { return max_logit_rows_; }
  int max_sequences() const { return max_sequences_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  int vocab() const { return vocab_; } // ids that the embedding has; 0 without one
  const Buffer* logits() const { return has_logits_ ? &logits_ : nullptr; }
  std::span<const std::unique_ptr<Op>> ops() const { return ops_; }
  std::span<const AttentionShape> attention_shapes() const { return shapes_; }

private:
  friend class Adding;

  struct Declared {
    Buffer buffer;
    std::vector<bool> written; // by column
  };

  int64_t size(const Buffer& buffer) const {
    return buffer.stride * (buffer.rows == RowKind::Tokens ? max_tokens_ : max_logit_rows_);
  }
  bool overlap(const Buffer& a, const Buffer& b) const {
    return a.offset < b.offset + size(b) && b.offset < a.offset + size(a);
  }

  int max_tokens_, max_logit_rows_, max_sequences_;
  int64_t buffer_bytes_;
  int vocab_ = 0;
  int checked_ = -1; // the buffer of which the last operation wrote all columns and checked all values
  bool frozen_ = false;
  bool has_logits_ = false;
  Buffer logits_{};
  std::vector<Declared> buffers_;
  std::vector<std::unique_ptr<Op>> ops_;
  RowChain* chain_ = nullptr;   // the last operation, if more can join it
  std::vector<int> chain_uses_; // its buffers
  std::vector<AttentionShape> shapes_;
};

// One operation on its way into a program: every operand is checked, and every message names the
// operation and its origin.  Nothing changes before `finish`.
class Adding {
public:
  using Names = std::initializer_list<std::string_view>;

  Adding(Program& program, const char* kind, std::string origin);

  const std::string& origin() const { return origin_; }

  template <class... Parts> void require(bool ok, const Parts&... parts) const {
    check(ok, origin_, ": ", kind_, ": ", parts...);
  }

  // A buffer that is read: all of its columns must have been written.
  Buffer input(const char* name, int id);
  Buffer input(const char* name, int id, RowType type);
  // A buffer of which `cols` columns from `first_col` are written; all if cols is -1.  It must not
  // share memory with an input, except exactly with one that `over` names.
  Buffer output(const char* name, int id, int first_col = 0, int cols = -1, Names over = {});
  Buffer output(const char* name, int id, RowType type, Names over = {});
  // A buffer that is read and written.
  Buffer in_place(const char* name, int id, RowType type);
  // As output, for the rounded rows that a linear reads.
  Buffer rounded_output(const char* name, int id);

  void same_rows(const Buffer& a, const Buffer& b) const;
  void tokens_only(const char* name, const Buffer& buffer) const;
  void columns(const char* name, const Buffer& buffer, int64_t expected) const;

  int attention_shape(const AttentionShape& shape);
  void set_vocab(int vocab);
  // Says that the operation marks the rows of this output that are not all finite.
  void checks(int id);
  void finish(std::unique_ptr<Op> op);
  // Joins the operations before it if these treat each row alone too, on memory that they do not share with
  // it.
  void finish(std::unique_ptr<RowOp> op);

private:
  struct Operand {
    const char* name;
    int id;
    int first_col;
    int cols;
    std::vector<std::string_view> over;
  };

  const Program::Declared& declared(const char* name, int id) const;
  void require_type(const char* name, const Buffer& buffer, RowType type) const;
  void check_overlaps() const;
  bool can_join(const RowOp& op) const;
  void note_outputs();

  Program& program_;
  const char* kind_;
  std::string origin_;
  std::vector<Operand> inputs_;
  std::vector<Operand> outputs_;
  int vocab_ = 0;
  int checked_ = -1;
};

} // namespace samovar
