// The paged KV cache and what a step touches of it. Of each block a KV head's keys lie as [head_dim][16 tokens], its
// values as [16 tokens][head_dim]: as floats, as halves, or compressed to fp8 codes with scales. A layer with compressed
// blocks has *places* beside them, where the last blocks of a sequence lie uncompressed.
#pragma once
#include <algorithm>

#include "simd.h"

namespace ryz {

constexpr int BLOCK = 16;  // tokens per KV block

struct Span {  // consecutive tokens of one sequence
  int32_t begin, count;  // rows of the batch
  int32_t start;         // position of the first
  int32_t table;         // where its blocks begin in `tables`
};

struct Zone {  // the last blocks of a span's sequence, as they lie uncompressed beside the compressed ones
  int32_t first;  // the first of them, counted in the sequence
  int32_t table;  // where their places begin in `places`
};

struct Full {  // a block that the step fills, and where it lies uncompressed
  int32_t block, place;
};

struct Batch {
  int32_t rows, spans, samples, fulls;
  const int32_t* token_ids;    // [rows]
  const int32_t* positions;    // [rows]
  const int32_t* slots;        // [rows], block * 16 + offset
  const Span* span;            // [spans]
  const int32_t* tables;       // block ids of all spans
  const int32_t* sample_rows;  // [samples]
  // for layers with compressed blocks:
  const int32_t* zone_slots;  // [rows], place * 16 + offset
  const Zone* zone;           // [spans]
  const int32_t* places;      // of all zones
  const Full* full;           // [fulls]
};

struct Heads {
  int64_t heads, kv_heads, dim, width;  // width: dim padded to sixteen
  void* keys;      // [blocks][kv_heads][width][16]
  void* values;    // [blocks][kv_heads][16][width]
  int64_t window;  // positions a token sees, itself included; 0: all
  float scale;
};

inline F load_kv(const float* p) { return load(p); }
inline F load_kv(const uint16_t* p) { return load_f16(p); }
inline F load_kv(const uint8_t* p) { return load_e4m3(p); }
inline void store_kv(float* p, F x) { store(p, x); }
// the largest number of the half type stands for what is beyond it
inline void store_kv(uint16_t* p, F x) { store_f16(p, max(set1(-65504.0f), min(set1(65504.0f), x))); }

// One layer's cache, of floats or of half-precision floats.
template <class T>
struct Cache {
  static constexpr bool SCALED = false;
  T *keys, *values;
  int64_t kv_heads, width;

  explicit Cache(const Heads& h) : keys((T*)h.keys), values((T*)h.values), kv_heads(h.kv_heads), width(h.width) {}
  T* key(int64_t block, int64_t head) const { return keys + (block * kv_heads + head) * BLOCK * width; }
  T* value(int64_t block, int64_t head) const { return values + (block * kv_heads + head) * BLOCK * width; }
};

// The compressed blocks of a layer: fp8 codes, and a scale for the keys and for the values of each block and head.
struct Cold {
  uint8_t *keys, *values;            // as in `Heads`
  float *key_scales, *value_scales;  // [blocks][kv_heads]
  int64_t hot;  // a query reads this many blocks before its own uncompressed
};

struct Codes {
  static constexpr bool SCALED = true;
  Cold cold;
  int64_t kv_heads, width;

  Codes(const Heads& h, const Cold& cold) : cold(cold), kv_heads(h.kv_heads), width(h.width) {}
  uint8_t* key(int64_t block, int64_t head) const { return cold.keys + (block * kv_heads + head) * BLOCK * width; }
  uint8_t* value(int64_t block, int64_t head) const { return cold.values + (block * kv_heads + head) * BLOCK * width; }
  F key_scale(int64_t block, int64_t head) const { return set1(E4M3_UNIT * cold.key_scales[block * kv_heads + head]); }
  F value_scale(int64_t block, int64_t head) const { return set1(E4M3_UNIT * cold.value_scales[block * kv_heads + head]); }
};

// What a task reads of a sequence: runs of blocks of one kind, by their number in the sequence.
template <class T>
struct Whole {
  Cache<T> cache;
  const int32_t* table;

  template <class Use>
  void runs(int64_t begin, int64_t end, Use use) const {
    use(cache, table, begin, end);
  }
};

template <class T>
struct Zoned {
  Cache<T> cache;  // of places
  Codes codes;
  const int32_t *table, *places;
  int64_t border;  // blocks before it are read compressed

  template <class Use>
  void runs(int64_t begin, int64_t end, Use use) const {
    const int64_t middle = std::min(std::max(begin, border), end);
    if (begin < middle) use(codes, table, begin, middle);
    if (middle < end) use(cache, places, middle, end);
  }
};

}  // namespace ryz
