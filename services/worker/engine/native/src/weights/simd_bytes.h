// Products of bytes and what becomes of them, for a register of outputs: sixteen with AVX-512, eight with AVX2.
#pragma once
#include "../simd.h"

namespace ryz {

// Integer sums of bytes begin with the bits of this float, 1.5 * 2^23. A sum below 2^22 then is the float SUM_BIAS + sum,
// bit for bit, so that a multiply-add takes the place of a conversion.
constexpr float SUM_BIAS = 12582912.0f;
constexpr int32_t SUM_BIAS_BITS = 0x4b400000;

// VPDPBUSD multiplies unsigned by signed bytes, so weights for it are stored with 128 added
constexpr int WEIGHT_OFFSET = RYZ_AVX512 || RYZ_AVXVNNI ? 128 : 0;

// What the sums of products with these 32 codes begin with.
inline int32_t begin_of_sums(__m256i codes) {
  if constexpr (!WEIGHT_OFFSET) return SUM_BIAS_BITS;
  const __m256i parts = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
  const int32_t sum = (int32_t)(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1)) - 32 * 128;
  return SUM_BIAS_BITS - WEIGHT_OFFSET * sum;
}

#if RYZ_AVX512

constexpr int OUTPUTS = 16;
struct I {
  __m512i v;
};
struct Weights {
  __m512i v;
};
// 32 floats of at most 127, rounded to the nearest integers, as bytes; returns what the sums of their products begin with
inline int32_t store_codes(int8_t* p, F low, F high) {
  const __m128i first = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(low.v));
  const __m128i second = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(high.v));
  const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  _mm256_storeu_si256((__m256i*)p, codes);
  return begin_of_sums(codes);
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

#else

constexpr int OUTPUTS = 8;
struct I {
  __m256i v;
};
#if RYZ_AVXVNNI
struct Weights {
  __m256i v;
};
inline Weights weights_of(__m256i codes) { return {codes}; }
inline I start_sum(const int32_t* p) { return {_mm256_set1_epi32(*p)}; }
// not the intrinsic: see above
inline I dot4(I acc, Weights w, I x) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.v) : "x"(w.v), "x"(x.v));
  return acc;
}
#else
// Signed by signed bytes: |w| times x with the sign of w. Pairs of products are added in 16 bits, which holds
// because no byte is below -127.
struct Weights {
  __m256i v, magnitude;
};
inline Weights weights_of(__m256i codes) { return {codes, _mm256_abs_epi8(codes)}; }
inline I start_sum(const int32_t*) { return {_mm256_set1_epi32(SUM_BIAS_BITS)}; }
inline I dot4(I acc, Weights w, I x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x.v, w.v));
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
#endif
inline Weights load_codes(const uint8_t* p) { return weights_of(_mm256_loadu_si256((const __m256i*)p)); }
inline I broadcast4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {_mm256_set1_epi32(four)};
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
inline int32_t store_codes(int8_t* p, F low, F high) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(low.a), _mm256_cvtps_epi32(low.b));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(high.a), _mm256_cvtps_epi32(high.b));
  // packing goes by halves of a register, so the groups of four bytes have to be put in their order
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256((__m256i*)p, codes);
  return begin_of_sums(codes);
}

#endif

}  // namespace ryz
