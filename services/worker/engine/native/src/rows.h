// What is done to each token's vector by itself: embedding, residual sums, RMS norm, rotary positions, and
// bringing it into the tiles that linears read.
// Vectors are padded to a multiple of sixteen floats with zeros, so loops have no remainders.
#pragma once
#include <cmath>

#include "linear.h"

namespace ryz {

// [columns] of a table row that may be stored in half precision
inline void copy_row(const uint8_t* table, int type, int64_t row, int64_t columns, float* to) {
  const uint8_t* from = table + row * columns * type_bytes(type);
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES) {
    const F x = type == F32 ? load((const float*)from + i)
                            : type == BF16 ? load_bf16((const uint16_t*)from + i) : load_f16((const uint16_t*)from + i);
    store(to + i, x);
  }
  for (; i < columns; i++) {
    uint16_t half[LANES] = {0};
    float whole[LANES];
    if (type == F32) {
      to[i] = ((const float*)from)[i];
      continue;
    }
    half[0] = ((const uint16_t*)from)[i];
    store(whole, type == BF16 ? load_bf16(half) : load_f16(half));
    to[i] = whole[0];
  }
}

// y = x / sqrt(mean(x^2) + eps) * weight over `width` floats, of which `columns` count; y may be x
inline void rms_norm(const float* x, const float* weight, float eps, int64_t columns, int64_t width, float* y) {
  F squares = zero();
  for (int64_t i = 0; i < width; i += LANES) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  const F factor = set1(1.0f / std::sqrt(sum(squares) / (float)columns + eps));
  for (int64_t i = 0; i < width; i += LANES) store(y + i, load(x + i) * factor * load(weight + i));
}

// The input of a linear, to be written; see `Input`.
struct Prepared {
  float* x;   // floats, or null where bytes are wanted:
  int8_t* q;
  float* scales;
  int32_t* sums;
  int64_t stride;
};

// Puts a row into its place. Bytes: the largest becomes 127; a value that is no number makes the scale none, so that
// the damage shows.
inline void prepare(const float* from, int64_t width, const Prepared& out, const Tiles& tiles, int64_t row) {
  const int64_t tile = tiles.of(row), begin = tiles.begin(tile), rows = tiles.rows(tile), at = row - begin;
  if (out.x) {
    float* x = out.x + begin * out.stride + at;
    if (rows == 1) {
      std::memcpy(x, from, width * sizeof(float));
    } else {
      for (int64_t i = 0; i < width; i++) x[i * rows] = from[i];
    }
    return;
  }
  F peak = zero(), trouble = zero();
  for (int64_t i = 0; i < width; i += LANES) {
    const F v = load(from + i);
    peak = max(peak, abs(v));
    trouble = fma(v, zero(), trouble);
  }
  const float top = largest(peak);
  const F inverse = set1(top > 0 ? 127.0f / top : 0.0f);
  int8_t* q = out.q + begin * out.stride + 4 * at;
  int32_t total = 0;
  for (int64_t i = 0; i < width; i += LANES) {
    int8_t bytes[LANES];
    // within a hair of 127.5 at most, so clamping keeps the sum right
    total += store_int8(bytes, max(set1(-127.0f), min(set1(127.0f), load(from + i) * inverse)));
    for (int64_t j = 0; j < LANES; j += 4) std::memcpy(q + (i + j) * rows, bytes + j, 4);
  }
  out.scales[row] = top / 127.0f + sum(trouble);
  out.sums[row] = total;
}

// The residual stream takes what the ranks computed, then its norm is what the next linear reads.
struct Residual {
  float* hidden;  // [rows, width]
  int64_t columns, width;
  const float* parts;  // [parts_count][rows, width], a rank's share each; added in their order
  int64_t part_stride;
  int parts_count;
  bool assign;  // the sum replaces the stream (after the embedding)
  const float* bias, *norm;
  float eps;
  float* y;  // [rows, width]: the norm, on its way to
  Prepared out;
};

inline void add_parts(const Residual& r, int64_t row) {
  float* to = r.hidden + row * r.width;
  for (int64_t i = 0; i < r.width; i += LANES) {
    F total = load(r.parts + row * r.width + i);
    for (int part = 1; part < r.parts_count; part++) {
      total = total + load(r.parts + part * r.part_stride + row * r.width + i);
    }
    if (r.bias) total = total + load(r.bias + i);
    store(to + i, r.assign ? total : load(to + i) + total);
  }
}

// row: of the stream; out_row: of the result
inline void norm_row(const Residual& r, const Tiles& tiles, int64_t row, int64_t out_row) {
  const float* from = r.hidden + row * r.width;
  float* y = r.y + out_row * r.width;
  rms_norm(from, r.norm, r.eps, r.columns, r.width, y);
  prepare(y, r.width, r.out, tiles, out_row);
}

// Rotary position embedding in the half-split layout: dimension i turns with dimension i + half.
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace ryz
