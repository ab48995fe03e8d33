// An RMS norm over a dimension that is cut over the ranks: each rank sums the squares of its part of a row, and all add
// up the sums in the order of ranks.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../simd.h"

namespace ryz {

constexpr int64_t SUMS = 2;  // numbers of a row that are exchanged together, of two norms at most

struct CutNorm {
  float* rows;          // the first row's part, rows `stride` floats apart
  int64_t stride, count;  // count: of this rank's part
  const float* weight;  // [count], padded
  int64_t size;         // of the whole dimension
  float eps;
  int32_t counts;       // this rank's part is in the sum; not if another rank has the same one
  float* own;           // [rows][SUMS], this rank's sums of this norm
  const float* sums;    // [ranks][rows][SUMS], those of all
  int64_t num_ranks, rank_stride;
};

// a part is followed by other numbers, not by padding
inline F load_some(const float* x, int64_t count) {
  if (count >= LANES) return load(x);
  alignas(64) float part[LANES] = {0};
  std::memcpy(part, x, count * sizeof(float));
  return load(part);
}

inline void sum_squares(const CutNorm& n, int64_t row) {
  const float* x = n.rows + row * n.stride;
  F squares = zero();
  for (int64_t i = 0; i < n.count; i += LANES) {
    const F v = load_some(x + i, n.count - i);
    squares = fma(v, v, squares);
  }
  n.own[row * SUMS] = n.counts ? sum(squares) : 0.0f;
}

inline void cut_norm(const CutNorm& n, int64_t row) {
  float* x = n.rows + row * n.stride;
  float total = n.sums[row * SUMS];
  for (int64_t rank = 1; rank < n.num_ranks; rank++) total += n.sums[rank * n.rank_stride + row * SUMS];
  const F factor = set1(1.0f / std::sqrt(total / (float)n.size + n.eps));
  for (int64_t i = 0; i < n.count; i += LANES) {
    alignas(64) float part[LANES];
    store(part, load_some(x + i, n.count - i) * factor * load(n.weight + i));
    std::memcpy(x + i, part, std::min<int64_t>(LANES, n.count - i) * sizeof(float));
  }
}

}  // namespace ryz
