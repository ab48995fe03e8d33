// Operations on the vector of one token: embedding, residual sums with their norms, and copying it into the tiles that
// linears read.
// Vectors are padded to a multiple of sixteen floats with zeros, so loops have no remainders.
#pragma once
#include <cmath>

#include "../weights/linear.h"
#include "norms.h"

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

// Copies row `row` of `rows` into its tile, in each form that it has.
inline void tile_row(const float* from, int64_t width, const TiledRows& out, int64_t all, int64_t row) {
  if (out.floats) {
    const Tiles tiles(all, MAX_ROWS);
    const int64_t tile = tiles.of(row), begin = tiles.begin(tile), rows = tiles.rows(tile);
    float* x = out.floats + begin * out.stride + LANES * (row - begin);
    for (int64_t i = 0; i < width; i += LANES, x += LANES * rows) store(x, load(from + i));
  }
  if (out.pairs) {
    const Tiles tiles(all, MAX_PAIR_ROWS);
    const int64_t tile = tiles.of(row), begin = tiles.begin(tile);
    round_row(from, width, tiles.rows(tile), out.pairs + begin * out.stride + pair_words() * (row - begin));
  }
  if (!out.codes) return;
  const Tiles tiles(all, most_byte_rows(all));
  const int64_t tile = tiles.of(row), begin = tiles.begin(tile), rows = tiles.rows(tile), at = row - begin;
  int8_t* q = out.codes + begin * out.byte_stride + SCALE_BLOCK * at;
  const int64_t block = begin * out.byte_stride / SCALE_BLOCK;
  float* scales = out.scales + block + at;
  int32_t *starts = out.starts + block + at, *sums = out.sums ? out.sums + 2 * block + at : nullptr;
  for (int64_t i = 0; i < width; i += SCALE_BLOCK, q += SCALE_BLOCK * rows, scales += rows, starts += rows) {
    const F low = load(from + i), high = i + LANES < width ? load(from + i + LANES) : zero();
    *scales = quantize_block(low, high, q, starts);
    if (sums) {
      add_halves(q, sums, sums + rows);
      sums += 2 * rows;
    }
  }
}

// Adds what the ranks computed to the residual stream; the norm of the stream is the input of the next linear.
struct Residual {
  float* hidden;          // [rows, width]
  int64_t columns, width;
  const float* partials;  // [num_partials][rows, width], one of each rank, added in their order
  int64_t partial_stride, num_partials;  // no partials: the stream stays as it is
  const float* bias;      // [width] or null
  const float* positions; // [positions, width] to be added by position, or null
  NormRule sum_norm;          // of the sum, before it is added
  NormRule norm;              // of the stream; NO_NORM: the stream itself is the input
  float scale;            // of the sum, or of its norm
  int32_t assign;         // the sum replaces the stream (after the embedding)
  float* normed;          // [rows, width]
  TiledRows tiled;        // the same rows
};

// row: of the stream; out_row: of `normed`
inline void add_partials(Residual r, int64_t row, int64_t out_row, int64_t position) {
  float *stream = r.hidden + row * r.width, *sums = r.sum_norm.kind ? r.normed + out_row * r.width : stream;
  const float *partials = r.partials + row * r.width, *positions = r.positions ? r.positions + position * r.width : nullptr;
  const bool replaces = r.assign || r.sum_norm.kind;
  const F scale = set1(r.sum_norm.kind ? 1.0f : r.scale);
  for (int64_t i = 0; i < r.width; i += LANES) {
    F total = load(partials + i);
    for (int64_t rank = 1; rank < r.num_partials; rank++) total = total + load(partials + rank * r.partial_stride + i);
    if (r.bias) total = total + load(r.bias + i);
    total = total * scale;
    if (positions) total = total + load(positions + i);
    store(sums + i, replaces ? total : load(stream + i) + total);
  }
  if (!r.sum_norm.kind) return;
  normalize(r.sum_norm, sums, r.columns, r.width, sums);
  for (int64_t i = 0; i < r.width; i += LANES) store(stream + i, load(stream + i) + set1(r.scale) * load(sums + i));
}

// all: how many rows there are
inline void norm_row(Residual r, int64_t all, int64_t row, int64_t out_row) {
  const float* from = r.hidden + row * r.width;
  if (r.norm.kind) {
    float* y = r.normed + out_row * r.width;
    normalize(r.norm, from, r.columns, r.width, y);
    from = y;
  }
  tile_row(from, r.width, r.tiled, all, out_row);
}

}  // namespace ryz
