// What becomes of attention's scores between the products and the softmax.
#pragma once
#include "../rows/activations.h"

namespace ryz {

struct ScoreRule {
  float scale;          // of the products
  float softcap;        // scores become softcap * tanh(scores / softcap); 0: they do not
  const float* slopes;  // ALiBi: [heads], scores get slope * (key's position - query's); or null
  const float* sinks;   // [heads], a logit that takes part in the softmax and has no value; or null
};

// Scores of sixteen keys from `position` on, counted from the query's own.
inline F apply_rules(const ScoreRule& rules, F scores, int64_t head, int64_t position) {
  if (rules.softcap > 0) scores = softcap(scores, rules.softcap);
  if (rules.slopes) {
    alignas(64) static constexpr float LANE[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    scores = scores + set1(rules.slopes[head]) * (set1((float)position) + load(LANE));
  }
  return scores;
}

}  // namespace ryz
