// What adapters (LoRA; Hu et al., arXiv 2106.09685) add to the sums of a linear: `up (down x)`, with matrices of each
// row's own adapter. `down x` is computed before the linear (`shrink`); the rest for some panels at a time (`expand`),
// before the base's products of these.
// Every number is one chain of multiply-adds in a fixed order, whatever rows are beside it and however they are stored.
// Few rows wait for memory, so an adapter's matrices lie, and are read, in one long stream (measured: pieces of a
// kilobyte between the base's panels come three times more slowly).
// Matrices are floats or bf16. Of bf16, a word holds two numbers that are used one after the other, so that two
// operations make two registers of floats.
#pragma once
#include <algorithm>
#include <vector>

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
  const uint8_t* down;    // [groups][blocks of inputs][features of the group][16 floats or words], see `FeatureGroup`;
                          // null: the inputs are the inner features, and the sums take the place of the base's
  const uint8_t* up;
  const UpSlice* slices;  // [2 * panels]
  const float* factors;   // [panels][PANEL], of outputs with what is added, before the bias (DoRA); null: all are 1
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
  bool any(int64_t count) const {
    for (int64_t row = 0; row < count; row = run_end(row, count)) {
      if (of(row)) return true;
    }
    return false;
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

// Bytes to prefetch from: the processor's own prefetcher stops at the end of a page. Behind the end of one stream lies the
// one that is read next: `up` behind `down`, and then `down` of the following linear.
constexpr int STREAM_AHEAD = 4096;

// Inner features whose numbers lie side by side: eight, and of what is left four, two, one.
struct FeatureGroup {
  int64_t first, count;

  FeatureGroup(int64_t feature, int64_t rank) : first(feature / GROUP * GROUP), count(GROUP) {
    for (; first + count > rank || feature >= first + count; count /= 2) {
      if (first + count <= rank) first += count;
    }
  }
  static constexpr int64_t GROUP = 8;
};

// RANKS features, of a group of `wide`, of ROWS rows.
template <int ROWS, int RANKS, bool HALVES>
inline void shrink_block(const float* x, int64_t stride, int64_t inputs, const uint8_t* down, int64_t wide, float* inner,
                         int64_t inner_stride) {
  const int64_t width = padded(inputs, LANES), step = wide * LANES * 4;
  F sums[ROWS][RANKS];
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < RANKS; i++) sums[r][i] = zero();
  int64_t at = 0;
  if (HALVES) {
    for (; at + 2 * LANES <= width; at += 2 * LANES, down += step) {
#pragma GCC unroll 8
      for (int i = 0; i < RANKS; i++) {
        F first, second;
        load_halves(down + i * LANES * 4, &first, &second);
        prefetch_weights<STREAM_AHEAD>(down + i * LANES * 4);
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; r++) {
          sums[r][i] = fma(load(x + r * stride + at), first, sums[r][i]);
          sums[r][i] = fma(load(x + r * stride + at + LANES), second, sums[r][i]);
        }
      }
    }
  }
  for (; at < width; at += LANES, down += step) {
#pragma GCC unroll 8
    for (int i = 0; i < RANKS; i++) {
      F first, second;
      if (HALVES) {
        load_halves(down + i * LANES * 4, &first, &second);
      } else {
        first = load((const float*)(down + i * LANES * 4));
        prefetch_weights<STREAM_AHEAD>(down + i * LANES * 4);
      }
#pragma GCC unroll 2
      for (int r = 0; r < ROWS; r++) sums[r][i] = fma(load(x + r * stride + at), first, sums[r][i]);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < RANKS; i++) inner[r * inner_stride + i] = sum(sums[r][i]);
}

// `count` features of a group, of ROWS rows.
template <int ROWS, int RANKS, bool HALVES>
inline void shrink_group(const float* x, int64_t stride, int64_t inputs, const uint8_t* down, int64_t wide, float* inner,
                         int64_t inner_stride) {
  if (wide >= RANKS) {
    for (int64_t i = 0; i < wide; i += RANKS) {
      shrink_block<ROWS, RANKS, HALVES>(x, stride, inputs, down + i * LANES * 4, wide, inner + i, inner_stride);
    }
  } else if constexpr (RANKS > 1) {
    shrink_group<ROWS, RANKS / 2, HALVES>(x, stride, inputs, down, wide, inner, inner_stride);
  }
}

// All sums of a block stay in registers.
template <int ROWS, bool HALVES>
inline void shrink_rows(int64_t rows, const float* x, int64_t stride, int64_t inputs, const uint8_t* down, int64_t wide,
                        float* inner, int64_t inner_stride) {
  constexpr int RANKS = RYZ_AVX512 ? 8 : 4 / ROWS;
  for (; rows >= ROWS; rows -= ROWS, x += ROWS * stride, inner += ROWS * inner_stride) {
    shrink_group<ROWS, RANKS, HALVES>(x, stride, inputs, down, wide, inner, inner_stride);
  }
  if constexpr (ROWS > 1) {
    if (rows) shrink_rows<ROWS / 2, HALVES>(rows, x, stride, inputs, down, wide, inner, inner_stride);
  }
}

// Inner features `begin` to `end`, whole groups, of rows that have the same adapter.
inline void shrink(const PackedLowRank& m, const float* x, int64_t stride, int64_t inputs, int64_t rows, int64_t begin,
                   int64_t end, float* inner, int64_t inner_stride) {
  if (!m.down) {
    for (int64_t row = 0; row < rows; row++, x += stride, inner += inner_stride) std::copy(x + begin, x + end, inner + begin);
    return;
  }
  const auto run = m.halves ? shrink_rows<2, true> : shrink_rows<2, false>;
  while (begin < end) {
    const FeatureGroup group(begin, m.rank);
    const uint8_t* down = m.down + begin * down_bytes(inputs, m.halves);
    run(rows, x, stride, inputs, down, group.count, inner + begin, inner_stride);
    begin += group.count;
  }
}

// A slice's sums of ROWS rows that have the same adapter; `to`: rows `to_stride` apart.
template <int ROWS, bool HALVES>
inline void expand_slice(const UpSlice& slice, const uint8_t* up, const float* inner, int64_t stride, float* to,
                         int64_t to_stride) {
  const uint8_t* w = up + slice.at;
  const float* t = inner + slice.begin;
  F sums[ROWS];
  for (int r = 0; r < ROWS; r++) sums[r] = zero();
  int64_t i = 0;
  if (HALVES) {
    for (; i + 2 <= slice.count; i += 2, w += LANES * 4) {
      F even, odd;
      load_halves(w, &even, &odd);
      prefetch_weights<STREAM_AHEAD>(w);
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
      prefetch_weights<STREAM_AHEAD>(w);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) sums[r] = fma(set1(t[r * stride + i]), even, sums[r]);
  }
  for (int r = 0; r < ROWS; r++) store(to + r * to_stride, sums[r]);
}

// Slices `first` to `end` of rows that have the same adapter.
template <int ROWS, bool HALVES>
inline void expand_rows(const PackedLowRank& m, int64_t first, int64_t end, const float* inner, int64_t stride, int64_t rows,
                        float* to, int64_t to_stride) {
  for (; rows >= ROWS; rows -= ROWS, inner += ROWS * stride, to += ROWS * to_stride) {
    for (int64_t i = first; i < end; i++) {
      expand_slice<ROWS, HALVES>(m.slices[i], m.up, inner, stride, to + (i - first) * LANES, to_stride);
    }
  }
  if constexpr (ROWS > 1) {
    if (rows) expand_rows<ROWS / 2, HALVES>(m, first, end, inner, stride, rows, to, to_stride);
  }
}

// What adapters add to some panels.
struct LowRankSums {
  const float* sums;      // [rows][stride], from the panel `first` on
  int64_t stride, first;
  const LowRankRows* rows;

  const float* of(int64_t row, int64_t panel) const { return sums + row * stride + (panel - first) * PANEL; }
  // null: nothing is added to the row
  const PackedLowRank* matrices_of(int64_t row) const { return rows->of(row); }
};

constexpr int64_t SUMS_ROOM = 16384;  // numbers that are expanded together; they stay in the core's cache

// Calls work(sums, first, end) for panels `first` to `end`, some at a time.
template <class Work>
void expand(const LowRankRows& rows, int64_t count, int64_t first, int64_t end, Work work) {
  static thread_local std::vector<float> room;
  const int64_t together = std::clamp<int64_t>(SUMS_ROOM / (count * PANEL), 1, end - first);
  const int64_t stride = together * PANEL, inner = rows.table->stride;
  if ((int64_t)room.size() < count * stride) room.resize(count * stride);
  for (int64_t panel = first; panel < end; panel += together) {
    const int64_t last = std::min(end, panel + together);
    for (int64_t row = 0, next; row < count; row = next) {
      next = rows.run_end(row, count);
      float* to = room.data() + row * stride;
      if (const PackedLowRank* m = rows.of(row)) {
        const auto run = m->halves ? expand_rows<4, true> : expand_rows<4, false>;
        run(*m, 2 * panel, 2 * last, rows.table->inner + row * inner, inner, next - row, to, stride);
      } else {
        std::fill(to, to + (next - row) * stride, -0.0f);  // to which any number is added unchanged
      }
    }
    work(LowRankSums{room.data(), stride, panel, &rows}, panel, last);
  }
}

}  // namespace ryz
