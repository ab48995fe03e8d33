// Compresses a block of the cache to fp8 e4m3 codes with one scale for its keys and one for its values, per head.
// The largest magnitude becomes the largest code; rounding is to nearest, ties to even.
#pragma once
#include "cache.h"

namespace ryz {

constexpr float E4M3_MAX = 448.0f;
constexpr float E4M3_TINY = 1e-30f;  // a block with nothing larger becomes zeros

// x within +-E4M3_MAX (a little more rounds to it), no NaN; without branches, so that loops of it become vectors
inline uint8_t e4m3(float x) {
  uint32_t bits, small;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  float magnitude;
  std::memcpy(&magnitude, &bits, 4);
  // below 2^-6 codes count steps of 2^-9, which are the last bits of numbers from 2^14 on
  const float shifted = magnitude + 16384.0f;
  std::memcpy(&small, &shifted, 4);
  const uint32_t below = small - 0x46800000;
  const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  const uint32_t code = bits < 0x3c800000 ? below : normal;
  return (uint8_t)(sign | (code < 0x7e ? code : 0x7e));
}

// Writes the codes of `count` numbers; returns the scale: NaN if a number is NaN or infinite, so that damage shows.
template <class T>
float compress(const T* from, int64_t count, uint8_t* to) {
  F peak = zero(), damage = zero();
  for (int64_t i = 0; i < count; i += LANES) {
    const F x = load_kv(from + i);
    peak = max(peak, abs(x));
    damage = fma(x, zero(), damage);
  }
  const float top = largest(peak);
  const F inverse = set1(top > E4M3_TINY ? E4M3_MAX / top : 0.0f);
  for (int64_t i = 0; i < count; i += LANES) {
    float scaled[LANES];
    store(scaled, load_kv(from + i) * inverse);
    for (int j = 0; j < LANES; j++) to[i + j] = e4m3(scaled[j]);
  }
  return (top > E4M3_TINY ? top / E4M3_MAX : 0.0f) + sum(damage);
}

template <class T>
void compress_block(const AttentionLayer& l, const ColdBlocks& cold, const FullBlock& full, int64_t head) {
  const FullPrecision<T> window(l);
  const Compressed codes(l, cold);
  const int64_t count = BLOCK * l.width, block = l.sliding ? full.sliding : full.block;
  const int64_t at = block * l.kv_heads + head;
  cold.key_scales[at] = compress(window.key(full.window_slot, head), count, codes.key(block, head));
  cold.value_scales[at] = compress(window.value(full.window_slot, head), count, codes.value(block, head));
}

}  // namespace ryz
