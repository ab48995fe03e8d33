// What becomes of the sums of a linear: what adapters add, bias, activation and gate, and where they are stored.
#pragma once
#include <algorithm>

#include "../adapters/low_rank.h"
#include "../rows/activations.h"

namespace ryz {

struct LinearOutput {
  float* y;  // [rows, stride]
  int64_t stride, columns;
  const float* bias;  // [panels * PANEL] or null
  OutputRule rule;
  const LowRankSums* low_rank;  // added to the sums, which then are scaled, or stored in their place; null: nothing is
};

inline void store_columns(float* y, F value, int64_t columns) {
  if (columns >= LANES) {
    store(y, value);
  } else if (columns > 0) {
    float part[LANES];
    store(part, value);
    std::memcpy(y, part, columns * sizeof(float));
  }
}

// adds to what is there
[[gnu::noinline]] inline void add_columns(float* y, F value, int64_t columns) {
  alignas(64) float part[LANES] = {0};
  if (columns <= 0) return;
  const int64_t count = std::min<int64_t>(LANES, columns);
  std::memcpy(part, y, count * sizeof(float));
  store_columns(y, load(part) + value, columns);
}

template <bool USUAL>
inline void finish(const LinearOutput& out, int64_t panel, int64_t row, F first, F second) {
  if (out.bias) {
    first = first + load(out.bias + panel * PANEL);
    second = second + load(out.bias + panel * PANEL + LANES);
  }
  const OutputRule& rule = out.rule;
  if (rule.gated) {
    const F value = USUAL ? silu(first) * second : activate_gated(rule, first, second);
    const int64_t column = panel * LANES;
    store_columns(out.y + row * out.stride + column, value, out.columns - column);
    return;
  }
  const int64_t column = panel * PANEL;
  float* y = out.y + row * out.stride + column;
  if (!USUAL) {
    first = activate(rule, first);
    second = activate(rule, second);
  }
  if (!USUAL && rule.accumulate) {
    add_columns(y, first, out.columns - column);
    add_columns(y + LANES, second, out.columns - column - LANES);
  } else {
    store_columns(y, first, out.columns - column);
    store_columns(y + LANES, second, out.columns - column - LANES);
  }
}

// Not inlined: see `activate`.
[[gnu::noinline]] inline void finish_unusual(const LinearOutput& out, int64_t panel, int64_t row, F first, F second) {
  finish<false>(out, panel, row, first, second);
}

template <int ROWS>
inline void finish_rows(const LinearOutput& out, int64_t panel, int64_t row, F* first, F* second) {
  if (out.low_rank) {
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
      const float* added = out.low_rank->of(row + r, panel);
      const PackedLowRank* m = out.low_rank->matrices_of(row + r);
      if (m && !m->down) {
        first[r] = load(added);
        second[r] = load(added + LANES);
        continue;
      }
      first[r] = first[r] + load(added);
      second[r] = second[r] + load(added + LANES);
      if (m && m->factors) {
        first[r] = first[r] * load(m->factors + panel * PANEL);
        second[r] = second[r] * load(m->factors + panel * PANEL + LANES);
      }
    }
  }
  if (out.rule.usual()) {
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) finish<true>(out, panel, row + r, first[r], second[r]);
  } else {
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) finish_unusual(out, panel, row + r, first[r], second[r]);
  }
}

}  // namespace ryz
