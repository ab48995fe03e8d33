// Attention over the paged KV cache, without copying it: scores and sums are both plain multiply-adds of registers.
// Softmax is computed as it goes (Milakov and Gimelshein, 2018; as in FlashAttention), in steps of CHUNK positions
// counted from the start of the sequence: a token's result is the same alone, in a batch, and in any prefill chunk.
// So that this holds with compressed blocks, too, a block is read compressed or not by its distance from the query.
#pragma once
#include <cmath>
#include <limits>

#include "rotate.h"
#include "scores.h"

namespace ryz {

constexpr int CHUNK = 16;       // blocks per softmax step
constexpr int MAX_QUERIES = 8;  // query rows of one task

// One row of a task: a query and its running softmax.
struct Query {
  const float* q;    // [dim]
  float* out;        // [dim]
  int64_t position;  // it sees first..position
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
  constexpr int TOGETHER = ROWS <= 2 ? 4 : ROWS <= 4 ? 2 : 1;
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

template <class View, int ROWS>
void attend(AttentionLayer layer, const ScoreRule& rules, int64_t head, const View& view, const Query* queries) {
  alignas(64) float scores[ROWS][CHUNK * BLOCK];
  alignas(64) float sums[ROWS][MAX_DIM];  // the running results, [width]
  float q[MAX_DIM][MAX_QUERIES];
  const float scale = rules.scale;
  const bool changed = rules.softcap > 0 || rules.slopes;
  float peak[ROWS], total[ROWS], factor[ROWS];
  float* out[ROWS];
  int64_t first = queries[0].first, last = 0;
  for (int r = 0; r < ROWS; r++) {
    // a sink is like a score whose value is zeros
    peak[r] = rules.sinks ? rules.sinks[queries[r].head] : -std::numeric_limits<float>::infinity();
    total[r] = rules.sinks ? 1 : 0;
    out[r] = sums[r];
    std::memset(sums[r], 0, layer.width * sizeof(float));
    for (int64_t d = 0; d < layer.dim; d++) q[d][r] = queries[r].q[d] * scale;
    first = std::min(first, queries[r].first);
    last = std::max(last, queries[r].position);
  }
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
      const int to = (int)std::min<int64_t>(STEP, queries[r].position + 1 - base);
      for (int b = skip; changed && b < count; b++) {
        float* some = scores[r] + b * BLOCK;
        store(some, apply_rules(rules, load(some), queries[r].head, base + b * BLOCK - queries[r].position));
      }
      F top = set1(-std::numeric_limits<float>::infinity());
      for (int b = skip; b < count; b++) {
        const F s = keep(load(scores[r] + b * BLOCK), b * BLOCK, from, to);
        store(scores[r] + b * BLOCK, s);
        top = max(top, s);
      }
      const float higher = std::max(peak[r], largest(top));
      if (higher == -std::numeric_limits<float>::infinity()) {  // this query sees nothing of this step
        factor[r] = 1;
        for (int b = skip; b < count; b++) store(scores[r] + b * BLOCK, zero());
        continue;
      }
      factor[r] = std::exp(peak[r] - higher);
      peak[r] = higher;
      F mass = zero();
      for (int b = skip; b < count; b++) {
        const F p = exp(load(scores[r] + b * BLOCK) - set1(higher));
        store(scores[r] + b * BLOCK, p);
        mass = mass + p;
      }
      total[r] = total[r] * factor[r] + sum(mass);
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
  for (int r = 0; r < ROWS; r++) {
    const float inverse = 1.0f / total[r];
    for (int64_t d = 0; d < layer.dim; d++) queries[r].out[d] = sums[r][d] * inverse;
  }
}

template <int ROWS, class View>
inline void attend_of(int rows, const AttentionLayer& layer, const ScoreRule& rules, int64_t head, const View& view,
                      const Query* queries) {
  if (rows == ROWS) {
    attend<View, ROWS>(layer, rules, head, view, queries);
  } else if constexpr (ROWS > 1) {
    attend_of<ROWS - 1>(rows, layer, rules, head, view, queries);
  }
}

// A span has a task for each KV head and each tile of tokens whose queries fit one task. Tiles begin at multiples of
// their size, which is a power of two, so that all tokens of a tile read the same blocks compressed.
inline int64_t tile_tokens(const AttentionLayer& layer) {
  int64_t tokens = 1;
  while (2 * tokens * (layer.heads / layer.kv_heads) <= MAX_QUERIES) tokens *= 2;
  return tokens;
}
inline int64_t tasks_of(const AttentionLayer& layer, const Span& span) {
  const int64_t tokens = tile_tokens(layer);
  return layer.kv_heads * ((span.start + span.count - 1) / tokens - span.start / tokens + 1);
}

// The rows of an attention op, and what becomes of their scores.
struct AttentionRows {
  const float* qkv;  // [rows, qkv_stride], queries and keys rotated
  int64_t qkv_stride;
  float* out;  // [rows, out_stride]
  int64_t out_stride;
  ScoreRule rules;
};

// Task `index` of a span. view_of: the position of a task's first token -> the view of its sequence.
template <class ViewOf>
void attention_task(const AttentionLayer& layer, const Span& span, int64_t index, const AttentionRows& rows, ViewOf view_of) {
  const int64_t group = layer.heads / layer.kv_heads, tokens = tile_tokens(layer);
  const int64_t head = index % layer.kv_heads, tile = (span.start / tokens + index / layer.kv_heads) * tokens;
  const int64_t begin = std::max<int64_t>(span.start, tile);
  const int64_t end = std::min<int64_t>(span.start + span.count, tile + tokens);
  const auto view = view_of(begin);
  Query queries[MAX_QUERIES];
  int count = 0;
  for (int64_t position = begin; position < end; position++) {
    const int64_t row = span.begin + position - span.start;
    const int64_t first = layer.window ? std::max<int64_t>(0, position + 1 - layer.window) : 0;
    for (int64_t g = 0; g < group; g++) {
      const int64_t column = (head * group + g) * layer.dim;
      queries[count++] = {rows.qkv + row * rows.qkv_stride + column, rows.out + row * rows.out_stride + column, position,
                          first, head * group + g};
      if (count == MAX_QUERIES) {
        attend_of<MAX_QUERIES>(count, layer, rows.rules, head, view, queries);
        count = 0;
      }
    }
  }
  if (count) attend_of<MAX_QUERIES>(count, layer, rows.rules, head, view, queries);
}

// All blocks in full precision.
template <class T>
void attend_uniform(const AttentionLayer& layer, const ForwardBatch& batch, int s, int64_t index,
                    const AttentionRows& rows) {
  const Span& span = batch.spans[s];
  const UniformView<T> view = {FullPrecision<T>(layer), (layer.sliding ? batch.sliding_tables : batch.block_tables) + span.table};
  attention_task(layer, span, index, rows, [&](int64_t) { return view; });
}

// Blocks more than `hot_blocks` before the query's own compressed.
template <class T>
void attend_mixed(const AttentionLayer& layer, const ColdBlocks& cold, const ForwardBatch& batch, int s, int64_t index,
                  const AttentionRows& rows) {
  const Span& span = batch.spans[s];
  const int32_t* block_table = (layer.sliding ? batch.sliding_tables : batch.block_tables) + span.table;
  const WindowSpan& window = batch.window_spans[s];
  attention_task(layer, span, index, rows, [&](int64_t position) {
    const int64_t border = std::max<int64_t>(window.first, position / BLOCK - cold.hot_blocks);
    const int32_t* window_table = batch.window_tables + window.table - window.first;
    return MixedView<T>{FullPrecision<T>(layer), Compressed(layer, cold), block_table, window_table, border};
  });
}

}  // namespace ryz
