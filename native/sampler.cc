#include "sampler.h"

#include "arena.h"
#include "check.h"
#include "philox.h"
#include "rank.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace samovar {
namespace {

constexpr int kWeightBlock = 512; // a draw skips whole blocks by their sums
constexpr int kScanBlock = 32;    // looked at closely only if it holds something
constexpr size_t kSortedKeys = 64;
constexpr int kBucketShift = 21; // weights of one bucket agree in exponent and two bits more
constexpr size_t kBuckets = (0x3f800000 >> kBucketShift) + 1; // up to a weight of 1
constexpr int kMaskBits = 32;                                 // of a word
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Never NaN, which would break a selection.
float largest_of(const float* x, int n) {
  std::array<float, 8> most; // lanes that the compiler can keep in vectors
  most.fill(kNever);
  int i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t l = 0; l < 8; ++l)
      most[l] = x[static_cast<size_t>(i) + l] > most[l] ? x[static_cast<size_t>(i) + l] : most[l];
  for (; i < n; ++i)
    most[0] = x[i] > most[0] ? x[i] : most[0];
  return *std::ranges::max_element(most);
}

// body(begin, end) for each block that has a value of at least the threshold.
template <class Body> void for_blocks_from(const float* x, int n, float threshold, Body body) {
  for (int begin = 0; begin < n; begin += kScanBlock) {
    const int end = std::min(begin + kScanBlock, n);
    int any = 0;
    for (int i = begin; i < end; ++i)
      any |= x[i] >= threshold;
    if (any != 0)
      body(begin, end);
  }
}

// Weights are summed as whole numbers of 2^-40, so that the order does not matter.
int64_t units(float weight) {
  return static_cast<int64_t>(weight * 0x1p40f);
}
size_t bucket(float weight) {
  return std::bit_cast<uint32_t>(weight) >> kBucketShift;
}

double uniform(const Choice& choice) {
  const PhiloxWords w = philox(choice.seed, {{choice.position, choice.choice, 0, 0}});
  return ((w.word[0] >> 5) * 0x1p26 + (w.word[1] >> 6)) * 0x1p-53;
}

// For each set of four allowed tokens what keeps their logits, by `and`, and what forbids the others, by
// `or`: a branch for each token would be mispredicted.
struct FourTokens {
  uint32_t keep[4], forbid[4];
};
constexpr auto kFourTokens = [] {
  std::array<FourTokens, 16> table{};
  for (unsigned set = 0; set < table.size(); ++set)
    for (unsigned i = 0; i < 4; ++i) {
      const bool allowed = (set >> i & 1) != 0;
      table[set].keep[i] = allowed ? ~uint32_t{0} : 0;
      table[set].forbid[i] = allowed ? 0 : std::bit_cast<uint32_t>(kNever);
    }
  return table;
}();

void forbid_some(uint32_t allowed, float* logits, int count) {
  int i = 0;
  for (; i + 4 <= count; i += 4, allowed >>= 4) {
    const FourTokens& four = kFourTokens[allowed & 15];
    std::array<uint32_t, 4> bits;
    std::memcpy(bits.data(), logits + i, sizeof bits);
    for (size_t t = 0; t < 4; ++t)
      bits[t] = (bits[t] & four.keep[t]) | four.forbid[t];
    std::memcpy(logits + i, bits.data(), sizeof bits);
  }
  for (; i < count; ++i, allowed >>= 1)
    if ((allowed & 1) == 0)
      logits[i] = kNever;
}

} // namespace

void check_choice(const Choice& c, size_t index, int rows, int vocab) {
  const auto require = [&](bool ok, const char* name, const char* expected, auto got) {
    check(ok, name, "[", index, "]: expected ", expected, ", got ", got);
  };
  check(c.row >= 0 && c.row < rows, "rows[", index, "]: ", c.row, " is not one of ", rows, " rows");
  require(c.temperature >= 0 && std::isfinite(c.temperature), "temperature", "at least 0", c.temperature);
  require(c.top_p >= 0 && c.top_p <= 1, "top_p", "0 to 1", c.top_p);
  require(c.min_p >= 0 && c.min_p <= 1, "min_p", "0 to 1", c.min_p);
  require(c.top_k >= 0, "top_k", "at least 0", c.top_k);
  require(c.repeat_penalty > 0 && std::isfinite(c.repeat_penalty), "repeat_penalty", "more than 0",
          c.repeat_penalty);
  require(std::isfinite(c.frequency_penalty), "frequency_penalty", "a finite number", c.frequency_penalty);
  require(std::isfinite(c.presence_penalty), "presence_penalty", "a finite number", c.presence_penalty);
  for (const int32_t token : c.repeat_tokens)
    check(token >= 0 && token < vocab, "repeat_tokens: ", token, " is not in a vocabulary of ", vocab);
  for (const int32_t token : c.reply_tokens)
    check(token >= 0 && token < vocab, "reply_tokens: ", token, " is not in a vocabulary of ", vocab);
  for (const int32_t token : c.bias_tokens)
    check(token >= 0 && token < vocab, "bias_tokens: ", token, " is not in a vocabulary of ", vocab);
  for (const float value : c.bias_values)
    check(std::isfinite(value), "bias_values: expected finite numbers, got ", value);
}

Sampler::Sampler(const Kernels& kernels, int vocab, Arena& arena) : kernels_(&kernels), vocab_(vocab) {
  const auto size = static_cast<size_t>(vocab);
  logits_ = reinterpret_cast<float*>(arena.allocate(int64_t{vocab} * 4));
  weights_ = reinterpret_cast<float*>(arena.allocate(int64_t{vocab} * 4));
  counts_ = reinterpret_cast<int32_t*>(arena.allocate(int64_t{vocab} * 4));
  sums_.resize(size / kWeightBlock + 1);
  maxima_.resize(size / kScanBlock + 1);
  candidates_.reserve(size);
  keys_.reserve(size);
}

int Sampler::pick(const float* logits, const Choice& choice) noexcept {
  logits = adjusted(logits, choice);
  const int best = kernels_->argmax(logits, vocab_);
  const float largest = logits[best];
  if (choice.mask != nullptr && largest == kNever)
    return first_allowed(choice.mask);
  // So cold that a difference of one would overflow, or nothing to compare with.
  const float inverse = 1.0f / std::fabs(choice.temperature); // a negative zero is a zero
  if (!(inverse < 1e30f) || !std::isfinite(largest))
    return best;
  // So hot that the inverse is flushed to zero: 0 times -inf would be NaN.
  const float inverse_temperature = std::max(inverse, std::numeric_limits<float>::min());
  const double u = uniform(choice);
  double total;
  if (choice.top_k > 0 && choice.top_k < vocab_) {
    take_top_k(logits, choice.top_k, largest, inverse_temperature);
    if (choice.min_p > 0)
      std::erase_if(candidates_, [&](const Candidate& c) { return !(c.weight >= choice.min_p); });
    total = sum();
  } else {
    total = weigh_all(logits, largest, inverse_temperature);
    if (!std::isfinite(total)) // a logit is NaN, which the step has told its caller
      return best;
    if (choice.min_p == 0 && choice.top_p >= 1)
      return draw_from_all(total, u);
    if (choice.min_p > 0) {
      take_from(choice.min_p);
      total = sum();
    } else {
      take_top_p(choice.top_p, total);
      return draw(u);
    }
  }
  if (choice.top_p < 1)
    keep_top_p(choice.top_p, total);
  return candidates_.empty() ? best : draw(u);
}

const float* Sampler::adjusted(const float* logits, const Choice& choice) {
  const bool repeat = choice.repeat_penalty != 1.0f && !choice.repeat_tokens.empty();
  const bool reply =
      (choice.frequency_penalty != 0.0f || choice.presence_penalty != 0.0f) && !choice.reply_tokens.empty();
  if (choice.bias_tokens.empty() && choice.mask == nullptr && !repeat && !reply)
    return logits;
  std::copy_n(logits, vocab_, logits_);
  for (size_t i = 0; i < choice.bias_tokens.size(); ++i)
    logits_[choice.bias_tokens[i]] += choice.bias_values[i];
  if (repeat)
    penalize_repeated(choice);
  if (reply)
    penalize_reply(choice);
  // As penalties treat each token alone, it is the same before and after them; here nothing can make a
  // forbidden token possible again (-inf less -inf is NaN).
  if (choice.mask != nullptr)
    forbid(choice.mask);
  return logits_;
}

void Sampler::penalize_repeated(const Choice& choice) {
  for (const int32_t token : choice.repeat_tokens) {
    float& l = logits_[token];
    if (counts_[token]++ == 0)
      l = l > 0 ? l / choice.repeat_penalty : l * choice.repeat_penalty;
  }
  for (const int32_t token : choice.repeat_tokens)
    counts_[token] = 0;
}

void Sampler::penalize_reply(const Choice& choice) {
  for (const int32_t token : choice.reply_tokens)
    ++counts_[token];
  for (const int32_t token : choice.reply_tokens) {
    if (counts_[token] > 0)
      logits_[token] -=
          choice.frequency_penalty * static_cast<float>(counts_[token]) + choice.presence_penalty;
    counts_[token] = 0;
  }
}

void Sampler::forbid(const uint32_t* mask) {
  for (int begin = 0; begin < vocab_; begin += kMaskBits) {
    const uint32_t allowed = mask[begin / kMaskBits];
    const int count = std::min(kMaskBits, vocab_ - begin);
    if (allowed == 0)
      std::fill_n(logits_ + begin, count, kNever);
    else if (allowed != ~uint32_t{0})
      forbid_some(allowed, logits_ + begin, count);
  }
}

int Sampler::first_allowed(const uint32_t* mask) const {
  for (int begin = 0; begin < vocab_; begin += kMaskBits)
    if (const uint32_t allowed = mask[begin / kMaskBits]; allowed != 0) {
      const int token = begin + std::countr_zero(allowed);
      return token < vocab_ ? token : -1; // the last word has bits to spare
    }
  return -1;
}

// Fills candidates_ with the top_k largest logits, weighed; without those that weigh nothing.
void Sampler::take_top_k(const float* logits, int top_k, float largest, float inverse_temperature) {
  const auto k = static_cast<size_t>(top_k);
  // At least k logits reach the k-th largest of the blocks' largest ones.
  float bound = kNever;
  const size_t blocks = static_cast<size_t>(vocab_ + kScanBlock - 1) / kScanBlock;
  if (k <= blocks) {
    for (size_t b = 0; b < blocks; ++b) {
      const int begin = static_cast<int>(b) * kScanBlock;
      maxima_[b] = largest_of(logits + begin, std::min(kScanBlock, vocab_ - begin));
    }
    const auto kth = maxima_.begin() + static_cast<int64_t>(k) - 1;
    std::nth_element(maxima_.begin(), kth, maxima_.begin() + static_cast<int64_t>(blocks), std::greater<>());
    bound = *kth;
  }
  keys_.clear();
  for_blocks_from(logits, vocab_, bound, [&](int begin, int end) {
    for (int i = begin; i < end; ++i)
      if (logits[i] >= bound)
        keys_.push_back(rank_key(logits[i], i));
  });
  if (k < keys_.size()) {
    std::nth_element(keys_.begin(), keys_.begin() + static_cast<int64_t>(k) - 1, keys_.end(),
                     std::greater<>());
    keys_.resize(k);
  }
  candidates_.clear();
  for (const uint64_t key : keys_)
    candidates_.push_back({0.0f, ranked_id(key)});
  std::ranges::sort(candidates_, {}, &Candidate::id);
  for (size_t i = 0; i < candidates_.size(); ++i)
    weights_[i] = logits[candidates_[i].id];
  kernels_->exp_sum(weights_, static_cast<int>(candidates_.size()), largest, inverse_temperature, weights_);
  for (size_t i = 0; i < candidates_.size(); ++i)
    candidates_[i].weight = weights_[i];
  std::erase_if(candidates_, [](const Candidate& c) { return c.weight == 0; });
}

// Weighs the whole vocabulary; returns the sum.
double Sampler::weigh_all(const float* logits, float largest, float inverse_temperature) {
  double total = 0;
  for (int begin = 0; begin < vocab_; begin += kWeightBlock) {
    const int count = std::min(kWeightBlock, vocab_ - begin);
    const float part =
        kernels_->exp_sum(logits + begin, count, largest, inverse_temperature, weights_ + begin);
    sums_[static_cast<size_t>(begin / kWeightBlock)] = part;
    total += part;
  }
  return total;
}

// Fills candidates_ with the weights that reach the threshold.
void Sampler::take_from(float threshold) {
  candidates_.clear();
  for_blocks_from(weights_, vocab_, threshold, [&](int begin, int end) {
    size_t count = candidates_.size();
    candidates_.resize(count + kScanBlock);
    for (int i = begin; i < end; ++i) { // without a branch that would often be mispredicted
      candidates_[count] = {weights_[i], i};
      count += weights_[i] >= threshold;
    }
    candidates_.resize(count);
  });
}

int Sampler::draw_from_all(double total, double u) const {
  const double target = u * total;
  double below = 0;
  int begin = 0;
  while (begin + kWeightBlock < vocab_ &&
         below + sums_[static_cast<size_t>(begin / kWeightBlock)] <= target) {
    below += sums_[static_cast<size_t>(begin / kWeightBlock)];
    begin += kWeightBlock;
  }
  // The block's sum was rounded in another order: its last possible token takes what is missing.
  int last = -1;
  for (int i = begin; i < std::min(begin + kWeightBlock, vocab_); ++i) {
    if (weights_[i] > 0)
      last = i;
    below += weights_[i];
    if (below > target)
      return last;
  }
  for (int i = begin - 1; last < 0 && i >= 0; --i)
    if (weights_[i] > 0)
      last = i;
  return std::max(last, 0);
}

// Fills candidates_ with the top_p most probable tokens.  Mostly a few large weights make them up, so
// that thousands of small ones need not be looked at.
void Sampler::take_top_p(double top_p, double total) {
  // Tokens below this share cannot be among them, even all together.
  const auto least = static_cast<float>(0.5 * (1.0 - top_p) * total / vocab_);
  for (const float threshold : {0x1p-6f, 0x1p-12f, least}) {
    take_from(std::max(threshold, least));
    if (keep_top_p(top_p, total))
      return;
  }
}

// Keeps the smallest set of candidates, in order of rank, whose weights reach top_p of the total; all,
// and false, if they do not.  The border is found without sorting them: first among buckets of similar
// weights, then by halving one.
bool Sampler::keep_top_p(double top_p, double total) {
  const int64_t wanted = std::max(int64_t{1}, static_cast<int64_t>(std::ceil(top_p * total * 0x1p40)));
  std::array<int64_t, kBuckets> sums{};
  for (const Candidate& c : candidates_)
    sums[bucket(c.weight)] += units(c.weight);
  int64_t reached = 0;
  size_t border = kBuckets;
  while (border > 0 && reached + sums[border - 1] < wanted)
    reached += sums[--border];
  if (border-- == 0)
    return false;
  keys_.clear();
  for (const Candidate& c : candidates_)
    if (bucket(c.weight) == border)
      keys_.push_back(rank_key(c.weight, c.id));
  const uint64_t last = find_last(wanted - reached);
  std::erase_if(candidates_, [&](const Candidate& c) {
    return bucket(c.weight) < border || (bucket(c.weight) == border && rank_key(c.weight, c.id) < last);
  });
  return true;
}

// The key in keys_ with which their weights, the largest first, reach a sum; all together they do.
uint64_t Sampler::find_last(int64_t wanted) {
  const auto weigh = [](uint64_t key) { return units(ranked_value(key)); };
  auto keys = std::span(keys_);
  while (keys.size() > kSortedKeys) {
    const size_t half = keys.size() / 2;
    std::nth_element(keys.begin(), keys.begin() + static_cast<int64_t>(half), keys.end(), std::greater<>());
    int64_t sum = 0;
    for (const uint64_t key : keys.first(half))
      sum += weigh(key);
    if (sum >= wanted) {
      keys = keys.first(half);
    } else {
      wanted -= sum;
      keys = keys.subspan(half);
    }
  }
  std::ranges::sort(keys, std::greater<>());
  size_t i = 0;
  while (i + 1 < keys.size() && (wanted -= weigh(keys[i])) > 0)
    ++i;
  return keys[i];
}

double Sampler::sum() const {
  double total = 0;
  for (const Candidate& c : candidates_)
    total += c.weight;
  return total;
}

int Sampler::draw(double u) const {
  const double target = u * sum();
  double below = 0;
  for (const Candidate& c : candidates_) {
    below += c.weight;
    if (below > target)
      return c.id;
  }
  return candidates_.back().id;
}

} // namespace samovar
