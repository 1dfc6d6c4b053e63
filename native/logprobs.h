// Probabilities of tokens in the model's own distribution.
#pragma once

#include "kernels/kernels.h"

#include <span>

namespace samovar {

constexpr int kMaxTopLogprobs = 20;

// ln softmax(logits) at a token and at the most probable ones, on a tie those with lower ids first.
//
// Weights e^(l - l_max) are summed by exp_sum over blocks of 512, the blocks in double in order; the
// logarithm and the differences are double, rounded to float once.
struct Logprobs {
  float token;
  std::span<int32_t> top_tokens; // at most kMaxTopLogprobs
  std::span<float> top;
};

// Fills `out`, whose spans are as long as each other.  The same bits from every instruction set.
void find_logprobs(const Kernels& kernels, std::span<const float> logits, int32_t token,
                   Logprobs& out) noexcept;

} // namespace samovar
