// Norms of the vector of one token: root-mean-square and layer norms, with the same result in any batch.
// Vectors are padded to a multiple of sixteen floats with zeros, so loops have no remainders.
#pragma once
#include <cmath>

#include "../simd.h"

namespace ryz {

enum NormKind { NO_NORM = 0, RMS_NORM = 1, LAYER_NORM = 2 };

struct NormRule {
  const float* weight;  // [width]
  const float* bias;    // [width] or null
  float eps;
  int32_t kind;
};

inline F square_sums(const float* x, int64_t width) {
  F squares = zero();
  for (int64_t i = 0; i < width; i += LANES) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  return squares;
}

// y = x / sqrt(mean(x^2) + eps) * weight over `width` floats, of which `columns` count; y may be x
inline void rms_norm(const float* x, const float* weight, float eps, int64_t columns, int64_t width, float* y) {
  const F factor = set1(1.0f / std::sqrt(sum(square_sums(x, width)) / (float)columns + eps));
  for (int64_t i = 0; i < width; i += LANES) store(y + i, load(x + i) * factor * load(weight + i));
}

// y = (x - mean) / sqrt(variance + eps) * weight; y may be x
inline void layer_norm(const float* x, const float* weight, float eps, int64_t columns, int64_t width, float* y) {
  F total = zero(), squares = zero();
  for (int64_t i = 0; i < width; i += LANES) total = total + load(x + i);
  const float mean = sum(total) / (float)columns;
  for (int64_t i = 0; i < width; i += LANES) {
    alignas(64) float part[LANES];
    store(part, load(x + i));
    for (int64_t j = columns - i; j < LANES; j++) part[j] = mean;  // padding counts for nothing
    const F v = load(part) - set1(mean);
    squares = fma(v, v, squares);
  }
  const F factor = set1(1.0f / std::sqrt(sum(squares) / (float)columns + eps));
  for (int64_t i = 0; i < width; i += LANES) store(y + i, (load(x + i) - set1(mean)) * factor * load(weight + i));
}

// y may be x
inline void normalize(const NormRule& norm, const float* x, int64_t columns, int64_t width, float* y) {
  if (norm.kind == RMS_NORM) {
    rms_norm(x, norm.weight, norm.eps, columns, width, y);
  } else {
    layer_norm(x, norm.weight, norm.eps, columns, width, y);
  }
  if (norm.bias) {
    for (int64_t i = 0; i < width; i += LANES) store(y + i, load(y + i) + load(norm.bias + i));
  }
}

}  // namespace ryz
