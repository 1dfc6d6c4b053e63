// Replays a program, a step at a time.
#pragma once

#include "arena.h"
#include "attention_plan.h"
#include "logprobs.h"
#include "sampler.h"

#include <memory>
#include <mutex>
#include <vector>

namespace samovar {

class KvCache;
class Pool;
class Program;

// The rows of one step, as the caller has them; `Runner::run` checks all of it.
struct StepInputs {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;   // consecutive in a sequence, up to kv_len - 1
  std::span<const int32_t> seq_start;   // sequence s has rows seq_start[s] to seq_start[s + 1]
  std::span<const int32_t> kv_len;      // tokens of each sequence that the cache holds after the step
  std::span<const int32_t> block_table; // [sequences, blocks_per_seq], -1: none
  int64_t table_rows;
  int64_t blocks_per_seq;
  std::span<const int32_t> logit_rows; // ascending
};

// Owns the activations of one program.  Threads take turns.
class Runner {
public:
  Runner(std::shared_ptr<Program> program, std::shared_ptr<KvCache> cache, const Kernels& kernels,
         std::shared_ptr<Pool> pool);
  ~Runner();

  // Computes a step.  Throws std::invalid_argument before anything is computed if an input is wrong.
  // Returns the rows, usually none, that met a value which is not finite.
  std::vector<int32_t> run(const StepInputs& inputs);

  // Rows of the logits, `logits_stride` floats apart; those of the last run are valid.
  const float* logits() const { return logits_; }
  int logits_cols() const;
  int64_t logits_stride() const;
  int max_logit_rows() const;

  // One token for each of the choices, in parallel; -1 where its mask allows none.  Throws
  // std::invalid_argument if a choice is wrong, or its row not one of the last run's.
  void sample(std::span<const Choice> choices, std::span<int32_t> tokens);

  // The logarithms of the probabilities of a token after each of `rows`, and of the most probable ones:
  // `top` of them for each row, one row after the other.  Throws as `sample`.
  struct LogprobsOut {
    std::span<float> tokens;
    std::span<int32_t> top_tokens;
    std::span<float> top;
  };
  void logprobs(std::span<const int32_t> rows, std::span<const int32_t> tokens, int top,
                const LogprobsOut& out);

  struct Profile {
    const std::string* kind;
    const std::string* origin;
    int64_t calls = 0;
    int64_t ns = 0;
  };
  // Time by operation, from its start to the end of its last item, since profiling was switched on.
  const std::vector<Profile>& profile() const { return profile_; }
  void set_profiling(bool enabled);

private:
  class StepJob;

  struct Phase {
    const Op* op;
    int phase;
    size_t profile; // index
  };
  // Who wrote a block in this step, to find blocks that two sequences would write.
  struct BlockUse {
    uint32_t step = 0;
    int32_t sequence = 0;
    int32_t index = 0;
  };

  void check_rows(const StepInputs& in) const;
  void check_blocks(const StepInputs& in);

  std::shared_ptr<Program> program_;
  std::shared_ptr<KvCache> cache_;
  const Kernels* kernels_;
  std::shared_ptr<Pool> pool_;
  std::mutex turn_; // held while computing
  Arena arena_;
  uint8_t* memory_;
  float* partials_;
  int64_t scratch_bytes_ = 0; // of each worker
  uint8_t* scratch_ = nullptr;
  const float* logits_ = nullptr;
  int logit_rows_ = 0; // of the last run
  std::vector<uint8_t> bad_;
  std::vector<AttentionPlan> plans_;
  std::vector<Phase> phases_;
  std::vector<BlockUse> block_use_;
  uint32_t step_number_ = 0;
  std::vector<Sampler> samplers_; // of each worker
  bool profiling_ = false;
  std::vector<Profile> profile_;
};

} // namespace samovar
