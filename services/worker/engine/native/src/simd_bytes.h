// Products of bytes and what becomes of them, for a register of outputs: sixteen with AVX-512, eight with AVX2.
#pragma once
#include "simd.h"

namespace ryz {

// Integer sums of bytes begin with the bits of this float, 1.5 * 2^23. A sum below 2^22 then is the float SUM_BIAS + sum,
// bit for bit, so that a multiply-add takes the place of a conversion.
constexpr float SUM_BIAS = 12582912.0f;
constexpr int32_t SUM_BIAS_BITS = 0x4b400000;

#if RYZ_AVX512

constexpr int OUTPUTS = 16;
// the instruction multiplies unsigned by signed bytes, so weights are stored with 128 added
constexpr int WEIGHT_OFFSET = 128;
struct I {
  __m512i v;
};
struct Weights {
  __m512i v;
};
// what the sums of a row and block begin with, from its 32 codes
inline int32_t start_of(const int8_t* codes) {
  const __m256i moved = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)codes), _mm256_set1_epi8(-128));
  const __m256i parts = _mm256_sad_epu8(moved, _mm256_setzero_si256());
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
  const int32_t sum = (int32_t)(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1)) - 32 * 128;
  return SUM_BIAS_BITS - WEIGHT_OFFSET * sum;
}
inline I start_sum(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
inline Weights load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline I broadcast4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {_mm512_set1_epi32(four)};
}
// not the intrinsic: compilers copy the sum to another register before each use of it
inline I dot4(I acc, Weights w, I x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(w.v), "v"(x.v));
  return acc;
}
struct Sums {
  __m512 v;
};
struct Scales {
  __m512 scale, offset;
};
inline Sums no_sums() { return {_mm512_setzero_ps()}; }
inline Scales load_scales(const uint16_t* p) {
  const __m512 scale = load_f16(p).v;
  return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(SUM_BIAS))};
}
inline Sums add_block(Sums sums, I dots, Scales w, const float* x_scale) {
  const __m512 scaled = _mm512_fmsub_ps(_mm512_castsi512_ps(dots.v), w.scale, w.offset);
  return {_mm512_fmadd_ps(scaled, _mm512_set1_ps(*x_scale), sums.v)};
}
inline F join(Sums low, Sums) { return {low.v}; }
// sixteen floats of at most 127, rounded to the nearest integer, as bytes
inline void store_codes(int8_t* p, F a) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

#else

constexpr int OUTPUTS = 8;
constexpr int WEIGHT_OFFSET = 0;
struct I {
  __m256i v;
};
// Signed by signed bytes: |w| times x with the sign of w. Pairs of products are added in 16 bits, which holds
// because no byte is below -127.
struct Weights {
  __m256i v, magnitude;
};
inline int32_t start_of(const int8_t*) { return SUM_BIAS_BITS; }
inline I start_sum(const int32_t*) { return {_mm256_set1_epi32(SUM_BIAS_BITS)}; }
inline Weights load_codes(const uint8_t* p) {
  const __m256i w = _mm256_loadu_si256((const __m256i*)p);
  return {w, _mm256_abs_epi8(w)};
}
inline I broadcast4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {_mm256_set1_epi32(four)};
}
inline I dot4(I acc, Weights w, I x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x.v, w.v));
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
struct Sums {
  __m256 v;
};
struct Scales {
  __m256 scale, offset;
};
inline Sums no_sums() { return {_mm256_setzero_ps()}; }
inline Scales load_scales(const uint16_t* p) {
  const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  return {scale, _mm256_mul_ps(scale, _mm256_set1_ps(SUM_BIAS))};
}
inline Sums add_block(Sums sums, I dots, Scales w, const float* x_scale) {
  const __m256 scaled = _mm256_fmsub_ps(_mm256_castsi256_ps(dots.v), w.scale, w.offset);
  return {_mm256_fmadd_ps(scaled, _mm256_set1_ps(*x_scale), sums.v)};
}
inline F join(Sums low, Sums high) { return {low.v, high.v}; }
inline void store_codes(int8_t* p, F x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

#endif

}  // namespace ryz
