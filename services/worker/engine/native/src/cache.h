// The paged KV cache, and the tokens and blocks of it that a forward pass works on. Of each block a KV head's keys lie as
// [head_dim][16 tokens], its values as [16 tokens][head_dim]: as floats, as halves, or compressed to fp8 codes with
// scales. A layer with compressed blocks has a recent window beside them: *window slots*, each with one block of full
// precision.
#pragma once
#include <algorithm>

#include "simd.h"

namespace ryz {

constexpr int BLOCK = 16;  // tokens per KV block

struct Span {  // consecutive tokens of one sequence
  int32_t begin, count;  // rows of the batch
  int32_t start;         // position of the first
  int32_t table;         // where its blocks begin in `block_tables`
};

struct WindowSpan {  // the recent window of a span's sequence
  int32_t first;     // its first block, counted in the sequence
  int32_t table;     // where its slots begin in `window_tables`
};

// A block that the pass fills: its number, that of the sliding layers' if these have a pool of their own, and the window
// slot that has it in full precision.
struct FullBlock {
  int32_t block, sliding, window_slot;
};

struct ForwardBatch {
  int32_t num_rows, num_spans, num_samples, num_full_blocks;
  const int32_t* token_ids;     // [rows]
  const int32_t* positions;     // [rows]
  const int32_t* slot_mapping;  // [rows], block * 16 + offset
  const Span* spans;
  const int32_t* block_tables;  // of all spans
  const int32_t* sample_rows;   // [samples]
  const int32_t* sliding_slot_mapping;  // the same two of the sliding layers' blocks, if these have a pool of their own
  const int32_t* sliding_tables;
  // for layers with compressed blocks:
  const int32_t* window_slot_mapping;  // [rows], window slot * 16 + offset
  const WindowSpan* window_spans;      // [spans]
  const int32_t* window_tables;        // of all spans
  const FullBlock* full_blocks;
  // slots of adapters, below 0 for none; null if no row has one:
  const int32_t* row_adapters;     // [rows]
  const int32_t* sample_adapters;  // [samples]
};

// Which pages, which are blocks, a token reads beside its own; see `attention/pages.h`.
struct PageChoice {
  int64_t recent;  // how many before its own; 0: every page is read
  int64_t sinks;   // how many of the first ones
  int64_t stride;  // and those in between whose number is a multiple of it; 0: none
};

// A layer's heads on this rank and their cache.
struct AttentionLayer {
  int64_t heads, kv_heads, dim, width;  // width: dim padded to sixteen
  void* keys;      // [blocks][kv_heads][width][16], or of window slots
  void* values;    // [blocks][kv_heads][16][width], the same
  int64_t block_stride;  // numbers from one block to the next: those of the other layers lie in between
  int64_t window;  // positions a token sees, itself included; 0: all
  int64_t sliding; // its blocks are those of the sliding layers
  PageChoice pages;  // of a layer without a window
};

inline F load_kv(const float* p) { return load(p); }
inline F load_kv(const uint16_t* p) { return load_f16(p); }
inline F load_kv(const uint8_t* p) { return load_e4m3(p); }
inline void store_kv(float* p, F x) { store(p, x); }
// numbers beyond the half type's range become its largest
inline void store_kv(uint16_t* p, F x) { store_f16(p, max(set1(-65504.0f), min(set1(65504.0f), x))); }

// One layer's blocks of full precision: floats or halves.
template <class T>
struct FullPrecision {
  static constexpr bool SCALED = false;
  T *keys, *values;
  int64_t kv_heads, width, stride;

  explicit FullPrecision(const AttentionLayer& l)
      : keys((T*)l.keys), values((T*)l.values), kv_heads(l.kv_heads), width(l.width), stride(l.block_stride) {}
  T* key(int64_t block, int64_t head) const { return keys + block * stride + head * BLOCK * width; }
  T* value(int64_t block, int64_t head) const { return values + block * stride + head * BLOCK * width; }
};

// The compressed blocks of a layer: fp8 codes, and a scale for the keys and for the values of each block and head.
struct ColdBlocks {
  uint8_t *keys, *values;            // as in `AttentionLayer`
  float *key_scales, *value_scales;  // [blocks][kv_heads]
  int64_t hot_blocks;                // how many blocks before its own a query reads in full precision
  int64_t block_stride;              // of the codes, as in `AttentionLayer`
};

struct Compressed {
  static constexpr bool SCALED = true;
  ColdBlocks cold;
  int64_t kv_heads, width;

  Compressed(const AttentionLayer& l, const ColdBlocks& cold) : cold(cold), kv_heads(l.kv_heads), width(l.width) {}
  uint8_t* key(int64_t block, int64_t head) const { return cold.keys + block * cold.block_stride + head * BLOCK * width; }
  uint8_t* value(int64_t block, int64_t head) const { return cold.values + block * cold.block_stride + head * BLOCK * width; }
  F key_scale(int64_t block, int64_t head) const { return set1(E4M3_UNIT * cold.key_scales[block * kv_heads + head]); }
  F value_scale(int64_t block, int64_t head) const { return set1(E4M3_UNIT * cold.value_scales[block * kv_heads + head]); }
};

}  // namespace ryz
