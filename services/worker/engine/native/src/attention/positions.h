// The softmax of some queries over some positions of the paged KV cache, without copying it: scores and sums are both
// plain multiply-adds of registers.
// Softmax is computed as it goes (Milakov and Gimelshein, 2018; as in FlashAttention), in steps of CHUNK positions
// counted from the start of the sequence: a token's result is the same alone, in a batch, and in any prefill chunk.
// So that this holds with compressed blocks, too, a block is read compressed or not by its distance from the query.
#pragma once
#include <cmath>
#include <limits>

#include "rotate.h"
#include "scores.h"
#include "views.h"

namespace ryz {

constexpr int MAX_QUERIES = RYZ_AVX512 ? 12 : 8;  // query rows of one task; their sums stay in registers

// One row of a task: a query and its running softmax.
struct Query {
  const float* q;    // [dim]
  float* out;        // [dim]
  int64_t position;  // it sees first..position, counted among the positions that are read
  int64_t first;
  int64_t head;      // of its rank
};

// Blocks are short runs of memory far from each other, too short for the processor's own prefetcher: while keys are
// read, the values of the same blocks are prefetched, and with these the keys of the next head.
inline void prefetch_kv(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

template <int ROWS, int BLOCKS, class C>
inline void score_blocks(const AttentionLayer& layer, const C& cache, int64_t head, const int32_t* blocks, const float (*q)[MAX_QUERIES],
                         float (*scores)[CHUNK * BLOCK]) {
  F acc[ROWS][BLOCKS];
  decltype(cache.key(0, 0)) keys[BLOCKS], values[BLOCKS];
  for (int b = 0; b < BLOCKS; b++) {
    keys[b] = cache.key(blocks[b], head);
    values[b] = cache.value(blocks[b], head);
  }
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < BLOCKS; b++) acc[r][b] = zero();
  for (int64_t d = 0; d < layer.dim; d++) {
    F k[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
      k[b] = load_kv(keys[b] + d * BLOCK);
      prefetch_kv(values[b] + d * BLOCK);
    }
    for (int r = 0; r < ROWS; r++) {
      const F x = set1(q[d][r]);
      for (int b = 0; b < BLOCKS; b++) acc[r][b] = fma(x, k[b], acc[r][b]);
    }
  }
  for (int b = 0; b < BLOCKS; b++) {
    if constexpr (C::SCALED) {
      const F scale = cache.key_scale(blocks[b], head);
      for (int r = 0; r < ROWS; r++) acc[r][b] = acc[r][b] * scale;
    }
    for (int r = 0; r < ROWS; r++) store(scores[r] + b * BLOCK, acc[r][b]);
  }
}

// scores of ROWS queries against `count` blocks
template <int ROWS, class C>
inline void score(const AttentionLayer& layer, const C& cache, int64_t head, const int32_t* blocks, int count, const float (*q)[MAX_QUERIES],
                  float (*scores)[CHUNK * BLOCK]) {
  // so many that their sums fill the registers: each is a chain of multiply-adds that waits for the one before
  constexpr int TOGETHER = RYZ_AVX512 ? (ROWS == 1 ? 8 : ROWS <= 3 ? 4 : 2) : ROWS <= 2 ? 4 : ROWS <= 4 ? 2 : 1;
  int b = 0;
  float(*to)[CHUNK * BLOCK] = scores;
  for (; b + TOGETHER <= count; b += TOGETHER) {
    score_blocks<ROWS, TOGETHER>(layer, cache, head, blocks + b, q, (float(*)[CHUNK * BLOCK])(to[0] + b * BLOCK));
  }
  for (; b < count; b++) {
    score_blocks<ROWS, 1>(layer, cache, head, blocks + b, q, (float(*)[CHUNK * BLOCK])(to[0] + b * BLOCK));
  }
}

// out[r] = out[r] * factor[r] + sum over positions [from, to) of weight * value, for WIDE registers of the head's width
template <int ROWS, int WIDE, class C>
inline void mix(const C& cache, int64_t head, const int32_t* blocks, int from, int to, int64_t column,
                const float (*weights)[CHUNK * BLOCK], const float* factor, float* const* out) {
  F acc[ROWS][WIDE];
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < WIDE; c++) acc[r][c] = load(out[r] + column + c * LANES) * set1(factor[r]);
  for (int t = from; t < to; t++) {
    const auto* v = cache.value(blocks[t / BLOCK], head) + t % BLOCK * cache.width + column;
    const auto* next = cache.key(blocks[t / BLOCK], (head + 1) % cache.kv_heads) + t % BLOCK * cache.width + column;
    F value[WIDE];
    for (int c = 0; c < WIDE; c++) {
      value[c] = load_kv(v + c * LANES);
      prefetch_kv(next + c * LANES);
    }
    for (int r = 0; r < ROWS; r++) {
      const F w = set1(weights[r][t]);
      for (int c = 0; c < WIDE; c++) acc[r][c] = fma(w, value[c], acc[r][c]);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < WIDE; c++) store(out[r] + column + c * LANES, acc[r][c]);
}

// A query's softmax over some positions; the weighted sum of their values lies beside it.
struct Softmax {
  float peak = -std::numeric_limits<float>::infinity(), total = 0;  // of the scores; of the weights, in units of exp(peak)
};

// Adds the softmax over other positions to `to`; both sums are [width].
inline void add_softmax(int64_t width, Softmax& to, float* sums, const Softmax& from, const float* from_sums) {
  const float peak = std::max(to.peak, from.peak);
  if (from.peak == -std::numeric_limits<float>::infinity()) return;  // it saw nothing
  const float kept = std::exp(to.peak - peak), added = std::exp(from.peak - peak);
  for (int64_t c = 0; c < width; c += LANES) {
    store(sums + c, fma(load(from_sums + c), set1(added), load(sums + c) * set1(kept)));
  }
  to = {peak, to.total * kept + from.total * added};
}

// The queries' softmax over the positions from `begin` to `end`, both multiples of a step; sums: [ROWS][MAX_DIM].
template <class View, int ROWS>
void attend_positions(AttentionLayer layer, const ScoreRule& rules, int64_t head, const View& view, const Query* queries,
                      const float (*q)[MAX_QUERIES], int64_t begin, int64_t end, Softmax* results, float (*sums)[MAX_DIM]) {
  alignas(64) float scores[ROWS][CHUNK * BLOCK];
  const bool changed = rules.softcap > 0 || rules.slopes;
  float factor[ROWS];
  float* out[ROWS];
  int64_t first = queries[0].first, last = 0;
  for (int r = 0; r < ROWS; r++) {
    results[r] = {};
    out[r] = sums[r];
    std::memset(sums[r], 0, layer.width * sizeof(float));
    first = std::min(first, queries[r].first);
    last = std::max(last, queries[r].position);
  }
  first = std::max(first, begin);
  last = std::min(last, end - 1);
  constexpr int64_t STEP = CHUNK * BLOCK;
  for (int64_t base = first / STEP * STEP; base <= last; base += STEP) {
    const int count = (int)std::min<int64_t>(CHUNK, (last - base) / BLOCK + 1);
    // blocks before the window may have been freed: they are neither read nor looked up
    const int skip = (int)(std::max<int64_t>(0, first - base) / BLOCK);
    const int64_t block = base / BLOCK;
    view.runs(block + skip, block + count, [&](const auto& cache, const int32_t* table, int64_t from, int64_t to) {
      auto* run = (float(*)[CHUNK * BLOCK])(scores[0] + (from - block) * BLOCK);
      score<ROWS>(layer, cache, head, table + from, (int)(to - from), q, run);
    });
    for (int r = 0; r < ROWS; r++) {
      const int from = (int)std::max<int64_t>(0, queries[r].first - base);
      const int to = (int)std::min<int64_t>(STEP, std::min(last, queries[r].position) + 1 - base);
      for (int b = skip; changed && b < count; b++) {
        float* some = scores[r] + b * BLOCK;
        const int64_t own = view.pages.position(queries[r].position / BLOCK) + queries[r].position % BLOCK;
        store(some, apply_rules(rules, load(some), queries[r].head, view.pages.position(block + b) - own));
      }
      F top = set1(-std::numeric_limits<float>::infinity());
      for (int b = skip; b < count; b++) {
        const F s = keep(load(scores[r] + b * BLOCK), b * BLOCK, from, to);
        store(scores[r] + b * BLOCK, s);
        top = max(top, s);
      }
      const float higher = std::max(results[r].peak, largest(top));
      if (higher == -std::numeric_limits<float>::infinity()) {  // this query sees nothing of this step
        factor[r] = 1;
        for (int b = skip; b < count; b++) store(scores[r] + b * BLOCK, zero());
        continue;
      }
      factor[r] = std::exp(results[r].peak - higher);
      results[r].peak = higher;
      F mass = zero();
      for (int b = skip; b < count; b++) {
        const F p = exp(load(scores[r] + b * BLOCK) - set1(higher));
        store(scores[r] + b * BLOCK, p);
        mass = mass + p;
      }
      results[r].total = results[r].total * factor[r] + sum(mass);
    }
    const int seen = (int)std::max<int64_t>(0, first - base), last_seen = (int)std::min<int64_t>(STEP, last + 1 - base);
    view.runs(block + skip, block + count, [&](const auto& cache, const int32_t* table, int64_t from, int64_t to) {
      if constexpr (std::decay_t<decltype(cache)>::SCALED) {
        for (int64_t b = from; b < to; b++) {
          const F scale = cache.value_scale(table[b], head);
          for (int r = 0; r < ROWS; r++) {
            float* weights = scores[r] + (b - block) * BLOCK;
            store(weights, load(weights) * scale);
          }
        }
      }
      const int32_t* blocks = table + block;
      const int begin = std::max(seen, (int)(from - block) * BLOCK), end = std::min(last_seen, (int)(to - block) * BLOCK);
      int64_t column = 0;
      for (; column + 4 * LANES <= layer.width && ROWS <= 4; column += 4 * LANES) {
        mix<ROWS, 4>(cache, head, blocks, begin, end, column, scores, factor, out);
      }
      for (; column + 2 * LANES <= layer.width; column += 2 * LANES) {
        mix<ROWS, 2>(cache, head, blocks, begin, end, column, scores, factor, out);
      }
      for (; column < layer.width; column += LANES) {
        mix<ROWS, 1>(cache, head, blocks, begin, end, column, scores, factor, out);
      }
      for (int r = 0; r < ROWS; r++) factor[r] = 1;  // for the next run
    });
  }
}

}  // namespace ryz
