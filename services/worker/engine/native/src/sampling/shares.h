// The shares of a row's tokens, exp((score - peak) / temperature), and their weights in whole units. Each operation is
// one rounded operation in fp32, the same as in `engine/sampling/shares.py`, so both get the same bits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../simd.h"

namespace ryz {

constexpr float UNIT = 1099511627776.0f;  // 2^40, the weight of the likeliest token
constexpr float FAINTEST = -86.0f;        // a token whose exponent is below this has a share of 0

struct Shares {
  F peak, inverse;  // of the temperature

  F of(F score) const {
    const F x = (score - peak) * inverse;
    const F y = max(x, set1(FAINTEST));
    const F n = round(y * set1(1.44269504088896341f));
    const F r = (y - n * set1(0.693359375f)) - n * set1(-2.12194440e-4f);
    F p = set1(1.0f / 720.0f);
    p = p * r + set1(1.0f / 120.0f);
    p = p * r + set1(1.0f / 24.0f);
    p = p * r + set1(1.0f / 6.0f);
    p = p * r + set1(0.5f);
    p = p * r + set1(1.0f);
    p = p * r + set1(1.0f);
    return zero_below(p * pow2(n), x, FAINTEST);
  }
};

// A weight: whole, in units of 1 / UNIT, rounded down.
inline int64_t weight_of(float share) { return (int64_t)(share * UNIT); }

// Sums of weights, in float64: whole numbers up to 2^40, of which 2^12 can be added exactly.
#if RYZ_AVX512
struct Mass {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void add(F share) {
    const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(share.v, _mm512_set1_ps(UNIT)),
                                              _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(whole)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(whole, 1)));
  }
  int64_t total() const { return (int64_t)_mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};
#else
struct Mass {
  __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  void add_half(__m256 share) {
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(share, _mm256_set1_ps(UNIT)),
                                         _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    sums[0] = _mm256_add_pd(sums[0], _mm256_cvtps_pd(_mm256_castps256_ps128(whole)));
    sums[1] = _mm256_add_pd(sums[1], _mm256_cvtps_pd(_mm256_extractf128_ps(whole, 1)));
  }
  void add(F share) {
    add_half(share.a);
    add_half(share.b);
  }
  int64_t total() const {
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(sums[0], sums[1]));
    return (int64_t)((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
  }
};
#endif

}  // namespace ryz
