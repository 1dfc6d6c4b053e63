#include "logprobs.h"

#include "kernels/log.h"
#include "rank.h"

#include <algorithm>
#include <array>

namespace samovar {
namespace {

constexpr size_t kSumBlock = 512;
constexpr size_t kScanBlock = 64;

double weight_sum(const Kernels& kernels, std::span<const float> logits, float largest) {
  alignas(64) float weights[kSumBlock];
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kSumBlock) {
    const size_t count = std::min(kSumBlock, logits.size() - begin);
    total += kernels.exp_sum(logits.data() + begin, static_cast<int>(count), largest, 1.0f, weights);
  }
  return total;
}

bool any_above(std::span<const float> x, float bound) {
  int any = 0;
  for (const float v : x)
    any |= v > bound;
  return any != 0;
}

// The ids of the largest logits, best first.  One pass: a block is looked at closely only if something
// in it beats the last of those found so far; later ids never win a tie.
void find_top(std::span<const float> logits, std::span<int32_t> top) {
  std::array<uint64_t, kMaxTopLogprobs> keys; // descending
  size_t found = 0;
  const auto insert = [&](size_t id) {
    const uint64_t key = rank_key(logits[id], static_cast<int32_t>(id));
    size_t at = found < top.size() ? found++ : found - 1;
    for (; at > 0 && keys[at - 1] < key; --at)
      keys[at] = keys[at - 1];
    keys[at] = key;
  };
  for (size_t id = 0; id < top.size(); ++id)
    insert(id);
  const auto last = [&] { return logits[static_cast<size_t>(ranked_id(keys[found - 1]))]; };
  for (size_t begin = found; begin < logits.size(); begin += kScanBlock) {
    const size_t end = std::min(begin + kScanBlock, logits.size());
    if (any_above(logits.subspan(begin, end - begin), last()))
      for (size_t id = begin; id < end; ++id)
        if (logits[id] > last())
          insert(id);
  }
  std::ranges::transform(std::span(keys).first(found), top.begin(), ranked_id);
}

} // namespace

void find_logprobs(const Kernels& kernels, std::span<const float> logits, int32_t token,
                   Logprobs& out) noexcept {
  const int best = kernels.argmax(logits.data(), static_cast<int>(logits.size()));
  const float largest = logits[static_cast<size_t>(best)];
  const double log_sum = natural_log(weight_sum(kernels, logits, largest));
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(double{logits[static_cast<size_t>(id)]} - double{largest} - log_sum);
  };
  out.token = logprob(token);
  if (out.top_tokens.empty())
    return;
  find_top(logits, out.top_tokens);
  std::ranges::transform(out.top_tokens, out.top.begin(), logprob);
}

} // namespace samovar
