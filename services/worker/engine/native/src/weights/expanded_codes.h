// Products of many rows with a panel of codes. The panel is written once as bytes and floats, which is shared by all tiles;
// the integer and float arithmetic of an output is that of `multiply_codes`, bit for bit.
#pragma once
#include <cstdlib>
#include <memory>

#include "code_blocks.h"

namespace ryz {

// Memory of a thread that grows as needed.
class Scratch {
 public:
  uint8_t* of(int64_t bytes) {
    if (bytes > size) {
      memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
      size = memory ? bytes : 0;
    }
    return memory.get();
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  int64_t size = 0;
};

// A block of an expanded panel: for each group of inputs the scales of its outputs, these times SUM_BIAS (zeros if the
// product would be rounded) and the offsets, as floats; then the codes, each a byte, of four inputs after the others.
template <bool HALVES, bool OFFSETS>
struct ExpandedBlock {
  static constexpr int PARTS = HALVES ? 2 : 1;

  alignas(64) float scales[PARTS][PANEL];
  float biased[PARTS][PANEL];
  float offsets[OFFSETS ? PARTS : 1][OFFSETS ? PANEL : 16];
  uint8_t codes[SCALE_BLOCK * PANEL];
};

#if RYZ_AVX512

template <int KIND, bool HALVES, bool OFFSETS>
inline void expand(const uint8_t* w, int64_t blocks, const CodeForm& form, ExpandedBlock<HALVES, OFFSETS>* to) {
  constexpr int SHARED = TOGETHER_IN_BYTE<KIND>, PARTS = HALVES ? 2 : 1, REGISTERS = PANEL / OUTPUTS;
  const int64_t scale_bytes = form.scale_bytes(), per_group = form.blocks_of_group();
  const CodeTable table(form);
  const uint8_t* scales = w;
  for (int64_t block = 0; block < blocks; block++, to++, w += form.code_bytes()) {
    if (block % per_group == 0) {
      scales = w;
      w += PARTS * scale_bytes;
    }
    for (int part = 0; part < PARTS; part++) {
      for (int i = 0; i < REGISTERS; i++) {
        const GroupScales<OFFSETS> group(scales + part * scale_bytes, form, i);
        _mm512_store_ps(to->scales[part] + i * OUTPUTS, group.scale.scale);
        _mm512_store_ps(to->biased[part] + i * OUTPUTS, group.scale.offset);
        if (OFFSETS) _mm512_store_ps(to->offsets[part] + i * OUTPUTS, group.offset.v);
      }
    }
    uint8_t* codes = to->codes;
    for (int load = 0; load < SCALE_BLOCK / 4 / SHARED; load++, codes += 4 * PANEL * SHARED) {
      for (int i = 0; i < REGISTERS; i++) {
        Weights weights[SHARED];
        unpack<KIND>(w + 4 * (load * PANEL + i * OUTPUTS), table, weights);
        for (int step = 0; step < SHARED; step++) _mm512_store_si512(codes + 4 * (step * PANEL + i * OUTPUTS), weights[step].v);
      }
    }
  }
}

// As `multiply_codes`. zero: what codes are above their values; wide: scales have more than 22 bits.
template <bool HALVES, bool OFFSETS, int ROWS>
inline void multiply_expanded(CodeRows x, const ExpandedBlock<HALVES, OFFSETS>* w, int64_t blocks, int32_t zero, bool wide, F* first,
                              F* second) {
  constexpr int PARTS = HALVES ? 2 : 1, REGISTERS = PANEL / OUTPUTS, STEPS = SCALE_BLOCK / 4 / PARTS;
  Sums sums[REGISTERS][ROWS];
  for (int i = 0; i < REGISTERS; i++)
    for (int r = 0; r < ROWS; r++) sums[i][r] = no_sums();
  TileValues<HALVES, OFFSETS, ROWS> values(x, zero);
  for (int64_t block = 0; block < blocks; block++, w++) {
    const auto* of_tile = values.next(x);
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++) {
      I dots[REGISTERS][ROWS];
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int i = 0; i < REGISTERS; i++) dots[i][r] = start_sum(of_tile[part].starts + r);
      for (int step = STEPS * part; step < STEPS * (part + 1); step++) {
        Weights weights[REGISTERS];
#pragma GCC unroll 2
        for (int i = 0; i < REGISTERS; i++) weights[i] = load_codes(w->codes + 4 * (step * PANEL + i * OUTPUTS));
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
          const I four = broadcast4(x.codes + SCALE_BLOCK * r + 4 * step);
#pragma GCC unroll 2
          for (int i = 0; i < REGISTERS; i++) dots[i][r] = dot4(dots[i][r], weights[i], four);
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < REGISTERS; i++) {
        const Scales scale = {_mm512_load_ps(w->scales[part] + i * OUTPUTS), _mm512_load_ps(w->biased[part] + i * OUTPUTS)};
        if (wide) {
#pragma GCC unroll 12
          for (int r = 0; r < ROWS; r++) subtract_bias(dots[i][r]);
        }
        Sums offset = no_sums();
        if (OFFSETS) offset = {_mm512_load_ps(w->offsets[part] + i * OUTPUTS)};
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
          Sums sum = add_block(sums[i][r], dots[i][r], scale, x.scales + r);
          if (OFFSETS) sum = subtract_scaled(sum, offset, of_tile[part].of_offsets + r);
          sums[i][r] = sum;
        }
      }
    }
    x.next(ROWS);
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    first[r] = join(sums[0][r], no_sums());
    second[r] = join(sums[1][r], no_sums());
  }
}

#endif

}  // namespace ryz
