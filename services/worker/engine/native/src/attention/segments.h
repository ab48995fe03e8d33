// Attention of queries to all positions that they see, segment by segment. Each segment has a softmax of its own, and
// these are added up in their order (as in Flash-Decoding, Dao et al., 2023). So the result does not depend on whether one
// thread computes all segments of a long context or several do.
#pragma once
#include "positions.h"

namespace ryz {

constexpr int64_t SEGMENT = 1024;   // positions; a multiple of a softmax step
constexpr int MAX_SPLIT_SPANS = 4;  // a pass over more has tasks enough without splitting them

// the queries, scaled, in the order in which scores are computed
inline void scale_queries(const AttentionLayer& layer, float scale, const Query* queries, int count, float (*q)[MAX_QUERIES]) {
  for (int r = 0; r < count; r++) {
    for (int64_t d = 0; d < layer.dim; d++) q[d][r] = queries[r].q[d] * scale;
  }
}

// What a query's softmax begins with: a sink is like a score whose value is zeros.
inline Softmax first_softmax(const ScoreRule& rules, const Query& query) {
  return rules.sinks ? Softmax{rules.sinks[query.head], 1} : Softmax{};
}

inline void finish_query(const AttentionLayer& layer, const Query& query, const Softmax& softmax, const float* sums) {
  const float inverse = 1.0f / softmax.total;
  for (int64_t d = 0; d < layer.dim; d++) query.out[d] = sums[d] * inverse;
}

// all segments, one after the other
template <class View, int ROWS>
void attend(const AttentionLayer& layer, const ScoreRule& rules, int64_t head, const View& view, const Query* queries) {
  alignas(64) float sums[ROWS][MAX_DIM], part[ROWS][MAX_DIM];
  float q[MAX_DIM][MAX_QUERIES];
  Softmax softmax[ROWS], added[ROWS];
  int64_t first = queries[0].first, last = 0;
  for (int r = 0; r < ROWS; r++) {
    softmax[r] = first_softmax(rules, queries[r]);
    std::memset(sums[r], 0, layer.width * sizeof(float));
    first = std::min(first, queries[r].first);
    last = std::max(last, queries[r].position);
  }
  scale_queries(layer, rules.scale, queries, ROWS, q);
  for (int64_t begin = first / SEGMENT * SEGMENT; begin <= last; begin += SEGMENT) {
    attend_positions<View, ROWS>(layer, rules, head, view, queries, q, begin, begin + SEGMENT, added, part);
    for (int r = 0; r < ROWS; r++) add_softmax(layer.width, softmax[r], sums[r], added[r], part[r]);
  }
  for (int r = 0; r < ROWS; r++) finish_query(layer, queries[r], softmax[r], sums[r]);
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

// Where the tasks of a token leave the softmax of each segment; the task that finishes last adds them up.
struct SegmentParts {
  float* parts;       // [MAX_SPLIT_SPANS][heads][segments][LANES + width]: peak, total, and behind LANES floats the sums
  int32_t* finished;  // [MAX_SPLIT_SPANS][kv_heads], zeros between ops
  int64_t segments;   // how many there is room for; 0: tasks are not split

  int64_t stride(const AttentionLayer& layer) const { return LANES + layer.width; }
  float* of(const AttentionLayer& layer, int64_t span, int64_t head) const {
    return parts + (span * layer.heads + head) * segments * stride(layer);
  }
};

// One segment; the softmax of each query goes to its place in `parts`.
template <class View, int ROWS>
void attend_segment(const AttentionLayer& layer, const ScoreRule& rules, int64_t head, const View& view, const Query* queries,
                    int64_t segment, const SegmentParts& parts, int64_t span) {
  alignas(64) float sums[ROWS][MAX_DIM];
  float q[MAX_DIM][MAX_QUERIES];
  Softmax softmax[ROWS];
  scale_queries(layer, rules.scale, queries, ROWS, q);
  attend_positions<View, ROWS>(layer, rules, head, view, queries, q, segment * SEGMENT, (segment + 1) * SEGMENT, softmax, sums);
  for (int r = 0; r < ROWS; r++) {
    float* to = parts.of(layer, span, queries[r].head) + segment * parts.stride(layer);
    to[0] = softmax[r].peak;
    to[1] = softmax[r].total;
    std::memcpy(to + LANES, sums[r], layer.width * sizeof(float));
  }
}

// The result of a query whose segments `first` to `end` are in `parts`.
inline void add_segments(const AttentionLayer& layer, const ScoreRule& rules, const Query& query, const SegmentParts& parts,
                         int64_t span, int64_t first, int64_t end) {
  alignas(64) float sums[MAX_DIM] = {0};
  Softmax softmax = first_softmax(rules, query);
  for (int64_t segment = first; segment < end; segment++) {
    const float* part = parts.of(layer, span, query.head) + segment * parts.stride(layer);
    add_softmax(layer.width, softmax, sums, {part[0], part[1]}, part + LANES);
  }
  finish_query(layer, query, softmax, sums);
}

}  // namespace ryz
