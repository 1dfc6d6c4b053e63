// Products of bf16 by an instruction that adds two of them: matmul and attention.

// add_bf16_pairs with the same roundings.  pair(i, u) is a vector of pairs, word(i, r) the float whose halves
// are the factors of one word: i = 0, 2, ... of even ones, 1, 3, ... of odd ones.
template <int rows, int units, class Pair, class Word>
SAMOVAR_INLINE void add_bf16_words(Pair pair, Word word, F (&acc)[units][rows]) {
  F even[units][rows], odd[units][rows];
  const auto each = [&](auto body) __attribute__((always_inline)) {
    unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { body(u, r); }); });
  };
  each(SAMOVAR_BODY(auto u, auto r) { even[u][r] = odd[u][r] = zero(); });
  for (int i = 0; i < 16; i += 2) {
    I evens[units], odds[units];
    unroll<units>(SAMOVAR_BODY(auto u) {
      I first = pair(i, u), second = pair(i + 1, u);
      asm("" : "+v"(first), "+v"(second)); // or the compiler loads both twice, and loads are the limit
      evens[u] = even_words(first, second);
      odds[u] = odd_words(first, second);
    });
    each(SAMOVAR_BODY(auto u, auto r) { even[u][r] = bf16_dot(even[u][r], evens[u], word(i, r)); });
    each(SAMOVAR_BODY(auto u, auto r) { odd[u][r] = bf16_dot(odd[u][r], odds[u], word(i + 1, r)); });
  }
  each(SAMOVAR_BODY(auto u, auto r) { acc[u][r] = add(acc[u][r], add(even[u][r], odd[u][r])); });
}

// The words of 32 bf16, or of 32 floats that are to be rounded.
struct alignas(64) Words {
  float word[16];
};

template <class T> inline void bf16_words_tile(const MatmulArgs& a, const T& tile) {
  bf16_blocks(
      a, tile, SAMOVAR_BODY(const auto& x, auto pair, auto& acc) {
        Words words[T::rows];
        unroll<T::rows>(SAMOVAR_BODY(auto r) { istore(words[r].word, words_of(iload(x[r]))); });
        add_bf16_words<T::rows, T::units>(
            pair, SAMOVAR_BODY(int i, auto r) { return words[r].word[i]; }, acc);
      });
}

inline void matmul_bf16_words(const MatmulArgs& a) {
  walk<Form::BF16, kBf16Tiles>(a, SAMOVAR_BODY(const auto& tile) { bf16_words_tile(a, tile); });
}

// page_scores, not yet scaled.
template <int rows, class Fetch>
SAMOVAR_INLINE void word_scores(const Words (*q)[kMaxHeadDim / 32], const uint8_t* keys, int hd,
                                float (*scores)[kScoreStride], int position, Fetch fetch) {
  constexpr int units = kAttendUnits;
  for (int t = 0; t < kPageTokens; t += units * kLanes) {
    F acc[units][rows];
    unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
    for (int d = 0; d < hd; d += 32)
      add_bf16_words<rows, units>(
          SAMOVAR_BODY(int i, auto u) {
            const uint8_t* at = keys + ((d / 2 + i) * kPageTokens + t + u * kLanes) * 4;
            fetch(at);
            return iload(at);
          },
          SAMOVAR_BODY(int i, auto r) { return q[r][d / 32].word[i]; }, acc);
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) { store(scores[r] + position + t + u * kLanes, acc[u][r]); });
    });
  }
}

// page_values.
template <int rows, class Fetch>
SAMOVAR_INLINE void word_values(const Words* weights, const uint8_t* values, int hd, float* o,
                                int64_t o_stride, Fetch fetch) {
  constexpr int units = kAttendUnits;
  for (int d = 0; d < hd; d += units * kLanes) {
    F acc[units][rows];
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = load(o + r * o_stride + d + u * kLanes); });
    });
    add_bf16_words<rows, units>(
        SAMOVAR_BODY(int i, auto u) {
          const uint8_t* at = values + (i * hd + d + u * kLanes) * 4;
          fetch(at);
          return iload(at);
        },
        SAMOVAR_BODY(int i, auto r) { return weights[r].word[i]; }, acc);
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) { store(o + r * o_stride + d + u * kLanes, acc[u][r]); });
    });
  }
}

template <KvType type> void attend_words(const AttendArgs& a) {
  Words q[kMaxAttendRows][kMaxHeadDim / 32];
  ChunkScores t;
  Span spans[kMaxAttendRows];
  const Span seen = visible_spans(a, spans);
  begin_rows(a);
  if (seen.first > seen.last)
    return;
  const int page = seen.first / kPageTokens, end = seen.last / kPageTokens + 1;
  for (int r = 0; r < a.rows; ++r)
    for (int d = 0; d < a.hd; d += 32)
      istore(q[r][d / 32].word,
             words_of(round_to_bf16(load(a.q[r] + d)), round_to_bf16(load(a.q[r] + d + 16))));
  for_keys<type>(
      a, page, end, SAMOVAR_BODY(int p, const uint8_t* keys, auto ahead) {
        for_row_blocks(
            a, spans, p, ahead, SAMOVAR_BODY(auto rows, int row, auto fetch) {
              word_scores<rows.value>(q + row, keys, a.hd, t.s + row, p * kPageTokens, fetch);
            });
      });
  softmax_rows(a, t, spans, page, end);
  for_values<type>(
      a, page, end, SAMOVAR_BODY(int p, const uint8_t* values, auto ahead) {
        Words weights[kMaxAttendRows];
        for (int r = 0; r < a.rows; ++r)
          istore(weights[r].word, words_of(iload(t.p[p][r])));
        for_row_blocks(
            a, spans, p, ahead, SAMOVAR_BODY(auto rows, int row, auto fetch) {
              word_values<rows.value>(weights + row, values, a.hd, a.o + row * a.o_stride, a.o_stride, fetch);
            });
      });
  make_zeros_positive(a);
}

// The lower halves of its factors are 0: a word makes two products all the same.
inline int64_t peak_words(int rounds) {
  return peak_floats(rounds, 2, SAMOVAR_BODY(F sum, F w, float x) { return bf16_dot(sum, as_int(w), x); });
}
