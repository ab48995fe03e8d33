// Norms, clipping and rotation of queries and keys, and storing of keys and values in the cache.
#pragma once
#include <cstring>

#include "../cache.h"
#include "../rows/norms.h"

namespace ryz {

constexpr int MAX_DIM = 256;  // of a head

struct Rotary {
  const float* cos, *sin;  // [positions, half]
  int64_t half;            // half of the dimensions that are rotated, the first ones; 0: none
  NormRule query_norm, key_norm;  // of each head by itself
  int64_t norm_stride;     // from one head's weights to the next one's; 0: all have the same
  float clip;              // queries, keys and values are clipped to +-clip; 0: they are not
};

// Rotary position embedding in the half-split layout: dimensions i and i + half are rotated together.
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// Prepares one token's queries and keys in place, and stores its key and value.
template <class T>
void rotate_and_store(const AttentionLayer& layer, const Rotary& r, float* qkv, int64_t position, int64_t slot) {
  const float *cos = r.cos + position * r.half, *sin = r.sin + position * r.half;
  alignas(64) float key[MAX_DIM] = {0};  // zeros beyond dim, always
  for (int64_t head = 0; head < layer.heads + layer.kv_heads; head++) {
    float* x = qkv + head * layer.dim;
    NormRule norm = head < layer.heads ? r.query_norm : r.key_norm;
    if (norm.kind) {
      const int64_t own = (head < layer.heads ? head : head - layer.heads) * r.norm_stride;
      norm.weight += own;
      if (norm.bias) norm.bias += own;
      std::memcpy(key, x, layer.dim * sizeof(float));
      normalize(norm, key, layer.dim, layer.width, key);
      std::memcpy(x, key, layer.dim * sizeof(float));
      std::memset(key + layer.dim, 0, (layer.width - layer.dim) * sizeof(float));
    }
  }
  if (r.clip > 0) {
    const int64_t count = (layer.heads + 2 * layer.kv_heads) * layer.dim;
    for (int64_t i = 0; i < count; i++) qkv[i] = qkv[i] > r.clip ? r.clip : qkv[i] < -r.clip ? -r.clip : qkv[i];
  }
  if (r.half) {
    for (int64_t head = 0; head < layer.heads + layer.kv_heads; head++) rotate(qkv + head * layer.dim, cos, sin, r.half);
  }
  const FullPrecision<T> cache(layer);
  const int64_t block = slot / BLOCK, offset = slot % BLOCK;
  alignas(64) T stored[MAX_DIM];
  for (int64_t head = 0; head < layer.kv_heads; head++) {
    const float* k = qkv + (layer.heads + head) * layer.dim;
    std::memcpy(key, k, layer.dim * sizeof(float));
    for (int64_t d = 0; d < layer.width; d += LANES) store_kv(stored + d, load(key + d));
    T* keys = cache.key(block, head) + offset;
    for (int64_t d = 0; d < layer.dim; d++) keys[d * BLOCK] = stored[d];
    std::memcpy(key, k + layer.kv_heads * layer.dim, layer.dim * sizeof(float));
    T* values = cache.value(block, head) + offset * layer.width;
    for (int64_t d = 0; d < layer.width; d += LANES) store_kv(values + d, load(key + d));
  }
}

}  // namespace ryz
