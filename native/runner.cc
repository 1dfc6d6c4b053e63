#include "runner.h"

#include "kv_cache.h"
#include "pool.h"
#include "program.h"

#include <chrono>

namespace samovar {

Runner::Runner(std::shared_ptr<Program> program, std::shared_ptr<KvCache> cache, const Kernels& kernels,
               std::shared_ptr<Pool> pool)
    : program_(std::move(program)), cache_(std::move(cache)), kernels_(&kernels), pool_(std::move(pool)) {
  check(program_->logits() != nullptr, "program: set_logits was not called");
  for (const auto& op : program_->ops()) {
    op->check_cache(*cache_);
    scratch_bytes_ = std::max(scratch_bytes_, round_up(op->scratch_bytes(), 64));
    for (int phase = 0; phase < op->phases(); ++phase)
      phases_.push_back({op.get(), phase, profile_.size()});
    profile_.push_back({&op->kind(), &op->origin()});
  }
  program_->freeze();
  memory_ = arena_.allocate(program_->buffer_bytes());
  partials_ = reinterpret_cast<float*>(arena_.allocate(AttentionPlan::kPartialFloats * 4));
  scratch_ = arena_.allocate(scratch_bytes_ * pool_->threads());
  logits_ = reinterpret_cast<const float*>(memory_ + program_->logits()->offset);
  bad_.resize(static_cast<size_t>(program_->max_tokens()));
  for (const AttentionShape& shape : program_->attention_shapes())
    plans_.emplace_back(shape, program_->max_tokens(), program_->max_sequences());
  block_use_.resize(static_cast<size_t>(cache_->num_blocks()));
  for (int worker = 0; worker < pool_->threads(); ++worker)
    samplers_.emplace_back(*kernels_, logits_cols(), arena_);
}

Runner::~Runner() = default;

int Runner::logits_cols() const {
  return program_->logits()->cols;
}
int64_t Runner::logits_stride() const {
  return program_->logits()->stride / 4;
}
int Runner::max_logit_rows() const {
  return program_->max_logit_rows();
}

void Runner::check_rows(const StepInputs& in) const {
  const auto rows = static_cast<int64_t>(in.tokens.size());
  const auto sequences = static_cast<int64_t>(in.kv_len.size());
  check(rows >= 1 && rows <= program_->max_tokens(), "tokens: expected 1 to ", program_->max_tokens(),
        ", got ", rows);
  check(static_cast<int64_t>(in.positions.size()) == rows, "positions: expected ", rows, ", got ",
        in.positions.size());
  check(sequences >= 1 && sequences <= program_->max_sequences(), "kv_len: expected 1 to ",
        program_->max_sequences(), " sequences, got ", sequences);
  check(static_cast<int64_t>(in.seq_start.size()) == sequences + 1, "seq_start: expected ", sequences + 1,
        " values, got ", in.seq_start.size());
  check(in.table_rows == sequences, "block_table: expected ", sequences, " rows, got ", in.table_rows);
  check(in.seq_start.front() == 0 && in.seq_start.back() == rows, "seq_start: expected 0 to ", rows, ", got ",
        in.seq_start.front(), " to ", in.seq_start.back());
  const int vocab = program_->vocab();
  for (size_t t = 0; t < in.tokens.size(); ++t)
    check(vocab == 0 || (in.tokens[t] >= 0 && in.tokens[t] < vocab), "tokens: ", in.tokens[t], " at ", t,
          " is not in a vocabulary of ", vocab);
  for (size_t s = 0; s < in.kv_len.size(); ++s) {
    const int64_t begin = in.seq_start[s], end = in.seq_start[s + 1];
    check(begin < end && end <= rows, "seq_start: sequence ", s, " has rows ", begin, " to ", end, " of ",
          rows);
    const int64_t first = in.kv_len[s] - (end - begin);
    check(first >= 0, "kv_len: sequence ", s, " has ", end - begin, " rows, but only ", in.kv_len[s],
          " tokens");
    for (int64_t t = begin; t < end; ++t) {
      const int32_t position = in.positions[static_cast<size_t>(t)];
      check(position == first + (t - begin), "positions: expected ", first + (t - begin), " at row ", t,
            ", got ", position);
    }
  }
  const auto& logit_rows = in.logit_rows;
  check(static_cast<int>(logit_rows.size()) <= program_->max_logit_rows(), "logit_rows: expected at most ",
        program_->max_logit_rows(), ", got ", logit_rows.size());
  for (size_t i = 0; i < logit_rows.size(); ++i) {
    check(logit_rows[i] >= 0 && logit_rows[i] < rows, "logit_rows: ", logit_rows[i], " is not one of ", rows,
          " rows");
    check(i == 0 || logit_rows[i - 1] < logit_rows[i], "logit_rows: not ascending at ", i);
  }
}

void Runner::check_blocks(const StepInputs& in) {
  const auto width = static_cast<size_t>(in.blocks_per_seq);
  if (++step_number_ == 0) { // wrapped: old marks would look new
    std::fill(block_use_.begin(), block_use_.end(), BlockUse{});
    step_number_ = 1;
  }
  const auto last_block = [&](size_t s) { return (in.kv_len[s] - 1) / kPageTokens; };
  for (size_t s = 0; s < in.kv_len.size(); ++s) {
    check(last_block(s) < in.blocks_per_seq, "block_table: ", in.blocks_per_seq, " blocks for the ",
          in.kv_len[s], " tokens of sequence ", s);
    const int32_t* blocks = in.block_table.data() + s * width;
    for (int b = 0; b <= last_block(s); ++b)
      check(blocks[b] >= 0 && blocks[b] < cache_->num_blocks(), "block_table: ", blocks[b], " for block ", b,
            " of sequence ", s, " is not one of ", cache_->num_blocks(), " blocks");
    const int first_written = in.positions[static_cast<size_t>(in.seq_start[s])] / kPageTokens;
    for (int b = first_written; b <= last_block(s); ++b) {
      BlockUse& use = block_use_[static_cast<size_t>(blocks[b])];
      check(use.step != step_number_, "block_table: block ", blocks[b], " is written by sequences ",
            use.sequence, " and ", s);
      use = {step_number_, static_cast<int32_t>(s), b};
    }
  }
  for (size_t s = 0; s < in.kv_len.size(); ++s) {
    const int32_t* blocks = in.block_table.data() + s * width;
    for (int b = 0; b <= last_block(s); ++b) {
      const BlockUse& use = block_use_[static_cast<size_t>(blocks[b])];
      check(use.step != step_number_ || (use.sequence == static_cast<int32_t>(s) && use.index == b),
            "block_table: block ", blocks[b], " is written by sequence ", use.sequence, " and read by ", s);
    }
  }
}

// Walks through the phases of a step.  Phases with one item, as half of a layer's are for a few
// rows, are computed by whoever finished the phase before, so that they wake and await nobody.
class Runner::StepJob final : public Job {
public:
  StepJob(Runner& runner, const Step& step) : runner_(runner), step_(step) {}

  int64_t next_phase(int worker) noexcept override {
    for (;; ++next_) {
      if (runner_.profiling_)
        record();
      if (next_ == runner_.phases_.size())
        return 0;
      current_ = &runner_.phases_[next_];
      const int64_t items = current_->op->items(step_, current_->phase);
      if (items > 1) {
        ++next_;
        return items;
      }
      if (items == 1)
        run(0, worker);
    }
  }

  void run(int64_t item, int worker) noexcept override {
    current_->op->run(step_, current_->phase, item, runner_.scratch_ + worker * runner_.scratch_bytes_);
  }

private:
  using Clock = std::chrono::steady_clock;

  // The time since the last call belongs to the phase that ended.
  void record() {
    const Clock::time_point now = Clock::now();
    if (current_ != nullptr) {
      Profile& profile = runner_.profile_[current_->profile];
      profile.ns += std::chrono::nanoseconds(now - start_).count();
      profile.calls += current_->phase == 0;
    }
    start_ = now;
  }

  Runner& runner_;
  const Step& step_;
  size_t next_ = 0;
  const Phase* current_ = nullptr;
  Clock::time_point start_;
};

std::vector<int32_t> Runner::run(const StepInputs& in) {
  const std::lock_guard turn(turn_);
  check_rows(in);
  check_blocks(in);
  const Step step{.tokens = in.tokens,
                  .positions = in.positions,
                  .seq_start = in.seq_start,
                  .kv_len = in.kv_len,
                  .block_table = in.block_table,
                  .blocks_per_seq = static_cast<int>(in.blocks_per_seq),
                  .logit_rows = in.logit_rows,
                  .kernels = kernels_,
                  .cache = cache_.get(),
                  .threads = pool_->threads(),
                  .memory = memory_,
                  .bad = bad_.data(),
                  .partials = partials_,
                  .plans = plans_.data()};
  for (AttentionPlan& plan : plans_)
    plan.build(step);
  std::fill_n(bad_.begin(), in.tokens.size(), uint8_t{0});
  StepJob job(*this, step);
  pool_->run(job);
  logit_rows_ = static_cast<int>(in.logit_rows.size());
  std::vector<int32_t> bad;
  for (size_t t = 0; t < in.tokens.size(); ++t)
    if (bad_[t])
      bad.push_back(static_cast<int32_t>(t));
  return bad;
}

void Runner::set_profiling(bool enabled) {
  profiling_ = enabled;
  if (enabled)
    for (Profile& profile : profile_)
      profile.calls = profile.ns = 0;
}

void Runner::sample(std::span<const Choice> choices, std::span<int32_t> tokens) {
  const std::lock_guard turn(turn_);
  for (size_t i = 0; i < choices.size(); ++i)
    check_choice(choices[i], i, logit_rows_, logits_cols());
  pool_->each(static_cast<int64_t>(choices.size()), [&](int64_t item, int worker) {
    const Choice& choice = choices[static_cast<size_t>(item)];
    const float* row = logits_ + choice.row * logits_stride();
    tokens[static_cast<size_t>(item)] = samplers_[static_cast<size_t>(worker)].pick(row, choice);
  });
}

void Runner::logprobs(std::span<const int32_t> rows, std::span<const int32_t> tokens, int top,
                      const LogprobsOut& out) {
  const std::lock_guard turn(turn_);
  const int vocab = logits_cols();
  const auto width = static_cast<size_t>(top);
  check(top >= 0 && top <= std::min(kMaxTopLogprobs, vocab), "top: expected 0 to ",
        std::min(kMaxTopLogprobs, vocab), ", got ", top);
  for (size_t i = 0; i < rows.size(); ++i) {
    check(rows[i] >= 0 && rows[i] < logit_rows_, "rows[", i, "]: ", rows[i], " is not one of ", logit_rows_,
          " rows");
    check(tokens[i] >= 0 && tokens[i] < vocab, "tokens[", i, "]: ", tokens[i], " is not in a vocabulary of ",
          vocab);
  }
  pool_->each(static_cast<int64_t>(rows.size()), [&](int64_t item, int) {
    const auto i = static_cast<size_t>(item);
    const std::span logits(logits_ + rows[i] * logits_stride(), static_cast<size_t>(vocab));
    Logprobs found{.token = 0,
                   .top_tokens = out.top_tokens.subspan(i * width, width),
                   .top = out.top.subspan(i * width, width)};
    find_logprobs(*kernels_, logits, tokens[i], found);
    out.tokens[i] = found.token;
  });
}

} // namespace samovar
