// What adapters (LoRA; Hu et al., arXiv 2106.09685) add to the sums of a linear: `up (down x)`, with matrices of each
// row's own adapter. `down x` is computed once for a linear (`shrink`); the rest is added panel by panel, while the sums
// are in registers.
// Every number is one chain of multiply-adds in a fixed order, whatever rows are beside it and however they are stored.
// Matrices are floats or bf16. Of bf16, a word holds two numbers that are used one after the other, so that two
// operations make two registers of floats.
#pragma once
#include <algorithm>

#include "../weights/byte_blocks.h"

namespace ryz {

// Sixteen outputs of a linear: half of a panel.
struct UpSlice {
  int32_t begin, count;  // which inner features it reads
  int64_t at;            // where its weights begin, in bytes; [count][16], or [pairs][16] words
};

// An adapter's matrices for one linear. Of a linear of several matrices (queries, keys and values) the inner features
// follow each other, and each slice reads those of its own matrix.
struct PackedLowRank {
  const uint8_t* down;    // [rank][inputs, padded to 16 floats or 32 halves]
  const uint8_t* up;
  const UpSlice* slices;  // [2 * panels]
  int32_t rank;           // inner features of all its matrices; 0: it adds nothing
  int32_t halves;         // bf16, not floats
};

// The adapters in memory. It changes between passes only.
struct AdapterTable {
  const PackedLowRank* const* slots;  // by slot: for each linear of the program what it adds; null: the slot is empty
  float* inner;                       // [rows][stride]: `down x` of the linear that comes next
  int64_t stride;
};

// The adapters of a linear's rows.
struct LowRankRows {
  const AdapterTable* table;
  const int32_t* slots;  // of each row; below 0: none
  int64_t site;          // the linear's number

  // null: nothing is added to the row
  const PackedLowRank* of(int64_t row) const {
    if (slots[row] < 0) return nullptr;
    const PackedLowRank* found = table->slots[slots[row]] + site;
    return found->rank ? found : nullptr;
  }
  // the end of the rows from `row` on that have the same adapter, at most `end`
  int64_t run_end(int64_t row, int64_t end) const {
    int64_t next = row + 1;
    while (next < end && slots[next] == slots[row]) next++;
    return next;
  }
};

// Sixteen words of two halves: the first of each, and the second.
inline void load_halves(const uint8_t* p, F* first, F* second) {
#if RYZ_AVX512
  const __m512i words = _mm512_loadu_si512(p);
  first->v = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  second->v = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
#else
  const __m256i low = _mm256_loadu_si256((const __m256i*)p), high = _mm256_loadu_si256((const __m256i*)p + 1);
  const __m256i mask = _mm256_set1_epi32((int)0xffff0000);
  *first = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  *second = {_mm256_castsi256_ps(_mm256_and_si256(low, mask)), _mm256_castsi256_ps(_mm256_and_si256(high, mask))};
#endif
}

inline int64_t down_bytes(int64_t inputs, bool halves) {
  return halves ? padded(inputs, 2 * LANES) * 2 : padded(inputs, LANES) * 4;  // of an inner feature
}
inline int64_t slice_bytes(int64_t count, bool halves) { return (halves ? (count + 1) / 2 : count) * LANES * 4; }

// RANKS inner features of ROWS rows.
template <int ROWS, int RANKS, bool HALVES>
inline void shrink_block(const float* x, int64_t stride, int64_t inputs, const uint8_t* down, float* inner,
                         int64_t inner_stride) {
  const int64_t bytes = down_bytes(inputs, HALVES), width = padded(inputs, LANES);
  F sums[ROWS][RANKS];
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < RANKS; i++) sums[r][i] = zero();
  int64_t at = 0;
  if (HALVES) {
    for (; at + 2 * LANES <= width; at += 2 * LANES) {
#pragma GCC unroll 8
      for (int i = 0; i < RANKS; i++) {
        F first, second;
        load_halves(down + i * bytes + at * 2, &first, &second);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
          sums[r][i] = fma(load(x + r * stride + at), first, sums[r][i]);
          sums[r][i] = fma(load(x + r * stride + at + LANES), second, sums[r][i]);
        }
      }
    }
  }
  for (; at < width; at += LANES) {
#pragma GCC unroll 8
    for (int i = 0; i < RANKS; i++) {
      F first, second;
      if (HALVES) {
        load_halves(down + i * bytes + at * 2, &first, &second);
      } else {
        first = load((const float*)(down + i * bytes) + at);
      }
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) sums[r][i] = fma(load(x + r * stride + at), first, sums[r][i]);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < RANKS; i++) inner[r * inner_stride + i] = sum(sums[r][i]);
}

constexpr int SHRINK_ROWS = RYZ_AVX512 ? 4 : 2;  // so that all sums stay in registers

template <int ROWS, int RANKS, bool HALVES>
inline void shrink_ranks(const float* x, int64_t stride, int64_t inputs, const uint8_t* down, int64_t count, float* inner,
                         int64_t inner_stride) {
  const int64_t bytes = down_bytes(inputs, HALVES);
  for (; count >= RANKS; count -= RANKS, down += RANKS * bytes, inner += RANKS) {
    shrink_block<ROWS, RANKS, HALVES>(x, stride, inputs, down, inner, inner_stride);
  }
  if constexpr (RANKS > 1) {
    if (count) shrink_ranks<ROWS, RANKS / 2, HALVES>(x, stride, inputs, down, count, inner, inner_stride);
  }
}

template <int ROWS, bool HALVES>
inline void shrink_rows(int64_t rows, const float* x, int64_t stride, int64_t inputs, const uint8_t* down, int64_t count,
                        float* inner, int64_t inner_stride) {
  constexpr int SUMS = RYZ_AVX512 ? 16 : 4, RANKS = std::min(8, SUMS / ROWS);
  for (; rows >= ROWS; rows -= ROWS, x += ROWS * stride, inner += ROWS * inner_stride) {
    shrink_ranks<ROWS, RANKS, HALVES>(x, stride, inputs, down, count, inner, inner_stride);
  }
  if constexpr (ROWS > 1) {
    if (rows) shrink_rows<ROWS / 2, HALVES>(rows, x, stride, inputs, down, count, inner, inner_stride);
  }
}

// Inner features `begin` to `end` of rows that have the same adapter.
inline void shrink(const PackedLowRank& m, const float* x, int64_t stride, int64_t inputs, int64_t rows, int64_t begin,
                   int64_t end, float* inner, int64_t inner_stride) {
  const uint8_t* down = m.down + begin * down_bytes(inputs, m.halves);
  const auto run = m.halves ? shrink_rows<SHRINK_ROWS, true> : shrink_rows<SHRINK_ROWS, false>;
  run(rows, x, stride, inputs, down, end - begin, inner + begin, inner_stride);
}

// Adds a slice's sums of ROWS rows that have the same adapter.
template <int ROWS, bool HALVES>
inline void expand_slice(const UpSlice& slice, const uint8_t* up, const float* inner, int64_t stride, F* to) {
  const uint8_t* w = up + slice.at;
  const float* t = inner + slice.begin;
  F sums[ROWS];
  for (int r = 0; r < ROWS; r++) sums[r] = zero();
  int64_t i = 0;
  if (HALVES) {
    for (; i + 2 <= slice.count; i += 2, w += LANES * 4) {
      F even, odd;
      load_halves(w, &even, &odd);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        sums[r] = fma(set1(t[r * stride + i]), even, sums[r]);
        sums[r] = fma(set1(t[r * stride + i + 1]), odd, sums[r]);
      }
    }
  }
  for (; i < slice.count; i++, w += LANES * 4) {
    F even, odd;
    if (HALVES) {
      load_halves(w, &even, &odd);
    } else {
      even = load((const float*)w);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) sums[r] = fma(set1(t[r * stride + i]), even, sums[r]);
  }
  for (int r = 0; r < ROWS; r++) to[r] = to[r] + sums[r];
}

template <int ROWS, bool HALVES>
inline void expand_rows(const UpSlice* slices, const uint8_t* up, const float* inner, int64_t stride, int64_t rows, F* first,
                        F* second) {
  for (; rows >= ROWS; rows -= ROWS, inner += ROWS * stride, first += ROWS, second += ROWS) {
    expand_slice<ROWS, HALVES>(slices[0], up, inner, stride, first);
    expand_slice<ROWS, HALVES>(slices[1], up, inner, stride, second);
  }
  if constexpr (ROWS > 1) {
    if (rows) expand_rows<ROWS / 2, HALVES>(slices, up, inner, stride, rows, first, second);
  }
}

// Adds to the sums of `count` rows, from `row` on, what their adapters add to a panel. Rows without one stay as they are.
[[gnu::noinline]] inline void add_low_rank(const LowRankRows& rows, int64_t panel, int64_t row, int64_t count, F* first,
                                           F* second) {
  const int64_t stride = rows.table->stride;
  for (int64_t at = row, end; at < row + count; at = end) {
    end = rows.run_end(at, row + count);
    const PackedLowRank* m = rows.of(at);
    if (!m) continue;
    const auto run = m->halves ? expand_rows<4, true> : expand_rows<4, false>;
    run(m->slices + 2 * panel, m->up, rows.table->inner + at * stride, stride, end - at, first + (at - row),
        second + (at - row));
  }
}

constexpr int64_t PREFETCH_ROWS = 32;  // with more, a panel's own work hides the loads

// Fetches what rows add to a panel, while its base weights are multiplied.
[[gnu::noinline]] inline void prefetch_low_rank(const LowRankRows& rows, int64_t panel, int64_t count) {
  if (count > PREFETCH_ROWS) return;
  for (int64_t row = 0; row < count; row = rows.run_end(row, count)) {
    const PackedLowRank* m = rows.of(row);
    if (!m) continue;
    for (const UpSlice* slice = m->slices + 2 * panel; slice < m->slices + 2 * panel + 2; slice++) {
      const uint8_t* w = m->up + slice->at;
      for (int64_t i = 0; i < slice_bytes(slice->count, m->halves); i += 64) prefetch_weights<0>(w + i);
    }
  }
}

}  // namespace ryz
