// Packs weight matrices into the panels that `linear.h` reads, once, when a model is loaded.
#pragma once
#include <cmath>
#include <thread>
#include <vector>

#include "linear.h"

namespace ryz {

// Calls work(panel) for all panels, on several threads.
template <class Work>
void each_panel(int64_t count, int threads, Work work) {
  std::vector<std::thread> helpers;
  const auto part = [&](int thread) {
    for (int64_t panel = count * thread / threads; panel < count * (thread + 1) / threads; panel++) work(panel);
  };
  for (int thread = 1; thread < threads; thread++) helpers.emplace_back(part, thread);
  part(0);
  for (auto& helper : helpers) helper.join();
}

// [n, k] floats, bf16 or fp16 as they are, into panels; outputs beyond n become zeros.
template <class T>
void pack(const T* source, int64_t n, int64_t k, T* target, int threads) {
  constexpr int64_t RUN = 64;  // inputs at a time, so that the lines being written stay in the cache until they are full
  each_panel(padded(n, PANEL) / PANEL, threads, [=](int64_t panel) {
    T* to = target + panel * k * PANEL;
    const int64_t rows = std::min<int64_t>(PANEL, n - panel * PANEL);
    const T* from = source + panel * PANEL * k;
    for (int64_t begin = 0; begin < k; begin += RUN) {
      const int64_t end = std::min(k, begin + RUN);
      for (int64_t j = 0; j < PANEL; j++) {
        for (int64_t i = begin; i < end; i++) to[i * PANEL + j] = j < rows ? from[j * k + i] : T(0);
      }
    }
  });
}

// One output's weights as bytes, the largest as 127; returns the scale. A NaN or infinite weight makes the scale NaN,
// so that damage shows. bytes: [padded(k, LANES)].
inline float quantize_weights(const float* from, int64_t k, int8_t* bytes) {
  float rest[LANES] = {0};
  std::memcpy(rest, from + k / LANES * LANES, k % LANES * sizeof(float));
  const auto values = [&](int64_t i) { return i + LANES <= k ? load(from + i) : load(rest); };
  F peak = zero(), damage = zero();
  for (int64_t i = 0; i < k; i += LANES) {
    peak = max(peak, abs(values(i)));
    damage = fma(values(i), zero(), damage);
  }
  const float top = largest(peak);
  const F inverse = set1(top > 0 ? 127.0f / top : 0.0f);
  for (int64_t i = 0; i < k; i += LANES) {
    store_int8(bytes + i, max(set1(-127.0f), min(set1(127.0f), values(i) * inverse)));
  }
  return top / 127.0f + sum(damage);
}

// [n, k] floats into panels of bytes, with one scale for each output.
inline void pack_int8(const float* source, int64_t n, int64_t k, uint8_t* target, float* scales, int threads) {
  const int64_t deep = depth(k, INT8);
  each_panel(padded(n, PANEL) / PANEL, threads, [=](int64_t panel) {
    uint8_t* to = target + panel * deep * PANEL;
    std::vector<int8_t> bytes(padded(k, LANES));
    for (int64_t j = 0; j < PANEL; j++) {
      const int64_t row = panel * PANEL + j;
      std::fill(bytes.begin(), bytes.end(), 0);
      scales[row] = row < n ? quantize_weights(source + row * k, k, bytes.data()) : 0;
      for (int64_t i = 0; i < deep; i += 4) {
        uint32_t four;
        std::memcpy(&four, &bytes[i], 4);
        // adds 128 to each byte if the instruction set multiplies unsigned by signed bytes
        four ^= WEIGHT_OFFSET ? 0x80808080u : 0;
        std::memcpy(to + i * PANEL + j * 4, &four, 4);
      }
    }
  });
}

}  // namespace ryz
