// Matrix products x W^T with packed weights. A panel holds PANEL outputs: for each input (each four inputs,
// if weights are bytes) the weights of these outputs lie side by side, so that a panel is read once, in order.
// The rows of x lie in tiles in the same way: input after input, those of a tile's rows side by side.
// Every output is one chain of multiply-adds over the inputs in their order, however many rows there are.
#pragma once
#include <algorithm>
#include <cmath>

#include "simd.h"

namespace ryz {

constexpr int PANEL = 2 * LANES;
constexpr int MAX_ROWS = RYZ_AVX512 ? 12 : 3;  // rows whose sums stay in registers
enum WeightType { F32 = 0, BF16 = 1, F16 = 2, INT8 = 3 };

inline int type_bytes(int type) { return type == F32 ? 4 : type == INT8 ? 1 : 2; }
inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// inputs of a packed row
inline int64_t depth(int64_t k, int type) { return type == INT8 ? padded(k, 4) : k; }
inline int64_t panel_bytes(int64_t k, int type) { return depth(k, type) * PANEL * type_bytes(type); }

template <int TYPE>
inline F load_weights(const uint8_t* p) {
  if constexpr (TYPE == F32) return load((const float*)p);
  if constexpr (TYPE == BF16) return load_bf16((const uint16_t*)p);
  return load_f16((const uint16_t*)p);
}

// Cuts rows into tiles of about the same height, the higher ones first.
struct Tiles {
  int64_t count, height, higher;  // `higher` tiles have one row more than `height`

  explicit Tiles(int64_t rows)
      : count((rows + MAX_ROWS - 1) / MAX_ROWS), height(count ? rows / count : 0), higher(count ? rows % count : 0) {}
  int64_t begin(int64_t tile) const { return tile * height + std::min(tile, higher); }
  int64_t rows(int64_t tile) const { return height + (tile < higher); }
  int64_t of(int64_t row) const {
    const int64_t edge = higher * (height + 1);
    return row < edge ? row / (height + 1) : higher + (row - edge) / height;
  }
};

// The input of a linear; tile `t` begins at tiles.begin(t) * stride.
struct TiledRows {
  float* floats;  // or, for byte weights, null and:
  int8_t* bytes;  // four inputs of a row side by side
  float* scales;  // [rows]
  int32_t* sums;  // [rows], of the bytes
  int64_t stride;
};

// Prefetches from the next page or panel: the processor's own prefetcher stops at the end of a page.
inline void prefetch_weights(const uint8_t* w) {
  _mm_prefetch((const char*)w + 4096, _MM_HINT_T0);
  _mm_prefetch((const char*)w + 4096 + 64, _MM_HINT_T0);
}

struct LinearOutput {
  float* y;  // [rows, stride]
  int64_t stride, columns;
  const float* bias;    // [panels * PANEL] or null
  const float* scales;  // [panels * PANEL], of byte weights
  int32_t gated;        // SwiGLU: the first half of a panel gates the second, so half as many columns come out
};

inline F silu(F x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }

inline void store_columns(float* y, F value, int64_t columns) {
  if (columns >= LANES) {
    store(y, value);
  } else if (columns > 0) {
    float part[LANES];
    store(part, value);
    std::memcpy(y, part, columns * sizeof(float));
  }
}

inline void finish(const LinearOutput& out, int64_t panel, int64_t row, F first, F second) {
  if (out.bias) {
    first = first + load(out.bias + panel * PANEL);
    second = second + load(out.bias + panel * PANEL + LANES);
  }
  if (out.gated) {
    const int64_t column = panel * LANES;
    store_columns(out.y + row * out.stride + column, silu(first) * second, out.columns - column);
  } else {
    const int64_t column = panel * PANEL;
    store_columns(out.y + row * out.stride + column, first, out.columns - column);
    store_columns(out.y + row * out.stride + column + LANES, second, out.columns - column - LANES);
  }
}

template <int TYPE, int ROWS>
inline void tile(const TiledRows& in, const uint8_t* w, int64_t k, const LinearOutput& out, int64_t panel, int64_t row) {
  if constexpr (TYPE == INT8) {
    I first[ROWS], second[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) first[r] = second[r] = izero();
    const int8_t* x = in.bytes + row * in.stride;
    for (int64_t i = 0; i < k; i += 4, w += 4 * PANEL, x += 4 * ROWS) {
      const I w0 = iload(w), w1 = iload(w + 4 * LANES);
      prefetch_weights(w);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        const I xr = ibroadcast4(x + 4 * r);
        first[r] = dot4(first[r], w0, xr);
        second[r] = dot4(second[r], w1, xr);
      }
    }
    const F s0 = load(out.scales + panel * PANEL), s1 = load(out.scales + panel * PANEL + LANES);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
      const int offset = WEIGHT_OFFSET * in.sums[row + r];
      const F scale = set1(in.scales[row + r]);
      finish(out, panel, row + r, to_float(first[r], offset) * s0 * scale, to_float(second[r], offset) * s1 * scale);
    }
  } else {
    F first[ROWS], second[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) first[r] = second[r] = zero();
    const float* x = in.floats + row * in.stride;
    constexpr int BYTES = LANES * (TYPE == F32 ? 4 : 2);
    for (int64_t i = 0; i < k; i++, w += 2 * BYTES, x += ROWS) {
      const F w0 = load_weights<TYPE>(w), w1 = load_weights<TYPE>(w + BYTES);
      prefetch_weights(w);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        const F xr = set1(x[r]);
        first[r] = fma(xr, w0, first[r]);
        second[r] = fma(xr, w1, second[r]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) finish(out, panel, row + r, first[r], second[r]);
  }
}

template <int TYPE, int ROWS>
void tile_of(int64_t rows, const TiledRows& in, const uint8_t* w, int64_t k, const LinearOutput& out, int64_t panel,
             int64_t row) {
  if (rows == ROWS) {
    tile<TYPE, ROWS>(in, w, k, out, panel, row);
  } else if constexpr (ROWS > 1) {
    tile_of<TYPE, ROWS - 1>(rows, in, w, k, out, panel, row);
  }
}

// Panels first to end, all rows: a panel stays in the core's cache while all rows are multiplied with it.
template <int TYPE>
void panels(const TiledRows& in, const uint8_t* weights, int64_t k, const LinearOutput& out, int64_t rows, int first, int end) {
  const Tiles tiles(rows);
  for (int panel = first; panel < end; panel++) {
    const uint8_t* w = weights + panel * panel_bytes(k, TYPE);
    for (int64_t t = 0; t < tiles.count; t++) {
      tile_of<TYPE, MAX_ROWS>(tiles.rows(t), in, w, depth(k, TYPE), out, panel, tiles.begin(t));
    }
  }
}

inline void linear(int type, const TiledRows& in, const uint8_t* weights, int64_t k, const LinearOutput& out, int64_t rows,
                   int first, int end) {
  switch (type) {
    case F32: return panels<F32>(in, weights, k, out, rows, first, end);
    case BF16: return panels<BF16>(in, weights, k, out, rows, first, end);
    case F16: return panels<F16>(in, weights, k, out, rows, first, end);
    default: return panels<INT8>(in, weights, k, out, rows, first, end);
  }
}

}  // namespace ryz
