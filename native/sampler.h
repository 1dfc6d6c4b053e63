// From logits to a token.
#pragma once

#include "kernels/kernels.h"

#include <span>
#include <vector>

namespace samovar {

class Arena;

// What one choice of a token depends on, besides the logits: nothing else.
//
// The order: logit bias, mask, repetition, frequency and presence penalties, temperature, top-k, min-p,
// top-p, one draw.
struct Choice {
  int row;                     // of the logits; several choices may have the same
  float temperature = 0;       // 0: the most probable token, the lowest id on a tie
  float top_p = 1;             // the smallest set of the most probable tokens whose sum reaches it
  float min_p = 0;             // of the largest probability
  int top_k = 0;               // 0: off
  float repeat_penalty = 1;    // each distinct token of repeat_tokens: l > 0 ? l / p : l * p
  float frequency_penalty = 0; // each token of reply_tokens: l -= frequency * count + presence
  float presence_penalty = 0;
  std::span<const int32_t> repeat_tokens;
  std::span<const int32_t> reply_tokens;
  std::span<const int32_t> bias_tokens = {}; // l += value, once for each time that a token stands here
  std::span<const float> bias_values = {};   // as many
  const uint32_t* mask = nullptr; // bit i % 32 of word i / 32: token i may be chosen; null: all may
  // The draw is Philox 4x32-10 with key `seed` and counter (position, choice).
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t position = 0;
};

// Throws std::invalid_argument, naming the parameter and `index`, if one is out of range.
void check_choice(const Choice& choice, size_t index, int rows, int vocab);

// One worker's sampler; its room is reserved once.
class Sampler {
public:
  Sampler(const Kernels& kernels, int vocab, Arena& arena);

  // Picks a token, or -1 if the mask allows none; the same one on every instruction set and thread.
  // Does not sort the vocabulary, and leaves the logits as they are.
  int pick(const float* logits, const Choice& choice) noexcept;

private:
  struct Candidate {
    float weight; // exp of the scaled logit, relative to the largest
    int32_t id;
  };

  const float* adjusted(const float* logits, const Choice& choice);
  void penalize_repeated(const Choice& choice);
  void penalize_reply(const Choice& choice);
  void forbid(const uint32_t* mask);
  int first_allowed(const uint32_t* mask) const;
  void take_top_k(const float* logits, int top_k, float largest, float inverse_temperature);
  double weigh_all(const float* logits, float largest, float inverse_temperature);
  void take_from(float threshold);
  int draw_from_all(double total, double u) const;
  void take_top_p(double top_p, double total);
  bool keep_top_p(double top_p, double total);
  uint64_t find_last(int64_t wanted);
  double sum() const;
  int draw(double u) const;

  const Kernels* kernels_;
  int vocab_;
  float* logits_;                     // after bias, penalties and mask
  float* weights_;                    // of the whole vocabulary, or of the candidates
  int32_t* counts_;                   // of tokens; zero between two calls
  std::vector<float> sums_;           // of blocks of weights
  std::vector<float> maxima_;         // of blocks of logits
  std::vector<Candidate> candidates_; // in order of id
  std::vector<uint64_t> keys_;
};

} // namespace samovar
