#include "program.h"

#include "ops/ops.h"
#include "weight.h"

namespace samovar {
namespace {

constexpr int kMaxCols = 1 << 26;

} // namespace

Program::Program(int max_tokens, int max_logit_rows, int max_sequences, int64_t buffer_bytes)
    : max_tokens_(max_tokens), max_logit_rows_(max_logit_rows), max_sequences_(max_sequences),
      buffer_bytes_(buffer_bytes) {
  check(max_tokens >= 1 && max_tokens <= 1 << 20, "max_tokens: expected 1 to ", 1 << 20, ", got ",
        max_tokens);
  check(max_logit_rows >= 1 && max_logit_rows <= max_tokens, "max_logit_rows: expected 1 to max_tokens (",
        max_tokens, "), got ", max_logit_rows);
  check(max_sequences >= 1 && max_sequences <= max_tokens, "max_sequences: expected 1 to max_tokens (",
        max_tokens, "), got ", max_sequences);
  check(buffer_bytes >= 0 && buffer_bytes <= int64_t{1} << 46, "buffer_bytes: out of range: ", buffer_bytes);
}

int Program::buffer(int64_t offset, int cols, std::string_view type, std::string_view rows) {
  check(!frozen_, "buffer: the program already belongs to a runner");
  check(type == "f32" || type == "q8" || type == "bf16", "type: expected f32, q8 or bf16, got ", type);
  check(rows == "tokens" || rows == "logits", "rows: expected tokens or logits, got ", rows);
  check(cols >= 1 && cols <= kMaxCols, "cols: expected 1 to ", kMaxCols, ", got ", cols);
  const RowType row_type = type == "f32" ? RowType::F32 : type == "q8" ? RowType::Q8 : RowType::BF16;
  const Buffer b{offset, row_bytes(row_type, cols), cols, row_type,
                 rows == "tokens" ? RowKind::Tokens : RowKind::Logits};
  check(offset >= 0 && offset % 64 == 0, "offset: expected a multiple of 64, got ", offset);
  check(offset <= buffer_bytes_ && size(b) <= buffer_bytes_ - offset, "buffer of ", size(b),
        " bytes at offset ", offset, " passes the end of buffer_bytes, ", buffer_bytes_);
  buffers_.push_back({b, std::vector<bool>(static_cast<size_t>(cols))});
  return static_cast<int>(buffers_.size()) - 1;
}

void Program::set_logits(int x) {
  check(!has_logits_, "set_logits: logits are set already");
  check(x >= 0 && static_cast<size_t>(x) < buffers_.size(), "set_logits: x: no buffer ", x);
  const Buffer& logits = buffers_[static_cast<size_t>(x)].buffer;
  check(logits.rows == RowKind::Logits, "set_logits: x: expected rows \"logits\"");
  check(checked_ == x, "set_logits: x: expected what the last operation, linear or take_logit_rows, wrote");
  logits_ = logits;
  has_logits_ = true;
}

Adding::Adding(Program& program, const char* kind, std::string origin)
    : program_(program), kind_(kind), origin_(std::move(origin)) {
  require(!program.frozen_, "the program already belongs to a runner");
  require(!program.has_logits_, "set_logits ended the program");
}

const Program::Declared& Adding::declared(const char* name, int id) const {
  require(id >= 0 && static_cast<size_t>(id) < program_.buffers_.size(), name, ": no buffer ", id);
  return program_.buffers_[static_cast<size_t>(id)];
}

void Adding::require_type(const char* name, const Buffer& buffer, RowType type) const {
  require(buffer.type == type, name, ": expected ", row_type_name(type), " rows, got ",
          row_type_name(buffer.type));
}

Buffer Adding::input(const char* name, int id) {
  const Program::Declared& d = declared(name, id);
  for (size_t col = 0; col < d.written.size(); ++col)
    require(d.written[col], name, ": column ", col, " of buffer ", id,
            " is read before it is written, or after its memory was used for another");
  inputs_.push_back({name, id, 0, d.buffer.cols, {}});
  return d.buffer;
}

Buffer Adding::input(const char* name, int id, RowType type) {
  const Buffer buffer = input(name, id);
  require_type(name, buffer, type);
  return buffer;
}

Buffer Adding::output(const char* name, int id, int first_col, int cols, Names over) {
  const Buffer buffer = declared(name, id).buffer;
  if (cols == -1)
    cols = buffer.cols;
  require(first_col >= 0 && first_col <= buffer.cols && cols <= buffer.cols - first_col, name, ": columns ",
          first_col, " to ", int64_t{first_col} + cols, " do not fit into ", buffer.cols);
  outputs_.push_back({name, id, first_col, cols, over});
  return buffer;
}

Buffer Adding::output(const char* name, int id, RowType type, Names over) {
  const Buffer buffer = output(name, id, 0, -1, over);
  require_type(name, buffer, type);
  return buffer;
}

Buffer Adding::in_place(const char* name, int id, RowType type) {
  const Buffer buffer = input(name, id, type);
  outputs_.push_back({name, id, 0, buffer.cols, {name}});
  return buffer;
}

Buffer Adding::rounded_output(const char* name, int id) {
  const Buffer buffer = output(name, id);
  require(buffer.type != RowType::F32, name, ": expected q8 or bf16 rows, got f32");
  return buffer;
}

void Adding::same_rows(const Buffer& a, const Buffer& b) const {
  require(a.rows == b.rows, "one operand has a row for each token, another a row for each row of logits");
}

void Adding::tokens_only(const char* name, const Buffer& buffer) const {
  require(buffer.rows == RowKind::Tokens, name, ": expected rows \"tokens\"");
}

void Adding::columns(const char* name, const Buffer& buffer, int64_t expected) const {
  require(buffer.cols == expected, name, ": expected ", expected, " columns, got ", buffer.cols);
}

int Adding::attention_shape(const AttentionShape& shape) {
  auto& shapes = program_.shapes_;
  const auto found = std::ranges::find(shapes, shape);
  if (found != shapes.end())
    return static_cast<int>(found - shapes.begin());
  shapes.push_back(shape);
  return static_cast<int>(shapes.size()) - 1;
}

void Adding::set_vocab(int vocab) {
  vocab_ = vocab;
}

void Adding::checks(int id) {
  checked_ = id;
}

void Adding::check_overlaps() const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Operand& out = outputs_[i];
    const Buffer& to = program_.buffers_[static_cast<size_t>(out.id)].buffer;
    for (const Operand& in : inputs_) {
      const Buffer& from = program_.buffers_[static_cast<size_t>(in.id)].buffer;
      const bool same = to.offset == from.offset && to.stride == from.stride && to.rows == from.rows &&
                        to.type == from.type;
      const bool allowed = same && std::ranges::find(out.over, in.name) != out.over.end();
      require(allowed || !program_.overlap(to, from), out.name, " shares memory with ", in.name);
    }
    for (size_t j = 0; j < i; ++j)
      require(!program_.overlap(to, program_.buffers_[static_cast<size_t>(outputs_[j].id)].buffer), out.name,
              " shares memory with ", outputs_[j].name);
  }
}

bool Adding::can_join(const RowOp& op) const {
  if (program_.chain_ == nullptr || program_.chain_->rows() != op.rows())
    return false;
  // Rows that it has already written must not lie where the others have yet to read or write theirs.
  return std::ranges::all_of(outputs_, [&](const Operand& out) {
    const Buffer& to = program_.buffers_[static_cast<size_t>(out.id)].buffer;
    return std::ranges::all_of(program_.chain_uses_, [&](int id) {
      return id == out.id || !program_.overlap(to, program_.buffers_[static_cast<size_t>(id)].buffer);
    });
  });
}

void Adding::finish(std::unique_ptr<Op> op) {
  check_overlaps();
  program_.ops_.push_back(std::move(op));
  program_.chain_ = nullptr;
  note_outputs();
}

void Adding::finish(std::unique_ptr<RowOp> op) {
  check_overlaps();
  if (can_join(*op)) {
    program_.chain_->append(std::move(op));
  } else {
    auto chain = std::make_unique<RowChain>(std::move(op));
    RowChain* added = chain.get();
    program_.ops_.push_back(std::move(chain));
    program_.chain_ = added;
    program_.chain_uses_.clear();
  }
  for (const Operand& in : inputs_)
    program_.chain_uses_.push_back(in.id);
  for (const Operand& out : outputs_)
    program_.chain_uses_.push_back(out.id);
  note_outputs();
}

void Adding::note_outputs() {
  program_.checked_ = checked_;
  if (vocab_ > 0)
    program_.vocab_ = program_.vocab_ > 0 ? std::min(program_.vocab_, vocab_) : vocab_;
  for (const Operand& out : outputs_) {
    const Buffer to = program_.buffers_[static_cast<size_t>(out.id)].buffer;
    for (size_t id = 0; id < program_.buffers_.size(); ++id) {
      auto& [buffer, written] = program_.buffers_[id];
      if (static_cast<int>(id) == out.id)
        std::fill_n(written.begin() + out.first_col, out.cols, true);
      else if (program_.overlap(to, buffer))
        written.assign(written.size(), false);
    }
  }
}

} // namespace samovar
