// Sixteen floats, or sixteen 32-bit integers, at a time: AVX-512 where the compiler's target has it, else two
// AVX2 registers. Everything else is written on top of these few operations, and the order of its additions
// never depends on how many rows a batch has: that is what makes results the same in any batch.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define RYZ_AVX512 1
#define RYZ_AVXVNNI 0
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define RYZ_AVX512 0
#ifdef __AVXVNNI__
#define RYZ_AVXVNNI 1 // sums of four products of bytes in one instruction, on registers of AVX2
#else
#define RYZ_AVXVNNI 0
#endif
#else
#error "needs AVX2 with FMA and F16C, or AVX-512 with VNNI"
#endif

namespace ryz {

constexpr int LANES = 16;
constexpr float E4M3_UNIT = 256.0f;
inline float bits_to_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

#if RYZ_AVX512

struct F {
  __m512 v;
};
inline F zero() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for integral n in [-126, 127]
inline F pow2(F n) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// lanes outside first <= base + lane < end become -infinity
inline F keep(F a, int base, int first, int end) {
  const __m512i at = _mm512_add_epi32(_mm512_set1_epi32(base), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7,
                                                                                6, 5, 4, 3, 2, 1, 0));
  const __mmask16 in = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(first)) &
                       _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(end));
  return {_mm512_mask_blend_ps(in, _mm512_set1_ps(-__builtin_inff()), a.v)};
}
inline F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline F load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
// fp8 e4m3 (Micikevicius et al., 2022) in units of E4M3_UNIT: its bits are those of a half whose exponent counts from
// another zero, so sign and magnitude only move; there are no NaNs here
inline F load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff)))};
}
inline void store_f16(uint16_t* p, F a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline float sum(F a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
inline float largest(F a) { return _mm512_reduce_max_ps(a.v); }
// a where x >= limit or x is NaN, else 0
inline F zero_below(F a, F x, float limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), a.v)};
}

inline float largest_magnitude(F a, F b) {
  const __m512i sign = _mm512_set1_epi32(INT32_MAX);
  return bits_to_float(_mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), sign),
                                                                _mm512_and_si512(_mm512_castps_si512(b.v), sign))));
}

#else

struct F {
  __m256 a, b;
};
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F round(F x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, nearest), _mm256_round_ps(x.b, nearest)};
}
inline __m256 pow2_half(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F pow2(F n) { return {pow2_half(n.a), pow2_half(n.b)}; }
inline __m256 keep_half(__m256 x, int base, int first, int end) {
  const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(first - 1)),
                                      _mm256_cmpgt_epi32(_mm256_set1_epi32(end), at));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(in));
}
inline F keep(F x, int base, int first, int end) {
  return {keep_half(x.a, base, first, end), keep_half(x.b, base + 8, first, end)};
}
inline __m256 load_bf16_half(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline F load_bf16(const uint16_t* p) { return {load_bf16_half(p), load_bf16_half(p + 8)}; }
inline F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline __m256 load_e4m3_half(const uint8_t* p) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbfff)));
}
inline F load_e4m3(const uint8_t* p) { return {load_e4m3_half(p), load_e4m3_half(p + 8)}; }
inline void store_f16(uint16_t* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline float sum(F x) {
  const __m256 half = _mm256_add_ps(x.a, x.b);
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
inline float largest(F x) {
  const __m256 half = _mm256_max_ps(x.a, x.b);
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
inline __m256 zero_below_half(__m256 a, __m256 x, float limit) {
  return _mm256_and_ps(a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ));
}
inline F zero_below(F a, F x, float limit) {
  return {zero_below_half(a.a, x.a, limit), zero_below_half(a.b, x.b, limit)};
}

inline __m256i magnitude_bits(__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(INT32_MAX)); }
inline float largest_magnitude(F x, F y) {
  const __m256i all = _mm256_max_epi32(_mm256_max_epi32(magnitude_bits(x.a), magnitude_bits(x.b)),
                                       _mm256_max_epi32(magnitude_bits(y.a), magnitude_bits(y.b)));
  __m128i top = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
  return bits_to_float(_mm_cvtsi128_si32(top));
}

#endif

// e^x to about 1e-7 of its value (range reduction by ln 2 in two parts, then a polynomial of degree 6);
// 0 below -87, so also for -infinity; NaN stays NaN.
inline F exp(F x) {
  const F bounded = max(set1(-87.0f), min(set1(88.0f), x));  // in this order a NaN survives
  const F n = round(bounded * set1(1.44269504088896341f));
  F r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.0f / 720.0f);
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_below(p * pow2(n), x, -87.0f);
}

}  // namespace ryz
