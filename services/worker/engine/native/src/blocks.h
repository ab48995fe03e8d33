// Blocks of the KV cache as bytes for the store: a KV head's keys [dim][16] and values [16][dim] of all layers, one
// layer after another, without the padding of the cache. Both directions are plain copies.
#pragma once
#include <cstdint>
#include <cstring>

#include "cache.h"

namespace ryz {

// One layer's blocks; cache.py has the same structure.
struct LayerBlocks {
  uint8_t* keys;    // [blocks][kv_heads][width][16]
  uint8_t* values;  // [blocks][kv_heads][16][width]
  float *key_scales, *value_scales;  // [blocks][kv_heads], or null: keys and values are floats
  int64_t item;     // bytes of a key's or value's component
};

struct CacheBlocks {
  int64_t layers, kv_heads, dim, width;
  const LayerBlocks* layer;
};

// Copies a head of a block from the cache to `bytes`, or the other way round.
template <bool OUT>
void copy_head(const CacheBlocks& c, int64_t block, int64_t head, uint8_t* bytes) {
  const auto move = [&](void* cached, int64_t count) {
    if (OUT) {
      std::memcpy(bytes, cached, count);
    } else {
      std::memcpy(cached, bytes, count);
    }
    bytes += count;
  };
  const int64_t at = block * c.kv_heads + head;
  for (const LayerBlocks* l = c.layer; l < c.layer + c.layers; l++) {
    const int64_t padded = at * BLOCK * c.width * l->item, row = c.dim * l->item;
    if (l->key_scales) move(l->key_scales + at, sizeof(float));
    move(l->keys + padded, BLOCK * row);
    if (l->value_scales) move(l->value_scales + at, sizeof(float));
    if (c.dim == c.width) {
      move(l->values + padded, BLOCK * row);
    } else {
      for (int64_t token = 0; token < BLOCK; token++) move(l->values + padded + token * c.width * l->item, row);
    }
  }
}

}  // namespace ryz
