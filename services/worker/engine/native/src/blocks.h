// Copies blocks of the KV cache to and from bytes for the store: a KV head's keys [dim][16] and values [16][dim], one
// layer after another, without the padding of the cache.
#pragma once
#include <cstdint>
#include <cstring>

#include "cache.h"

namespace ryz {

// One layer's blocks, of full precision or compressed.
struct LayerPointers {
  uint8_t* keys;    // [blocks][kv_heads][width][16]
  uint8_t* values;  // [blocks][kv_heads][16][width]
  float *key_scales, *value_scales;  // [blocks][kv_heads]; null if blocks are not compressed
  int64_t item_bytes;  // of a key's or value's component
  int64_t block_bytes;  // from one block to the next
  int64_t sliding;     // its blocks are those of the sliding layers
};

struct CachePointers {
  int64_t num_layers, kv_heads, dim, width;  // width: dim padded to sixteen
  const LayerPointers* layers;
};

// Copies a head of a block from the cache to `bytes`, or the other way round. `sliding` is the block of the sliding
// layers, if these have a pool of their own; below 0 they are left out.
template <bool OUT>
void copy_head(const CachePointers& c, int64_t block, int64_t sliding, int64_t head, uint8_t* bytes) {
  const auto move = [&](void* cached, int64_t count) {
    if (OUT) {
      std::memcpy(bytes, cached, count);
    } else {
      std::memcpy(cached, bytes, count);
    }
    bytes += count;
  };
  for (const LayerPointers* l = c.layers; l < c.layers + c.num_layers; l++) {
    const int64_t row = c.dim * l->item_bytes;
    if (l->sliding && sliding < 0) {
      bytes += 2 * BLOCK * row + (l->key_scales ? 2 * sizeof(float) : 0);
      continue;
    }
    const int64_t number = l->sliding ? sliding : block, at = number * c.kv_heads + head;
    const int64_t padded = number * l->block_bytes + head * BLOCK * c.width * l->item_bytes;
    if (l->key_scales) move(l->key_scales + at, sizeof(float));
    move(l->keys + padded, BLOCK * row);
    if (l->value_scales) move(l->value_scales + at, sizeof(float));
    if (c.dim == c.width) {
      move(l->values + padded, BLOCK * row);
    } else {
      for (int64_t token = 0; token < BLOCK; token++) move(l->values + padded + token * c.width * l->item_bytes, row);
    }
  }
}

}  // namespace ryz
