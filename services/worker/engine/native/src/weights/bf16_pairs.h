// Weights and activations in bf16, multiplied in pairs of inputs: a panel holds, for each two inputs, a word of 32 bits for
// each of its outputs, the even input in the low half. Activations lie in tiles: sixteen inputs of each row after the others.
// The sums are those of the instruction `vdpbf16ps` (Intel SDM, volume 2): for each pair the product of the odd inputs is
// added to the fp32 sum, then that of the even ones, each rounded once, with denormal numbers read and written as zeros.
// Where the processor does not have it, multiply-adds in the same order give the same bits. It is asked when the library is
// loaded: one instruction needs no library of its own.
#pragma once
#include "byte_blocks.h"

namespace ryz {

constexpr int MAX_PAIR_ROWS = RYZ_AVX512 ? 12 : 3;
constexpr int64_t PAIR_BYTES = 4 * PANEL;

inline int64_t pair_panel_bytes(int64_t k) { return (k + 1) / 2 * PAIR_BYTES; }

inline bool has_bf16_instruction() {
  __builtin_cpu_init();
  return RYZ_AVX512 && __builtin_cpu_supports("avx512bf16");
}
// A tile holds a word for each pair with the instruction, and one for each input, a float, without. Tests switch it off.
// Static: an inline variable would be one for all libraries of a process.
static bool bf16_instruction = has_bf16_instruction();
inline int pair_words() { return bf16_instruction ? LANES / 2 : LANES; }  // of sixteen inputs of a row

// While there is one, this thread reads and writes denormal numbers as zeros, as `vdpbf16ps` always does.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | DENORMALS_ARE_ZEROS);
    asm volatile("" ::: "memory");  // no operation on what is in memory moves out of the object's life
  }
  ~FlushDenormals() {
    asm volatile("" ::: "memory");
    _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned DENORMALS_ARE_ZEROS = 0x40;
  unsigned before_;
};

// To the nearest bf16, of two the even one; NaN stays NaN. The halves are in the upper 16 bits of each lane.
#if RYZ_AVX512
inline __m512i bf16_bits(F x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}
inline F odd_inputs(const uint8_t* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)))};
}
inline F even_inputs(const uint8_t* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
#else
inline __m256i bf16_bits_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline __m256 odd_inputs_half(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i*)p), _mm256_set1_epi32((int)0xffff0000)));
}
inline __m256 even_inputs_half(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)p), 16));
}
inline F odd_inputs(const uint8_t* p) { return {odd_inputs_half(p), odd_inputs_half(p + 32)}; }
inline F even_inputs(const uint8_t* p) { return {even_inputs_half(p), even_inputs_half(p + 32)}; }
#endif

// Rounds a row into its tile of `rows` rows; to: its first word.
inline void round_row(const float* from, int64_t width, int64_t rows, uint32_t* to) {
  for (int64_t i = 0; i < width; i += LANES, to += pair_words() * rows) {
#if RYZ_AVX512
    const __m512i bits = bf16_bits(load(from + i));
    if (bf16_instruction) {
      _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
    } else {
      _mm512_storeu_si512(to, _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)));
    }
#else
    const F x = load(from + i);
    const __m256i mask = _mm256_set1_epi32((int)0xffff0000);
    _mm256_storeu_si256((__m256i*)to, _mm256_and_si256(bf16_bits_half(x.a), mask));
    _mm256_storeu_si256((__m256i*)(to + 8), _mm256_and_si256(bf16_bits_half(x.b), mask));
#endif
  }
}

constexpr int PAIRS_AHEAD = 4096;  // bytes to prefetch from, by measurement

#if RYZ_AVX512
template <int ROWS>
[[gnu::target("avx512bf16")]] void multiply_by_instruction(const uint32_t* x, const uint8_t* w, int64_t pairs, F* first,
                                                           F* second) {
  __m512 low[ROWS], high[ROWS];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t begin = 0; begin < pairs; begin += LANES / 2, x += LANES / 2 * ROWS) {
    const int64_t count = std::min<int64_t>(LANES / 2, pairs - begin);
    for (int64_t i = 0; i < count; i++, w += PAIR_BYTES) {
      prefetch_weights<PAIRS_AHEAD>(w);
      prefetch_weights<PAIRS_AHEAD>(w + 64);
      const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 64);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)x[LANES / 2 * r + i]);
        low[r] = _mm512_dpbf16_ps(low[r], w0, pair);
        high[r] = _mm512_dpbf16_ps(high[r], w1, pair);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) first[r].v = low[r], second[r].v = high[r];
}
#endif

template <int ROWS>
inline void multiply_by_fma(const uint32_t* x, const uint8_t* w, int64_t pairs, F* first, F* second) {
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) first[r] = second[r] = zero();
  const auto add = [&](F w0, F w1, const uint32_t* inputs) {
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
      const F xr = set1(bits_to_float((int32_t)inputs[LANES * r]));
      first[r] = fma(xr, w0, first[r]);
      second[r] = fma(xr, w1, second[r]);
    }
  };
  for (int64_t begin = 0; begin < pairs; begin += LANES / 2, x += LANES * ROWS) {
    const int64_t count = std::min<int64_t>(LANES / 2, pairs - begin);
    for (int64_t i = 0; i < count; i++, w += PAIR_BYTES) {
      prefetch_weights<PAIRS_AHEAD>(w);
      prefetch_weights<PAIRS_AHEAD>(w + 64);
      add(odd_inputs(w), odd_inputs(w + 64), x + 2 * i + 1);
      add(even_inputs(w), even_inputs(w + 64), x + 2 * i);
    }
  }
}

// The products of ROWS rows with a panel's outputs; x: the tile.
template <int ROWS>
inline void multiply_pairs(const uint32_t* x, const uint8_t* w, int64_t inputs, F* first, F* second) {
  const int64_t pairs = (inputs + 1) / 2;
#if RYZ_AVX512
  if (bf16_instruction) return multiply_by_instruction<ROWS>(x, w, pairs, first, second);
#endif
  multiply_by_fma<ROWS>(x, w, pairs, first, second);
}

}  // namespace ryz
