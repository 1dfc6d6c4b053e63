// Attention of some query rows over one chunk of context.
//
// Scores of all pages first, then the softmax of each row, then the sum of values.  Rows go in blocks, so
// that each load of K and V serves several; a block skips pages that none of its rows sees.

constexpr int kMaxAttendRows = 16;
constexpr int kMaxHeadDim = 256;

struct Span { // positions relative to the chunk, both ends included; empty if last < first
  int first;
  int last;
  SAMOVAR_INLINE bool meets_page(int page) const {
    return first < (page + 1) * kPageTokens && last >= page * kPageTokens && first <= last;
  }
};

// What each row sees of the chunk; returns what any row sees.
SAMOVAR_INLINE Span visible_spans(const AttendArgs& a, Span* spans) {
  const int tokens = a.num_pages * kPageTokens;
  Span seen{tokens, -1};
  for (int r = 0; r < a.rows; ++r) {
    const int first = a.first[r] - a.base, last = a.last[r] - a.base;
    spans[r] = {first > 0 ? first : 0, last < tokens ? last : tokens - 1};
    if (spans[r].first > spans[r].last) {
      spans[r] = {tokens, -1};
      continue;
    }
    if (spans[r].first < seen.first)
      seen.first = spans[r].first;
    if (spans[r].last > seen.last)
      seen.last = spans[r].last;
  }
  return seen;
}

// What to call for while a half of a page is read: with each vector, the same place of two other halves.
// Pages lie apart, so that the processor foresees none, and memory would be idle while values are added.
struct Ahead {
  const uint8_t* from;
  const uint8_t* soon;  // the half that is read next
  const uint8_t* later; // one that is read when all of this kind are done
  SAMOVAR_INLINE void operator()(const uint8_t* at) const {
    __builtin_prefetch(soon + (at - from), 0, 3);
    __builtin_prefetch(later + (at - from), 0, 2);
  }
  SAMOVAR_INLINE void call_for(int64_t bytes) const {
    for (int64_t i = 0; i < bytes; i += 64)
      (*this)(from + i);
  }
};

// Whether vector `unit` of a tile begins a line of memory.
constexpr bool begins_line(int unit) {
  return unit * kLanes % 16 == 0;
}

// s[r][t] = (q_r . k_t) * scale for the 32 tokens of a page.
template <KvType type, int rows, class Fetch>
SAMOVAR_INLINE void page_scores(const float (*q)[kMaxHeadDim], const uint8_t* keys, int hd, float factor,
                                float (*scores)[kContextChunk], int position, Fetch fetch) {
  constexpr int units = kAttendUnits;
  for (int t = 0; t < kPageTokens; t += units * kLanes) {
    F acc[units][rows];
    unroll<units>(SAMOVAR_BODY(auto u) { unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = zero(); }); });
    if constexpr (type == KvType::F32) {
      for (int d = 0; d < hd; ++d)
        unroll<units>(SAMOVAR_BODY(auto u) {
          const uint8_t* at = keys + (d * kPageTokens + t + u * kLanes) * 4;
          if constexpr (begins_line(u.value))
            fetch(at);
          const F k = load(reinterpret_cast<const float*>(at));
          unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = fma(set1(q[r][d]), k, acc[u][r]); });
        });
    } else {
      for (int d = 0; d < hd; d += 32)
        add_bf16_pairs<rows, units>(
            SAMOVAR_BODY(int i, auto u) {
              const uint8_t* at = keys + ((d / 2 + i) * kPageTokens + t + u * kLanes) * 4;
              if constexpr (begins_line(u.value))
                fetch(at);
              return iload(at);
            },
            SAMOVAR_BODY(auto odd, int i, auto r) { return q[r][d + 2 * i + odd]; }, acc);
    }
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) {
        store(scores[r] + position + t + u * kLanes, mul(acc[u][r], set1(factor)));
      });
    });
  }
}

// o[r][d] += sum over the page's tokens of p[r][t] * v[t][d].
template <KvType type, int rows, class Fetch>
SAMOVAR_INLINE void page_values(const float (*p)[kContextChunk], int position, const uint8_t* values, int hd,
                                float* o, int64_t o_stride, Fetch fetch) {
  constexpr int units = kAttendUnits;
  for (int d = 0; d < hd; d += units * kLanes) {
    F acc[units][rows];
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = load(o + r * o_stride + d + u * kLanes); });
    });
    if constexpr (type == KvType::F32) {
      for (int t = 0; t < kPageTokens; ++t)
        unroll<units>(SAMOVAR_BODY(auto u) {
          const uint8_t* at = values + (t * hd + d + u * kLanes) * 4;
          if constexpr (begins_line(u.value))
            fetch(at);
          const F v = load(reinterpret_cast<const float*>(at));
          unroll<rows>(SAMOVAR_BODY(auto r) { acc[u][r] = fma(set1(p[r][position + t]), v, acc[u][r]); });
        });
    } else {
      add_bf16_pairs<rows, units>(
          SAMOVAR_BODY(int i, auto u) {
            const uint8_t* at = values + (i * hd + d + u * kLanes) * 4;
            if constexpr (begins_line(u.value))
              fetch(at);
            return iload(at);
          },
          SAMOVAR_BODY(auto odd, int i, auto r) { return p[r][position + 2 * i + odd]; }, acc);
    }
    unroll<units>(SAMOVAR_BODY(auto u) {
      unroll<rows>(SAMOVAR_BODY(auto r) { store(o + r * o_stride + d + u * kLanes, acc[u][r]); });
    });
  }
}

// Turns the scores of pages [page, end) into weights, zero outside `seen`; returns their sum.
template <KvType type> SAMOVAR_INLINE float softmax(float* s, int page, int end, Span seen, float& most) {
  const int begin = page * kPageTokens, count = (end - page) * kPageTokens;
  for (int p = begin; p < begin + count && p < seen.first; ++p)
    s[p] = -kInfinity;
  for (int p = seen.last + 1 > begin ? seen.last + 1 : begin; p < begin + count; ++p)
    s[p] = -kInfinity;
  Lanes16 lanes = lanes16(-kInfinity);
  for_lanes16(lanes, count, SAMOVAR_BODY(F & lane, int i, int) { lane = max(load(s + begin + i), lane); });
  most = max16(lanes);
  lanes = lanes16(0.0f);
  const F shift = set1(most);
  constexpr int vectors = kParts > 1 ? kParts : 2; // all virtual lanes once or twice, and a part of a page
  for (int i = begin; i < begin + count; i += vectors * kLanes) {
    F e[vectors];
    unroll<vectors>(SAMOVAR_BODY(auto v) { e[v] = sub(load(s + i + v * kLanes), shift); });
    exp(e);
    unroll<vectors>(SAMOVAR_BODY(auto v) {
      if constexpr (type != KvType::F32)
        e[v] = round_to_bf16(e[v]);
      store(s + i + v * kLanes, e[v]);
      F& lane = lanes.part[v % kParts];
      lane = add(lane, e[v]);
    });
  }
  return sum16(lanes);
}

// Rows that have seen nothing yet.
SAMOVAR_INLINE void begin_rows(const AttendArgs& a) {
  for (int r = 0; r < a.rows; ++r) {
    a.m[r] = -kInfinity;
    a.l[r] = 0;
    for (int d = 0; d < a.hd; d += kLanes)
      store(a.o + r * a.o_stride + d, zero());
  }
}

// A call for lines of memory that does nothing.
struct FetchNothing {
  SAMOVAR_INLINE void operator()(const uint8_t*) const {}
};

// body(Index<rows>, row, fetch) for blocks of rows that see page p; the first of them fetches, unless pages
// are cached: calls cost a tenth of the work of 16 rows.
template <class Fetch, class Body>
SAMOVAR_INLINE void for_row_blocks(const AttendArgs& a, const Span* spans, int p, Fetch fetch, Body body) {
  bool fetched = a.cached || __is_same(Fetch, FetchNothing);
  const auto block = SAMOVAR_BODY(auto rows, int row) {
    bool any = false;
    for (int r = row; r < row + rows; ++r)
      any |= spans[r].meets_page(p);
    if (!any)
      return;
    if (!fetched)
      body(rows, row, fetch);
    else
      body(rows, row, FetchNothing{});
    fetched = true;
  };
  int row = 0;
  for (; row + kAttendRows <= a.rows; row += kAttendRows)
    block(Index<kAttendRows>{}, row);
  rows_left<kAttendRows - 1>(a.rows - row, SAMOVAR_BODY(auto rows) { block(rows, row); });
}

// Whether an unseen page was added or skipped shows in the sign of a zero only: it becomes positive.
SAMOVAR_INLINE void make_zeros_positive(const AttendArgs& a) {
  for (int r = 0; r < a.rows; ++r)
    for (int d = 0; d < a.hd; d += kLanes) {
      float* o = a.o + r * a.o_stride + d;
      store(o, add(load(o), zero()));
    }
}

// body(page, its keys as BF16 or F32, a function to call with each line read) for the pages [page, end).
template <KvType type, class Body>
SAMOVAR_INLINE void for_keys(const AttendArgs& a, int page, int end, Body body) {
  alignas(64) uint8_t widened[type == KvType::Q8 ? kv_half_bytes(KvType::BF16, kMaxHeadDim) : 64];
  const int64_t half = kv_half_bytes(type, a.hd);
  for (int p = page; p < end; ++p) {
    const uint8_t* keys = a.pages[p];
    const Ahead ahead{keys, a.pages[p + 1 < end ? p + 1 : p], keys + half};
    if constexpr (type == KvType::Q8) {
      if (!a.cached)
        ahead.call_for(half);
      widen_keys(keys, a.hd, widened);
      body(p, widened, FetchNothing{});
    } else
      body(p, keys, ahead);
  }
}

// The same for values.
template <KvType type, class Body>
SAMOVAR_INLINE void for_values(const AttendArgs& a, int page, int end, Body body) {
  alignas(64) uint8_t widened[type == KvType::Q8 ? kv_half_bytes(KvType::BF16, kMaxHeadDim) : 64];
  const int64_t half = kv_half_bytes(type, a.hd);
  for (int p = page; p < end; ++p) {
    const uint8_t* values = a.pages[p] + half;
    const Ahead ahead{values, p + 1 < end ? a.pages[p + 1] + half : values,
                      p - page < a.num_next ? a.next[p - page] : values};
    if constexpr (type == KvType::Q8) {
      if (!a.cached)
        ahead.call_for(half);
      widen_values(values, a.hd, widened);
      body(p, widened, FetchNothing{});
    } else
      body(p, values, ahead);
  }
}

template <KvType type> void attend(const AttendArgs& a) {
  alignas(64) float q[kMaxAttendRows][kMaxHeadDim];
  alignas(64) float scores[kMaxAttendRows][kContextChunk];
  Span spans[kMaxAttendRows];
  const Span seen = visible_spans(a, spans);
  begin_rows(a);
  if (seen.first > seen.last)
    return;
  const int page = seen.first / kPageTokens, end = seen.last / kPageTokens + 1;
  for (int r = 0; r < a.rows; ++r)
    for (int d = 0; d < a.hd; d += kLanes) {
      const F x = load(a.q[r] + d);
      store(q[r] + d, type == KvType::F32 ? x : round_to_bf16(x));
    }
  for_keys<type>(
      a, page, end, SAMOVAR_BODY(int p, const uint8_t* keys, auto ahead) {
        for_row_blocks(
            a, spans, p, ahead, SAMOVAR_BODY(auto rows, int row, auto fetch) {
              page_scores<type, rows.value>(q + row, keys, a.hd, a.scale, scores + row, p * kPageTokens,
                                            fetch);
            });
      });
  for (int r = 0; r < a.rows; ++r)
    if (spans[r].first <= spans[r].last)
      a.l[r] = softmax<type>(scores[r], page, end, spans[r], a.m[r]);
    else
      __builtin_memset(scores[r] + page * kPageTokens, 0, (end - page) * kPageTokens * sizeof(float));
  for_values<type>(
      a, page, end, SAMOVAR_BODY(int p, const uint8_t* values, auto ahead) {
        for_row_blocks(
            a, spans, p, ahead, SAMOVAR_BODY(auto rows, int row, auto fetch) {
              page_values<type, rows.value>(scores + row, p * kPageTokens, values, a.hd,
                                            a.o + row * a.o_stride, a.o_stride, fetch);
            });
      });
  make_zeros_positive(a);
}

inline void attend_merge(float* a_m, float* a_l, float* a_o, const float* b_m, const float* b_l,
                         const float* b_o, int hd) {
  if (*b_m == -kInfinity)
    return;
  if (*a_m == -kInfinity) {
    *a_m = *b_m;
    *a_l = *b_l;
    __builtin_memcpy(a_o, b_o, hd * sizeof(float));
    return;
  }
  const float m = *a_m > *b_m ? *a_m : *b_m;
  const F wa = exp(set1(*a_m - m)), wb = exp(set1(*b_m - m));
  float l[kLanes];
  store(l, fma(set1(*b_l), wb, mul(set1(*a_l), wa)));
  *a_m = m;
  *a_l = l[0];
  for_vectors(
      hd, SAMOVAR_BODY(int i, int count) {
        store_some(a_o + i, fma(load_some(b_o + i, count), wb, mul(load_some(a_o + i, count), wa)), count);
      });
}
