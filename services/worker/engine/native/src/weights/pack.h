// Packs weight matrices into the panels that `linear.h` reads, once, when a model is loaded.
#pragma once
#include <limits>
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

// [n, k] bf16 into panels of pairs; outputs beyond n, and the other half of an odd last input, become zeros.
inline void pack_pairs(const uint16_t* source, int64_t n, int64_t k, uint32_t* target, int threads) {
  const int64_t pairs = (k + 1) / 2;
  each_panel(padded(n, PANEL) / PANEL, threads, [=](int64_t panel) {
    uint32_t* to = target + panel * pairs * PANEL;
    for (int64_t j = 0; j < PANEL; j++) {
      const int64_t row = panel * PANEL + j;
      const uint16_t* from = source + row * k;
      for (int64_t i = 0; i < k; i += 2) {
        const uint32_t even = row < n ? from[i] : 0, odd = row < n && i + 1 < k ? from[i + 1] : 0;
        to[i / 2 * PANEL + j] = even | odd << 16;
      }
    }
  });
}

constexpr uint16_t NAN_SCALE = 0x7e00;
constexpr int SCALE_CANDIDATES = 16;

// Writes the codes of 32 weights of an output and returns their scale, a half. Of some scales, the first of which makes
// the largest weight 127, the one with the least squared error is taken. A NaN or infinite weight, or one beyond the range
// of halves, makes the scale NaN, so that damage shows.
inline uint16_t quantize_weights(F low, F high, int8_t* codes) {
  const float top = largest_magnitude(low, high);
  if (!(top <= 127.0f * 65504.0f)) {
    std::memset(codes, 0, SCALE_BLOCK);
    return NAN_SCALE;
  }
  float best = std::numeric_limits<float>::infinity();
  uint16_t chosen = 0;
  F inverse = zero();
  for (int candidate = 0; candidate < SCALE_CANDIDATES; candidate++) {
    const uint16_t half = _cvtss_sh(top / (127.0f - 0.5f * candidate), _MM_FROUND_TO_NEAREST_INT);
    const float scale = _cvtsh_ss(half);
    if (scale == 0) break;  // the weights are below what halves can scale
    const F by = set1(1.0f / scale);
    const auto error = [&](F x) { return x - set1(scale) * max(set1(-127.0f), min(set1(127.0f), round(x * by))); };
    const F a = error(low), b = error(high);
    const float squares = sum(fma(a, a, b * b));
    if (squares < best) best = squares, chosen = half, inverse = by;
  }
  const auto within = [](F x) { return max(set1(-127.0f), min(set1(127.0f), x)); };
  store_codes(codes, within(low * inverse), within(high * inverse));
  return chosen;
}

// [n, k] floats into panels of blocks; outputs beyond n and inputs beyond k become zeros.
inline void pack_int8(const float* source, int64_t n, int64_t k, uint8_t* target, int threads) {
  each_panel(padded(n, PANEL) / PANEL, threads, [=](int64_t panel) {
    for (int64_t i = 0; i < k; i += SCALE_BLOCK) {
      uint8_t* to = target + panel * num_blocks(k) * BLOCK_BYTES + i / SCALE_BLOCK * BLOCK_BYTES;
      for (int64_t j = 0; j < PANEL; j++) {
        alignas(64) float block[SCALE_BLOCK] = {0};
        int8_t codes[SCALE_BLOCK];
        const int64_t row = panel * PANEL + j;
        if (row < n) std::memcpy(block, source + row * k + i, std::min<int64_t>(SCALE_BLOCK, k - i) * sizeof(float));
        const uint16_t scale = quantize_weights(load(block), load(block + LANES), codes);
        std::memcpy(to + CODE_BYTES + j * sizeof(scale), &scale, sizeof(scale));
        for (int64_t step = 0; step < SCALE_BLOCK; step += 4) {
          uint32_t four;
          std::memcpy(&four, codes + step, 4);
          // adds 128 to each byte if the instruction set multiplies unsigned by signed bytes
          four ^= WEIGHT_OFFSET ? 0x80808080u : 0;
          std::memcpy(to + step * PANEL + j * 4, &four, 4);
        }
      }
    }
  });
}

// A matrix of codes as it is given: a byte for each code, scales and offsets of the types that the form names.
struct CodeMatrix {
  const uint8_t* codes;            // [n][k]
  const uint8_t *scales, *offsets; // [n][groups]
  int64_t n, k;
};

// Into panels; outputs beyond n have scales and offsets of 0, and so count nothing, as inputs beyond k do.
inline void pack_codes(CodeMatrix from, CodeForm form, uint8_t* target, int threads) {
  const int64_t blocks = num_blocks(from.k), parts = form.halves() ? 2 : 1, groups = (from.k + form.group - 1) / form.group;
  const int bits = form.bits(), signs = form.kind == EIGHT_BITS && !WEIGHT_OFFSET ? 0x80 : 0;
  const auto copy_scales = [&](const uint8_t* all, int type, int64_t row, int64_t group, int64_t output, uint8_t* to) {
    const int64_t size = CodeForm::bytes_of(type);
    if (size && row < from.n && group < groups) std::memcpy(to + output * size, all + (row * groups + group) * size, size);
  };
  each_panel(padded(from.n, PANEL) / PANEL, threads, [=](int64_t panel) {
    uint8_t* w = target + panel * form.panel_bytes(from.k);
    std::memset(w, 0, form.panel_bytes(from.k));
    for (int64_t block = 0; block < blocks; block++) {
      if (block % form.blocks_of_group() == 0) {
        for (int64_t part = 0; part < parts; part++, w += form.scale_bytes()) {
          const int64_t group = form.halves() ? 2 * block + part : block / form.blocks_of_group();
          for (int64_t j = 0; j < PANEL; j++) {
            copy_scales(from.scales, form.scales, panel * PANEL + j, group, j, w);
            copy_scales(from.offsets, form.offsets, panel * PANEL + j, group, j, w + PANEL * CodeForm::bytes_of(form.scales));
          }
        }
      }
      const int64_t begin = block * SCALE_BLOCK, count = std::min<int64_t>(SCALE_BLOCK, from.k - begin);
      for (int64_t j = 0; j < PANEL; j++) {
        const int64_t row = panel * PANEL + j;
        for (int64_t i = 0; row < from.n && i < count; i++) {
          const CodePlace place(bits, j, i);
          w[place.byte] |= (from.codes[row * from.k + begin + i] ^ signs) << place.shift;
        }
      }
      w += form.code_bytes();
    }
  });
}

}  // namespace ryz
