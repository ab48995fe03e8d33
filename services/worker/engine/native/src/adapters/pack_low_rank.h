// Packs an adapter's matrices for a linear, as `low_rank.h` reads them.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "low_rank.h"

namespace ryz {

// One matrix of a linear, whose outputs follow those of the part before; of a gated linear the first part gates the other.
struct LowRankPart {
  const float* down;  // [rank][inputs]; null: `up` takes the place of the base's matrix, and the rank is its inputs
  const float* up;    // [outputs][rank]
  const float* factors;  // [outputs] or null
  int64_t rank;       // 0: the adapter has none for it
  int64_t outputs;
};

// The shape of a linear.
struct LinearShape {
  int64_t inputs, panels;
  int32_t gated, num_parts;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// To the nearest, of two the even one; infinities and what is no number stay so.
inline uint32_t to_half(float x) {
  const uint32_t bits = bits_of(x), finite = (bits & 0x7f800000) != 0x7f800000;
  return (bits + finite * (0x7fff + (bits >> 16 & 1))) >> 16;
}

// Whether bf16 holds all numbers without loss. Mostly the first ones decide; where they do not, many are seen at once.
inline bool are_halves(const float* x, int64_t count) {
  constexpr int64_t TOGETHER = 512;
  for (int64_t at = 0; at < count; at += TOGETHER) {
    const int64_t end = std::min(count, at + TOGETHER);
    uint32_t lost = 0;
    for (int64_t i = at; i < end; i++) lost |= bits_of(x[i]) & 0xffff;
    if (lost) return false;
  }
  return true;
}

inline bool fits_halves(const LowRankPart* parts, const LinearShape& shape) {
  return std::all_of(parts, parts + shape.num_parts, [&](const LowRankPart& part) {
    return (!part.down || are_halves(part.down, part.rank * shape.inputs)) && are_halves(part.up, part.rank * part.outputs);
  });
}

// Calls work(part, its first inner feature, slice, lane, output) for each output of each part.
template <class Work>
void each_output(const LowRankPart* parts, const LinearShape& shape, Work work) {
  int64_t first = 0, begin = 0;
  for (int64_t p = 0; p < shape.num_parts; p++) {
    for (int64_t i = 0; i < parts[p].outputs; i++) {
      const int64_t slice = shape.gated ? i / LANES * 2 + p : (begin + i) / LANES;
      work(parts[p], first, slice, shape.gated ? i % LANES : (begin + i) % LANES, i);
    }
    first += parts[p].rank;
    begin += parts[p].outputs;
  }
}

// Fills the slices in and returns the bytes of `up`. A slice with outputs of two matrices reads the features of both.
inline int64_t lay_out(const LowRankPart* parts, const LinearShape& shape, bool halves, UpSlice* slices) {
  std::fill(slices, slices + 2 * shape.panels, UpSlice{0, 0, 0});
  each_output(parts, shape, [&](const LowRankPart& part, int64_t first, int64_t slice, int64_t, int64_t) {
    if (!part.rank) return;
    UpSlice& s = slices[slice];
    if (!s.count) s.begin = (int32_t)first;
    s.count = (int32_t)(first + part.rank) - s.begin;
  });
  int64_t bytes = 0;
  for (UpSlice* s = slices; s < slices + 2 * shape.panels; s++) {
    s->at = bytes;
    bytes += slice_bytes(s->count, halves);
  }
  return bytes;
}

inline int64_t rank_of(const LowRankPart* parts, const LinearShape& shape) {
  int64_t rank = 0;
  for (int64_t p = 0; p < shape.num_parts; p++) rank += parts[p].rank;
  return rank;
}

inline bool has_factors(const LowRankPart* parts, const LinearShape& shape) {
  return std::any_of(parts, parts + shape.num_parts, [](const LowRankPart& part) { return part.factors; });
}

// A matrix that takes the place of the base's is the only one of its linear.
inline bool is_whole(const LowRankPart* parts, const LinearShape& shape) {
  return shape.num_parts == 1 && parts[0].rank && !parts[0].down;
}

inline int64_t all_down_bytes(const LowRankPart* parts, const LinearShape& shape, bool halves) {
  return is_whole(parts, shape) ? 0 : rank_of(parts, shape) * down_bytes(shape.inputs, halves);
}

// Bytes of each piece: slices, `down`, `up`, factors.
inline int64_t slices_bytes(const LinearShape& shape) { return padded(2 * shape.panels * sizeof(UpSlice), 64); }

inline int64_t low_rank_bytes(const LowRankPart* parts, const LinearShape& shape, bool halves) {
  std::vector<UpSlice> slices(2 * shape.panels);
  return slices_bytes(shape) + all_down_bytes(parts, shape, halves) +
         lay_out(parts, shape, halves, slices.data()) +
         (has_factors(parts, shape) ? shape.panels * PANEL * (int64_t)sizeof(float) : 0);
}

// Packs an inner feature's weights; `row` holds zeros behind them up to a multiple of two blocks. The blocks lie `step`
// bytes apart.
inline void pack_feature(const float* row, int64_t inputs, bool halves, uint8_t* to, int64_t step) {
  if (!halves) {
    for (int64_t at = 0; at < inputs; at += LANES, to += step) std::memcpy(to, row + at, LANES * 4);
    return;
  }
  for (int64_t at = 0; at < inputs; at += 2 * LANES, to += step) {
    uint32_t words[LANES];
    for (int lane = 0; lane < LANES; lane++) {
      words[lane] = to_half(row[at + lane]) | to_half(row[at + LANES + lane]) << 16;
    }
    std::memcpy(to, words, sizeof words);
  }
}

// Packs an output's weights into its lane of a slice of zeros; `first`: the slice's inner feature of the first one.
inline void pack_output(const float* from, int64_t first, int64_t rank, bool halves, uint8_t* to) {
  constexpr int64_t STEP = LANES * 4;
  if (!halves) {
    for (int64_t r = 0; r < rank; r++) std::memcpy(to + (first + r) * STEP, from + r, 4);
    return;
  }
  const auto add = [&](int64_t i, uint32_t word) {
    uint32_t before;
    std::memcpy(&before, to + i * STEP, 4);
    word |= before;
    std::memcpy(to + i * STEP, &word, 4);
  };
  int64_t r = 0;
  if (first % 2) add(first / 2, to_half(from[r++]) << 16);
  for (; r + 1 < rank; r += 2) add((first + r) / 2, to_half(from[r]) | to_half(from[r + 1]) << 16);
  if (r < rank) add((first + r) / 2, to_half(from[r]));
}

// target: low_rank_bytes of zeros, aligned to cache lines
inline PackedLowRank pack_low_rank(const LowRankPart* parts, const LinearShape& shape, bool halves, uint8_t* target) {
  UpSlice* slices = (UpSlice*)target;
  uint8_t* down = target + slices_bytes(shape);
  const int64_t rank = rank_of(parts, shape), bytes = down_bytes(shape.inputs, halves);
  uint8_t* up = down + all_down_bytes(parts, shape, halves);
  float* factors = (float*)(up + lay_out(parts, shape, halves, slices));
  const bool whole = is_whole(parts, shape);
  std::vector<float> row(padded(shape.inputs, 2 * LANES));  // what is behind the inputs stays 0
  int64_t feature = 0;
  for (int64_t p = 0; p < shape.num_parts && !whole; p++) {
    for (int64_t r = 0; r < parts[p].rank; r++, feature++) {
      const FeatureGroup group(feature, rank);
      uint8_t* to = down + group.first * bytes + (feature - group.first) * LANES * 4;
      std::copy_n(parts[p].down + r * shape.inputs, shape.inputs, row.data());
      pack_feature(row.data(), shape.inputs, halves, to, group.count * LANES * 4);
    }
  }
  each_output(parts, shape, [&](const LowRankPart& part, int64_t first, int64_t slice, int64_t lane, int64_t output) {
    if (!part.rank) return;
    const UpSlice& s = slices[slice];
    pack_output(part.up + output * part.rank, first - s.begin, part.rank, halves, up + s.at + lane * 4);
  });
  if (!has_factors(parts, shape)) return {whole ? nullptr : down, up, slices, nullptr, (int32_t)rank, halves};
  std::fill(factors, factors + shape.panels * PANEL, 1.0f);
  each_output(parts, shape, [&](const LowRankPart& part, int64_t, int64_t slice, int64_t lane, int64_t output) {
    if (part.factors) factors[slice * LANES + lane] = part.factors[output];
  });
  return {whole ? nullptr : down, up, slices, factors, (int32_t)rank, halves};
}

}  // namespace ryz
