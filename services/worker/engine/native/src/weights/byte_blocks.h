// Weights and activations as bytes with a scale for each block of 32 inputs: `value = code * scale`, codes from -127 to 127.
// A panel holds block after block: for each four inputs the codes of its outputs, four bytes each, then their scales as
// halves. Activations lie in tiles of rows in the same order; their scales are floats.
// For each block exact integer products are added up; the sums become floats, are scaled and added to the result, block
// after block.
#pragma once
#include <algorithm>

#include "simd_bytes.h"

namespace ryz {

constexpr int PANEL = 2 * LANES;  // outputs
constexpr int SCALE_BLOCK = 32;   // inputs
constexpr int HALF_BLOCK = 16;    // inputs of the smallest group of codes
constexpr int MAX_BYTE_ROWS = 8;  // of a tile
// Measured: few rows are fastest in one tile. With many, the sums of six rows stay in AVX-512's registers.
constexpr int most_byte_rows(int64_t rows) { return RYZ_AVX512 && rows > MAX_BYTE_ROWS ? 6 : MAX_BYTE_ROWS; }
constexpr int64_t CODE_BYTES = SCALE_BLOCK * PANEL;                     // of a block
constexpr int64_t BLOCK_BYTES = CODE_BYTES + PANEL * sizeof(uint16_t);  // with scales

inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t num_blocks(int64_t inputs) { return (inputs + SCALE_BLOCK - 1) / SCALE_BLOCK; }

// Rows of codes; those of a tile lie side by side.
struct ByteRows {
  const int8_t* codes;    // [block][row][32]
  const float* scales;    // [block][row]
  const int32_t* starts;  // [block][row], see `store_codes`
};

// Prefetches from later pages or panels: the processor's own prefetcher stops at the end of a page.
template <int BYTES>
inline void prefetch_weights(const uint8_t* w) {
  _mm_prefetch((const char*)w + BYTES, _MM_HINT_T0);
}

// The products of ROWS rows with a panel's outputs.
template <int ROWS>
inline void multiply_blocks(ByteRows x, const uint8_t* w, int64_t blocks, F* first, F* second) {
  constexpr int HALF = LANES / OUTPUTS, REGISTERS = 2 * HALF;  // of a row's sums
  // Of them at a time. A byte product waits for the one before it in its sum: few rows have few sums at a time.
  constexpr int TOGETHER = RYZ_AVX512 || (RYZ_AVXVNNI && ROWS <= 3) ? REGISTERS : 1;
  // measured: few rows wait for memory and want one stream of prefetches; more rows gain from two, 512 bytes apart
  constexpr bool FEW = ROWS <= 6;
  constexpr int AHEAD = 8192;
  Sums sums[REGISTERS][ROWS];
  for (int i = 0; i < REGISTERS; i++)
    for (int r = 0; r < ROWS; r++) sums[i][r] = no_sums();
  for (int64_t block = 0; block < blocks; block++, w += BLOCK_BYTES) {
    for (int at = 0; at < REGISTERS; at += TOGETHER) {
      I dots[TOGETHER][ROWS];
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) dots[i][r] = start_sum(x.starts + r);
      for (int step = 0; step < SCALE_BLOCK / 4; step++) {
        const uint8_t* codes = w + 4 * (step * PANEL + at * OUTPUTS);
        Weights weights[TOGETHER];
#pragma GCC unroll 4
        for (int i = 0; i < TOGETHER; i++) weights[i] = load_codes(codes + 4 * i * OUTPUTS);
        if (FEW && TOGETHER == REGISTERS) {
          prefetch_weights<AHEAD>(codes);
          prefetch_weights<AHEAD>(codes + 64);
        } else {
          if (TOGETHER == REGISTERS || at < 2) prefetch_weights<AHEAD>(w + 64 * (step + 8 * at));
          if (TOGETHER == REGISTERS) prefetch_weights<AHEAD>(w + 64 * (step + 8));
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
          const I four = broadcast4(x.codes + SCALE_BLOCK * r + 4 * step);
#pragma GCC unroll 4
          for (int i = 0; i < TOGETHER; i++) dots[i][r] = dot4(dots[i][r], weights[i], four);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++) {
        const Scales scales = load_scales((const uint16_t*)(w + CODE_BYTES) + (at + i) * OUTPUTS);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) sums[at + i][r] = add_block(sums[at + i][r], dots[i][r], scales, x.scales + r);
      }
    }
    prefetch_weights<AHEAD>(w + CODE_BYTES);
    x.codes += SCALE_BLOCK * ROWS;
    x.scales += ROWS;
    x.starts += ROWS;
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    first[r] = join(sums[0][r], sums[HALF - 1][r]);
    second[r] = join(sums[HALF][r], sums[REGISTERS - 1][r]);
  }
}

constexpr float TINY_PEAK = 1e-30f;  // a block with nothing larger becomes zeros

// The sums of both halves of 32 bytes.
inline void add_halves(const int8_t* codes, int32_t* first, int32_t* second) {
  const __m256i bytes = _mm256_loadu_si256((const __m256i*)codes);
  const __m256i parts = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i halves = _mm256_add_epi64(parts, _mm256_unpackhi_epi64(parts, parts));
  *first = _mm256_cvtsi256_si32(halves) - HALF_BLOCK * 128;
  *second = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - HALF_BLOCK * 128;
}

// Writes the codes of 32 activations and returns their scale; the largest becomes 127. A NaN or infinite value makes the
// scale NaN, so that damage shows.
inline float quantize_block(F low, F high, int8_t* codes, int32_t* start) {
  const float top = largest_magnitude(low, high);
  const F inverse = set1(top > TINY_PEAK ? 127.0f / top : 0.0f);
  *start = store_codes(codes, low * inverse, high * inverse);
  return top / 127.0f + 0.0f * top;
}

}  // namespace ryz
