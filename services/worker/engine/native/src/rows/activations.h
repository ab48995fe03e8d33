// The activations of MLPs, and the soft cap of scores and logits, on registers; each within 1e-6 of its exact value.
#pragma once
#include "../simd.h"

namespace ryz {

enum ActivationKind { NO_ACTIVATION = 0, SILU = 1, GELU = 2, GELU_TANH = 3, RELU = 4, RELU2 = 5, CLAMPED_SWIGLU = 6, CAPPED = 7 };

inline F sigmoid(F x) { return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - x)); }
inline F silu(F x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }
inline F tanh(F x) { return set1(1.0f) - set1(2.0f) / (set1(1.0f) + exp(x + x)); }
inline F relu(F x) { return max(set1(0.0f), x); }  // in this order a NaN survives

// cap * tanh(x / cap)
inline F softcap(F x, float cap) { return set1(cap) * tanh(x * set1(1.0f / cap)); }

// 1 + erf(x / sqrt(2)) by formula 7.1.26 of Abramowitz and Stegun (1964), whose error is below 1.5e-7
inline F one_plus_erf(F x) {
  const F z = abs(x) * set1(0.70710678118654752f);
  const F t = set1(1.0f) / fma(z, set1(0.3275911f), set1(1.0f));
  F p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const F rest = p * t * exp(set1(0.0f) - z * z);  // 1 - erf(z)
  // of both signs, the one that x has
  return zero_below(set1(2.0f) - rest - rest, x, 0.0f) + rest;
}

inline F gelu(F x) { return set1(0.5f) * x * one_plus_erf(x); }

inline F gelu_tanh(F x) {
  const F inner = set1(0.79788456080286536f) * fma(set1(0.044715f) * x * x, x, x);
  return x * sigmoid(inner + inner);  // (1 + tanh(a)) / 2 is the sigmoid of 2 a
}

constexpr float SWIGLU_LIMIT = 7.0f, SWIGLU_SHARPNESS = 1.702f;  // of gpt-oss

inline F clamped_swiglu(F gate, F up) {
  gate = min(set1(SWIGLU_LIMIT), gate);
  up = max(set1(-SWIGLU_LIMIT), min(set1(SWIGLU_LIMIT), up));
  return (up + set1(1.0f)) * gate * sigmoid(set1(SWIGLU_SHARPNESS) * gate);
}

// What a linear does to its sums before they are stored.
struct OutputRule {
  int32_t activation;
  int32_t gated;         // the first half of a panel gates the second, so half as many columns come out
  int32_t accumulate;    // adds to what is there
  float scale, softcap;  // CAPPED: of logits; softcap 0: none

  // what most linears do: nothing, or SwiGLU
  bool usual() const { return !accumulate && activation == (gated ? SILU : NO_ACTIVATION); }
};

// Not inlined: there are many copies of the loops that end here, and other work is far longer.
[[gnu::noinline]] inline F activate(const OutputRule& rule, F x) {
  switch (rule.activation) {
    case SILU: return silu(x);
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case RELU: return relu(x);
    case RELU2: return relu(x) * relu(x);
    case CAPPED: return rule.softcap > 0 ? softcap(x * set1(rule.scale), rule.softcap) : x * set1(rule.scale);
    default: return x;
  }
}

[[gnu::noinline]] inline F activate_gated(const OutputRule& rule, F gate, F up) {
  return rule.activation == CLAMPED_SWIGLU ? clamped_swiglu(gate, up) : activate(rule, gate) * up;
}

}  // namespace ryz
