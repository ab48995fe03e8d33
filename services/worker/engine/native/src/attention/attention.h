// The tasks of attention over the paged KV cache: which queries are computed together, and by how many threads.
#pragma once
#include <type_traits>

#include "segments.h"

namespace ryz {

// Calls work(std::integral_constant<int, rows>) for a number of rows up to ROWS.
template <int ROWS, class Work>
inline void with_rows(int rows, Work work) {
  if (rows == ROWS) {
    work(std::integral_constant<int, ROWS>());
  } else if constexpr (ROWS > 1) {
    with_rows<ROWS - 1>(rows, work);
  }
}

// The rows of an attention op, and what becomes of their scores.
struct AttentionRows {
  const float* qkv;  // [rows, qkv_stride], queries and keys rotated
  int64_t qkv_stride;
  float* out;  // [rows, out_stride]
  int64_t out_stride;
  ScoreRule rules;
  SegmentParts parts;
};

// A span has a task for each KV head and each tile of tokens whose queries fit one task. Tiles begin at multiples of
// their size, which is a power of two, so that all tokens of a tile read the same blocks compressed.
inline int64_t tile_tokens(const AttentionLayer& layer) {
  int64_t tokens = 1;
  while (2 * tokens * (layer.heads / layer.kv_heads) <= MAX_QUERIES) tokens *= 2;
  return tokens;
}

// The place of a token among the positions that it reads, and the first of these; both follow from its position.
inline int64_t place_of(const AttentionLayer& layer, int64_t position) { return place_among_read(layer.pages, position); }
inline int64_t first_seen(const AttentionLayer& layer, int64_t position) {
  return layer.window ? std::max<int64_t>(0, position + 1 - layer.window) : 0;
}

// Whether a span has a task for each KV head and each segment instead. It has a single token, with more than one segment.
inline bool is_split(const AttentionLayer& layer, const ForwardBatch& batch, const Span& span, const SegmentParts& parts) {
  const int64_t last = place_of(layer, span.start) / SEGMENT;
  return batch.num_spans <= MAX_SPLIT_SPANS && span.count == 1 && last < parts.segments &&
         first_seen(layer, span.start) / SEGMENT < last;
}

inline int64_t tasks_of(const AttentionLayer& layer, const ForwardBatch& batch, const Span& span, const SegmentParts& parts) {
  if (is_split(layer, batch, span, parts)) {
    return layer.kv_heads * (place_of(layer, span.start) / SEGMENT - first_seen(layer, span.start) / SEGMENT + 1);
  }
  const int64_t tokens = tile_tokens(layer);
  return layer.kv_heads * ((span.start + span.count - 1) / tokens - span.start / tokens + 1);
}

// Calls use(queries, count) for the queries of a KV head and some tokens of a span, at most MAX_QUERIES at a time.
template <class Use>
inline void each_queries(const AttentionLayer& layer, const Span& span, const AttentionRows& rows, int64_t head, int64_t begin,
                         int64_t end, Use use) {
  const int64_t group = layer.heads / layer.kv_heads;
  Query queries[MAX_QUERIES];
  int count = 0;
  for (int64_t position = begin; position < end; position++) {
    const int64_t row = span.begin + position - span.start, first = first_seen(layer, position);
    for (int64_t g = 0; g < group; g++) {
      const int64_t column = (head * group + g) * layer.dim;
      queries[count++] = {rows.qkv + row * rows.qkv_stride + column, rows.out + row * rows.out_stride + column,
                          place_of(layer, position), first, head * group + g};
      if (count == MAX_QUERIES) {
        use(queries, count);
        count = 0;
      }
    }
  }
  if (count) use(queries, count);
}

// One segment of a span that is split; the last one to finish of a KV head adds them up.
template <class View>
void segment_task(const AttentionLayer& layer, const ForwardBatch& batch, int s, int64_t index, const AttentionRows& rows,
                  const View& view) {
  const Span& span = batch.spans[s];
  const int64_t first = first_seen(layer, span.start) / SEGMENT, end = place_of(layer, span.start) / SEGMENT + 1;
  const int64_t head = index % layer.kv_heads, segment = first + index / layer.kv_heads;
  const auto each = [&](auto use) { each_queries(layer, span, rows, head, span.start, span.start + 1, use); };
  each([&](const Query* queries, int count) {
    with_rows<MAX_QUERIES>(count, [&](auto known) {
      attend_segment<View, known()>(layer, rows.rules, head, view, queries, segment, rows.parts, s);
    });
  });
  int32_t* finished = rows.parts.finished + s * layer.kv_heads + head;
  if (__atomic_add_fetch(finished, 1, __ATOMIC_ACQ_REL) != end - first) return;
  *finished = 0;
  each([&](const Query* queries, int count) {
    for (int r = 0; r < count; r++) add_segments(layer, rows.rules, queries[r], rows.parts, s, first, end);
  });
}

// Task `index` of a span. view_of: the position of a task's first token -> the view of its sequence.
template <class ViewOf>
void attention_task(const AttentionLayer& layer, const ForwardBatch& batch, int s, int64_t index, const AttentionRows& rows,
                    ViewOf view_of) {
  const Span& span = batch.spans[s];
  if (is_split(layer, batch, span, rows.parts)) return segment_task(layer, batch, s, index, rows, view_of(span.start));
  const int64_t tokens = tile_tokens(layer);
  const int64_t head = index % layer.kv_heads, tile = (span.start / tokens + index / layer.kv_heads) * tokens;
  const int64_t begin = std::max<int64_t>(span.start, tile);
  const int64_t end = std::min<int64_t>(span.start + span.count, tile + tokens);
  const auto view = view_of(begin);
  each_queries(layer, span, rows, head, begin, end, [&](const Query* queries, int count) {
    with_rows<MAX_QUERIES>(count, [&](auto known) {
      attend<decltype(view), known()>(layer, rows.rules, head, view, queries);
    });
  });
}

// All blocks in full precision.
template <class T>
void attend_uniform(const AttentionLayer& layer, const ForwardBatch& batch, int s, int64_t index,
                    const AttentionRows& rows) {
  const int32_t* table = (layer.sliding ? batch.sliding_tables : batch.block_tables) + batch.spans[s].table;
  attention_task(layer, batch, s, index, rows, [&](int64_t position) {
    return UniformView<T>{FullPrecision<T>(layer), table, PageList(layer.pages, position / BLOCK)};
  });
}

// Blocks more than `hot_blocks` before the query's own compressed.
template <class T>
void attend_mixed(const AttentionLayer& layer, const ColdBlocks& cold, const ForwardBatch& batch, int s, int64_t index,
                  const AttentionRows& rows) {
  const int32_t* block_table = (layer.sliding ? batch.sliding_tables : batch.block_tables) + batch.spans[s].table;
  const WindowSpan& window = batch.window_spans[s];
  attention_task(layer, batch, s, index, rows, [&](int64_t position) {
    const int64_t border = std::max<int64_t>(window.first, position / BLOCK - cold.hot_blocks);
    const int32_t* window_table = batch.window_tables + window.table - window.first;
    return MixedView<T>{FullPrecision<T>(layer), Compressed(layer, cold), block_table, window_table, border,
                        PageList(layer.pages, position / BLOCK)};
  });
}

}  // namespace ryz
