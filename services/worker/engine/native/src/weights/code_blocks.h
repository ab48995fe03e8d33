// Products of rows of bytes with a panel of codes (see `code_form.h`). Rows are those of `byte_blocks.h`: signed bytes with
// a scale for each 32 inputs. The integer products of a group within a block are added up exactly, less the zero; the sums
// become floats, are scaled and added to the result, block after block.
#pragma once
#include "code_form.h"

namespace ryz {

// Rows of bytes; those of a tile lie side by side.
struct CodeRows {
  const int8_t* codes;   // [block][row][32]
  const float* scales;   // [block][row]
  const int32_t* sums;   // [block][half][row]: of the codes of each half of a block

  void next(int rows) {
    codes += SCALE_BLOCK * rows;
    scales += rows;
    sums += 2 * rows;
  }
};

template <int KIND>
constexpr int TOGETHER_IN_BYTE = KIND == EIGHT_BITS ? 1 : KIND == TWO_BITS ? 4 : 2;  // steps that share bytes

// What the rows of a tile have one of each.
struct RowValues {
  __m256i v;
};
static_assert(MAX_BYTE_ROWS == 8, "the values of a tile's rows fit a register");
inline RowValues load_values(const int32_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline RowValues add(RowValues a, RowValues b) { return {_mm256_add_epi32(a.v, b.v)}; }
// What integer sums begin with, if codes are `zero` above their values.
inline void store_starts(int32_t* p, RowValues sums, int32_t zero) {
  const __m256i less = _mm256_mullo_epi32(sums.v, _mm256_set1_epi32(zero));
  _mm256_store_si256((__m256i*)p, _mm256_sub_epi32(_mm256_set1_epi32(SUM_BIAS_BITS), less));
}
inline void store_factors(float* p, RowValues sums, const float* scales) {
  _mm256_store_ps(p, _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_cvtepi32_ps(sums.v)));
}

// For each row of a tile: what its integer sums begin with in the groups of a block, and the factors of their offsets.
// They are computed a block ahead, so that the products need not wait for them.
template <bool HALVES, bool OFFSETS, int ROWS>
class TileValues {
 public:
  struct Group {
    alignas(32) int32_t starts[MAX_BYTE_ROWS];
    alignas(32) float of_offsets[MAX_BYTE_ROWS];
  };

  TileValues(const CodeRows& x, int32_t zero) : zero(zero) { set(groups[0], x); }

  // Those of the groups of the block that x is at: the first one, and then one after the other.
  const Group* next(CodeRows x) {
    const Group* found = groups[at];
    at ^= 1;
    x.next(ROWS);
    set(groups[at], x);
    return found;
  }

 private:
  static constexpr int PARTS = HALVES ? 2 : 1;

  // After the last block it reads what lies behind the rows, without use.
  void set(Group* to, const CodeRows& x) {
    for (int part = 0; part < PARTS; part++) {
      RowValues sum = load_values(x.sums + part * ROWS);
      if (!HALVES) sum = add(sum, load_values(x.sums + ROWS));
      store_starts(to[part].starts, sum, zero);
      if (OFFSETS) store_factors(to[part].of_offsets, sum, x.scales);
    }
  }

  Group groups[2][PARTS];
  int32_t zero;
  int at = 0;
};

// Sums of integer products.
template <int KIND>
struct Dots {
  I sum;

  void start(const int32_t* value) { sum = broadcast4((const int8_t*)value); }
  void add(Weights w, I x) { sum = dot4(sum, w, x); }
  I total() const { return sum; }
};

// Sixteen codes of a form with a table, as weights are stored.
inline __m128i stored_table(const CodeForm& form) {
  return _mm_xor_si128(_mm_loadu_si128((const __m128i*)form.table), _mm_set1_epi8((char)WEIGHT_OFFSET));
}

#if RYZ_AVX512

inline __m512 load_scale(const uint8_t* p, int type) {
  if (type == F32_SCALES) return _mm512_loadu_ps(p);
  return type == F16_SCALES ? load_f16((const uint16_t*)p).v : load_bf16((const uint16_t*)p).v;
}
inline Sums times_bias(Sums scale) { return {_mm512_mul_ps(scale.v, _mm512_set1_ps(SUM_BIAS))}; }
inline void subtract_bias(I& dots) {
  dots.v = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(dots.v), _mm512_set1_ps(SUM_BIAS)));
}
inline Sums subtract_scaled(Sums sums, Sums offset, const float* factor) {
  return {_mm512_fnmadd_ps(offset.v, _mm512_set1_ps(*factor), sums.v)};
}

struct CodeTable {
  __m512i v;

  explicit CodeTable(const CodeForm& form) { v = _mm512_broadcast_i32x4(stored_table(form)); }
};

template <int KIND>
inline void unpack(const uint8_t* p, const CodeTable& table, Weights* to) {
  const __m512i raw = _mm512_loadu_si512(p);
  if constexpr (KIND == EIGHT_BITS) {
    to[0] = {raw};
  } else if constexpr (KIND == TWO_BITS) {
    const __m512i mask = _mm512_set1_epi8(3);
    to[0] = {_mm512_and_si512(raw, mask)};
    to[1] = {_mm512_and_si512(_mm512_srli_epi16(raw, 2), mask)};
    to[2] = {_mm512_and_si512(_mm512_srli_epi16(raw, 4), mask)};
    to[3] = {_mm512_and_si512(_mm512_srli_epi16(raw, 6), mask)};
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i low = _mm512_and_si512(raw, mask), high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
    to[0] = {KIND == FOUR_BIT_TABLE ? _mm512_shuffle_epi8(table.v, low) : low};
    to[1] = {KIND == FOUR_BIT_TABLE ? _mm512_shuffle_epi8(table.v, high) : high};
  }
}

#else

inline __m256 load_scale(const uint8_t* p, int type) {
  if (type == F32_SCALES) return _mm256_loadu_ps((const float*)p);
  const __m128i halves = _mm_loadu_si128((const __m128i*)p);
  if (type == F16_SCALES) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Sums times_bias(Sums scale) { return {_mm256_mul_ps(scale.v, _mm256_set1_ps(SUM_BIAS))}; }
inline void subtract_bias(I& dots) {
  dots.v = _mm256_castps_si256(_mm256_sub_ps(_mm256_castsi256_ps(dots.v), _mm256_set1_ps(SUM_BIAS)));
}
inline Sums subtract_scaled(Sums sums, Sums offset, const float* factor) {
  return {_mm256_fnmadd_ps(offset.v, _mm256_set1_ps(*factor), sums.v)};
}

#if !RYZ_AVXVNNI
// Codes of 4 bits are at most 15, so the products of a whole block are added up in 16 bits: 8 * 2 * 15 * 127 < 2^15.
struct NarrowDots {
  __m256i begin, sum;

  void start(const int32_t* value) {
    begin = _mm256_set1_epi32(*value);
    sum = _mm256_setzero_si256();
  }
  void add(Weights w, I x) { sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w.v, x.v)); }
  I total() const { return {_mm256_add_epi32(begin, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)))}; }
};
template <>
struct Dots<FOUR_BITS> : NarrowDots {};
template <>
struct Dots<TWO_BITS> : NarrowDots {};
#endif

struct CodeTable {
  __m256i v;

  explicit CodeTable(const CodeForm& form) { v = _mm256_broadcastsi128_si256(stored_table(form)); }
};

template <int KIND>
inline void unpack(const uint8_t* p, const CodeTable& table, Weights* to) {
  const __m256i raw = _mm256_loadu_si256((const __m256i*)p);
  if constexpr (KIND == EIGHT_BITS) {
    to[0] = weights_of(raw);
  } else if constexpr (KIND == TWO_BITS) {
    const __m256i mask = _mm256_set1_epi8(3);
    to[0].v = _mm256_and_si256(raw, mask);
    to[1].v = _mm256_and_si256(_mm256_srli_epi16(raw, 2), mask);
    to[2].v = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
    to[3].v = _mm256_and_si256(_mm256_srli_epi16(raw, 6), mask);
  } else {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(raw, mask), high = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
    if constexpr (KIND == FOUR_BIT_TABLE) {
      to[0] = weights_of(_mm256_shuffle_epi8(table.v, low));
      to[1] = weights_of(_mm256_shuffle_epi8(table.v, high));
    } else {
      to[0].v = low;
      to[1].v = high;
    }
  }
}

#endif

// What a register of outputs has for a group of inputs.
template <bool OFFSETS>
struct GroupScales {
  Scales scale;
  Sums offset;

  GroupScales(const uint8_t* p, const CodeForm& form, int place) {
    const Sums own = {load_scale(p + place * OUTPUTS * CodeForm::bytes_of(form.scales), form.scales)};
    scale = {own.v, form.scales == F32_SCALES ? no_sums().v : times_bias(own).v};
    p += PANEL * CodeForm::bytes_of(form.scales) + place * OUTPUTS * CodeForm::bytes_of(form.offsets);
    if (OFFSETS) offset = {load_scale(p, form.offsets)};
  }
};

// The products of ROWS rows with a panel's outputs. HALVES: groups of 16 inputs.
template <int KIND, bool HALVES, bool OFFSETS, int ROWS>
inline void multiply_codes(CodeRows x, const uint8_t* w, int64_t blocks, const CodeForm& form, F* first, F* second) {
  constexpr int HALF = LANES / OUTPUTS, REGISTERS = 2 * HALF;  // of a row's sums
  constexpr int TOGETHER = RYZ_AVX512 || (RYZ_AVXVNNI && ROWS == 1) ? REGISTERS : 1;  // of them at a time
  constexpr int SHARED = TOGETHER_IN_BYTE<KIND>, PARTS = HALVES ? 2 : 1, LOADS = SCALE_BLOCK / 4 / PARTS / SHARED;
  constexpr int AHEAD = 8192;
  const int64_t scale_bytes = form.scale_bytes(), per_group = form.blocks_of_group();
  const CodeTable table(form);
  TileValues<HALVES, OFFSETS, ROWS> values(x, form.above());
  const uint8_t* scales = w;
  int64_t left = 0;  // blocks of the group
  Sums sums[REGISTERS][ROWS];
  for (int i = 0; i < REGISTERS; i++)
    for (int r = 0; r < ROWS; r++) sums[i][r] = no_sums();
  for (int64_t block = 0; block < blocks; block++) {
    if (left == 0) {
      scales = w;
      for (int64_t line = 0; line < PARTS * scale_bytes; line += 64) prefetch_weights<AHEAD>(w + line);
      w += PARTS * scale_bytes;
      left = per_group;
    }
    left--;
    const auto* of_tile = values.next(x);
    for (int at = 0; at < REGISTERS; at += TOGETHER) {
      const uint8_t* codes = w + 4 * at * OUTPUTS;
      const int8_t* fours = x.codes;
#pragma GCC unroll 2
      for (int part = 0; part < PARTS; part++) {
        Dots<KIND> dots[TOGETHER][ROWS];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
          for (int i = 0; i < TOGETHER; i++) dots[i][r].start(of_tile[part].starts + r);
        for (int load = 0; load < LOADS; load++, codes += 4 * PANEL) {
          Weights weights[TOGETHER][SHARED];
#pragma GCC unroll 4
          for (int i = 0; i < TOGETHER; i++) unpack<KIND>(codes + 4 * i * OUTPUTS, table, weights[i]);
          if (TOGETHER == REGISTERS || at % 2 == 0) prefetch_weights<AHEAD>(codes);
          if (TOGETHER == REGISTERS) prefetch_weights<AHEAD>(codes + 64);
#pragma GCC unroll 4
          for (int step = 0; step < SHARED; step++, fours += 4) {
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
              const I four = broadcast4(fours + SCALE_BLOCK * r);
#pragma GCC unroll 4
              for (int i = 0; i < TOGETHER; i++) dots[i][r].add(weights[i][step], four);
            }
          }
        }
#pragma GCC unroll 4
        for (int i = 0; i < TOGETHER; i++) {
          const GroupScales<OFFSETS> group(scales + part * scale_bytes, form, at + i);
          I totals[ROWS];
#pragma GCC unroll 12
          for (int r = 0; r < ROWS; r++) totals[r] = dots[i][r].total();
          if (form.scales == F32_SCALES) {
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) subtract_bias(totals[r]);
          }
#pragma GCC unroll 12
          for (int r = 0; r < ROWS; r++) {
            Sums sum = add_block(sums[at + i][r], totals[r], group.scale, x.scales + r);
            if (OFFSETS) sum = subtract_scaled(sum, group.offset, of_tile[part].of_offsets + r);
            sums[at + i][r] = sum;
          }
        }
      }
    }
    w += form.code_bytes();
    x.next(ROWS);
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    first[r] = join(sums[0][r], sums[HALF - 1][r]);
    second[r] = join(sums[HALF][r], sums[REGISTERS - 1][r]);
  }
}

}  // namespace ryz
