// Matrix products x W^T with packed weights. A panel holds PANEL outputs: for each input the weights of these outputs lie
// side by side (bytes: see `byte_blocks.h`), so that a panel is read once, in order.
// The rows of x lie in tiles: of each row sixteen inputs, or a block of bytes, after those of the row before, so that
// threads that prepare different rows write to different cache lines.
// Every output is one chain of multiply-adds over the inputs, or the blocks of them, in their order, however many rows
// there are.
#pragma once
#include <algorithm>
#include <cmath>

#include "bf16_pairs.h"
#include "expanded_codes.h"
#include "linear_output.h"

namespace ryz {

constexpr int EXPANDED_TILES = 6;  // measured: with fewer, expanding costs more than it saves
constexpr int MAX_ROWS = RYZ_AVX512 ? 12 : 3;  // rows whose sums stay in registers
enum WeightType { F32 = 0, BF16 = 1, F16 = 2, INT8 = 3, CODES = 4, BF16_PAIRS = 5 };

inline int type_bytes(int type) { return type == F32 ? 4 : 2; }  // of a float
inline int64_t panel_bytes(int64_t k, int type, const CodeForm& form) {
  if (type == CODES) return form.panel_bytes(k);
  if (type == BF16_PAIRS) return pair_panel_bytes(k);
  return type == INT8 ? num_blocks(k) * BLOCK_BYTES : k * PANEL * type_bytes(type);
}
inline bool takes_bytes(int type) { return type == INT8 || type == CODES; }

template <int TYPE>
inline F load_weights(const uint8_t* p) {
  if constexpr (TYPE == F32) return load((const float*)p);
  if constexpr (TYPE == BF16) return load_bf16((const uint16_t*)p);
  return load_f16((const uint16_t*)p);
}

// Cuts rows into tiles of about the same height, the higher ones first.
struct Tiles {
  int64_t count, height, higher;  // `higher` tiles have one row more than `height`

  Tiles(int64_t rows, int most)
      : count((rows + most - 1) / most), height(count ? rows / count : 0), higher(count ? rows % count : 0) {}
  int64_t begin(int64_t tile) const { return tile * height + std::min(tile, higher); }
  int64_t rows(int64_t tile) const { return height + (tile < higher); }
  int64_t of(int64_t row) const {
    const int64_t edge = higher * (height + 1);
    return row < edge ? row / (height + 1) : higher + (row - edge) / height;
  }
};

// The input of a linear, as floats, in bf16 or as bytes, or as several of them; null: not so. Tile `t` of floats, or of
// words of bf16, begins at tiles.begin(t) * stride, that of bytes at tiles.begin(t) * byte_stride, its scales and starts at
// that / SCALE_BLOCK, its sums at that / HALF_BLOCK.
struct TiledRows {
  float* floats;
  uint32_t* pairs;
  int8_t* codes;
  float* scales;
  int32_t* starts;  // for INT8
  int32_t* sums;    // for CODES, else null
  int64_t stride, byte_stride;
};

// Products of a tile of floats.
template <int TYPE>
struct FloatProducts {
  static constexpr int MOST = MAX_ROWS;
  static int most(int64_t) { return MOST; }

  template <int ROWS>
  static void run(const TiledRows& in, const CodeForm&, const uint8_t* w, int64_t k, int64_t row, F* first, F* second) {
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) first[r] = second[r] = zero();
    const float* x = in.floats + row * in.stride;
    constexpr int BYTES = LANES * (TYPE == F32 ? 4 : 2);
    for (int64_t begin = 0; begin < k; begin += LANES, x += LANES * ROWS) {
      const int64_t count = std::min<int64_t>(LANES, k - begin);
      for (int64_t i = 0; i < count; i++, w += 2 * BYTES) {
        const F w0 = load_weights<TYPE>(w), w1 = load_weights<TYPE>(w + BYTES);
        prefetch_weights<4096>(w);
        prefetch_weights<4096>(w + 64);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
          const F xr = set1(x[LANES * r + i]);
          first[r] = fma(xr, w0, first[r]);
          second[r] = fma(xr, w1, second[r]);
        }
      }
    }
  }
};

struct PairProducts {
  static constexpr int MOST = MAX_PAIR_ROWS;
  static int most(int64_t) { return MOST; }

  template <int ROWS>
  static void run(const TiledRows& in, const CodeForm&, const uint8_t* w, int64_t k, int64_t row, F* first, F* second) {
    multiply_pairs<ROWS>(in.pairs + row * in.stride, w, k, first, second);
  }
};

struct Int8Products {
  static constexpr int MOST = MAX_BYTE_ROWS;
  static int most(int64_t rows) { return most_byte_rows(rows); }

  template <int ROWS>
  static void run(const TiledRows& in, const CodeForm&, const uint8_t* w, int64_t k, int64_t row, F* first, F* second) {
    const int64_t at = row * in.byte_stride, block = at / SCALE_BLOCK;
    multiply_blocks<ROWS>({in.codes + at, in.scales + block, in.starts + block}, w, num_blocks(k), first, second);
  }
};

template <int KIND, bool HALVES, bool OFFSETS>
struct CodeProducts {
  static constexpr int MOST = MAX_BYTE_ROWS;
  static int most(int64_t rows) { return most_byte_rows(rows); }

  template <int ROWS>
  static void run(const TiledRows& in, const CodeForm& form, const uint8_t* w, int64_t k, int64_t row, F* first, F* second) {
    const int64_t at = row * in.byte_stride, block = at / SCALE_BLOCK;
    const CodeRows rows = {in.codes + at, in.scales + block, in.sums + 2 * block};
    multiply_codes<KIND, HALVES, OFFSETS, ROWS>(rows, w, num_blocks(k), form, first, second);
  }
};

#if RYZ_AVX512

// Of an expanded panel.
template <bool HALVES, bool OFFSETS>
struct ExpandedProducts {
  static constexpr int MOST = MAX_BYTE_ROWS;
  static int most(int64_t rows) { return most_byte_rows(rows); }

  template <int ROWS>
  static void run(const TiledRows& in, const CodeForm& form, const uint8_t* w, int64_t k, int64_t row, F* first, F* second) {
    const int64_t at = row * in.byte_stride, block = at / SCALE_BLOCK;
    const CodeRows rows = {in.codes + at, in.scales + block, in.sums + 2 * block};
    const auto* panel = (const ExpandedBlock<HALVES, OFFSETS>*)w;
    multiply_expanded<HALVES, OFFSETS, ROWS>(rows, panel, num_blocks(k), form.above(), form.scales == F32_SCALES, first, second);
  }
};

#endif

template <class Products, int ROWS>
void tile_of(int64_t rows, const TiledRows& in, const CodeForm& form, const uint8_t* w, int64_t k, const LinearOutput& out,
             int64_t panel, int64_t row) {
  if (rows == ROWS) {
    F first[ROWS], second[ROWS];
    Products::template run<ROWS>(in, form, w, k, row, first, second);
    finish_rows<ROWS>(out, panel, row, first, second);
  } else if constexpr (ROWS > 1) {
    tile_of<Products, ROWS - 1>(rows, in, form, w, k, out, panel, row);
  }
}

// Panels first to end, all rows: a panel stays in the core's cache while all rows are multiplied with it.
template <class Products>
void panels(int64_t bytes, const TiledRows& in, const CodeForm& form, const uint8_t* weights, int64_t k, const LinearOutput& out,
            int64_t rows, int first, int end) {
  const Tiles tiles(rows, Products::most(rows));
  for (int panel = first; panel < end; panel++) {
    const uint8_t* w = weights + panel * bytes;
    for (int64_t t = 0; t < tiles.count; t++) {
      tile_of<Products, Products::MOST>(tiles.rows(t), in, form, w, k, out, panel, tiles.begin(t));
    }
  }
}

// As `panels`, for a panel of codes: with many rows it pays to expand it first.
template <int KIND, bool HALVES, bool OFFSETS>
void code_panels(int64_t bytes, const TiledRows& in, const CodeForm& form, const uint8_t* weights, int64_t k, const LinearOutput& out,
                 int64_t rows, int first, int end) {
#if RYZ_AVX512
  using Block = ExpandedBlock<HALVES, OFFSETS>;
  using Products = ExpandedProducts<HALVES, OFFSETS>;
  const Tiles tiles(rows, Products::most(rows));
  static thread_local Scratch scratch;
  uint8_t* expanded = tiles.count >= EXPANDED_TILES ? scratch.of(num_blocks(k) * sizeof(Block)) : nullptr;
  if (expanded) {
    for (int panel = first; panel < end; panel++) {
      expand<KIND>(weights + panel * bytes, num_blocks(k), form, (Block*)expanded);
      for (int64_t t = 0; t < tiles.count; t++) {
        tile_of<Products, Products::MOST>(tiles.rows(t), in, form, expanded, k, out, panel, tiles.begin(t));
      }
    }
    return;
  }
#endif
  panels<CodeProducts<KIND, HALVES, OFFSETS>>(bytes, in, form, weights, k, out, rows, first, end);
}

inline void linear(int type, const CodeForm& form, const TiledRows& in, const uint8_t* weights, int64_t k,
                   const LinearOutput& out, int64_t rows, int first, int end) {
  const int64_t bytes = panel_bytes(k, type, form);
  const auto run = [&](auto products) {
    panels<decltype(products)>(bytes, in, form, weights, k, out, rows, first, end);
  };
  switch (type) {
    case F32: return run(FloatProducts<F32>());
    case BF16: return run(FloatProducts<BF16>());
    case F16: return run(FloatProducts<F16>());
    case INT8: return run(Int8Products());
    case BF16_PAIRS: {
      const FlushDenormals flush;
      return run(PairProducts());
    }
  }
  const auto run_codes = [&](auto halves, auto offsets) {
    switch (form.kind) {
      case TWO_BITS: return code_panels<TWO_BITS, halves(), offsets()>(bytes, in, form, weights, k, out, rows, first, end);
      case FOUR_BITS: return code_panels<FOUR_BITS, halves(), offsets()>(bytes, in, form, weights, k, out, rows, first, end);
      case FOUR_BIT_TABLE: return code_panels<FOUR_BIT_TABLE, false, false>(bytes, in, form, weights, k, out, rows, first, end);
      default: return code_panels<EIGHT_BITS, halves(), offsets()>(bytes, in, form, weights, k, out, rows, first, end);
    }
  };
  constexpr std::true_type YES;
  constexpr std::false_type NO;
  if (form.halves()) return form.offsets ? run_codes(YES, YES) : run_codes(YES, NO);
  return form.offsets ? run_codes(NO, YES) : run_codes(NO, NO);
}

}  // namespace ryz
