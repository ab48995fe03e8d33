// The router of a mixture of experts: which experts a row takes, with which weights, and which rows an expert has.
// A row's choice depends on its own logits only. Of equal scores the expert with the lower number is taken.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../simd.h"

namespace ryz {

constexpr int MAX_EXPERTS = 1024;
enum Scoring { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2 };

struct RouterRule {
  int32_t scoring;  // Scoring
  int32_t normalize;
  int32_t groups, chosen_groups;  // groups of equal size; 1: none
  int32_t group_best;             // a group's score is the sum of so many of its largest scores
  float scale;
  const float* selection_bias;  // [experts] or null
};

// What the experts of a layer have to do in a pass. A slot is a row's place at one of its experts; the slots of an expert
// follow each other, in the order of rows, and experts follow in the order of their numbers.
struct ExpertSlots {
  int64_t experts, chosen;
  int32_t* choices;  // [rows][chosen], ascending
  float* shares;     // [rows][chosen]
  int32_t* slots;    // [rows][chosen]
  int32_t* begins;   // [experts + 1], slots
  int32_t* active;   // [1 + experts]: how many experts have rows, then their numbers
  int32_t* rows;     // [slots]
  int32_t* owners;   // [slots], experts
};

// The largest of scores[0..count) that is not taken yet: the first one of those that are equal. NaN is never larger, and
// there is always one, so that damaged logits choose something.
inline int best_of(const float* scores, const uint8_t* taken, int count) {
  int best = -1;
  for (int i = 0; i < count; i++) {
    if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
  }
  return best;
}

// e^(x - largest) of [count], padded to whole registers; returns their sum
inline float exponentials(const float* x, int count, float* y) {
  F top = set1(-__builtin_inff());
  for (int i = 0; i < count; i += LANES) top = max(top, keep(load(x + i), i, 0, count));
  const F most = set1(largest(top));
  for (int i = 0; i < count; i += LANES) store(y + i, exp(keep(load(x + i) - most, i, 0, count)));
  float total = 0;
  for (int i = 0; i < count; i++) total += y[i];
  return total;
}

// Marks the experts of all groups but the best ones as taken.
inline void leave_groups_out(const RouterRule& rule, const float* wanted, int experts, uint8_t* taken) {
  const int size = experts / rule.groups;
  float scores[MAX_EXPERTS];
  uint8_t chosen[MAX_EXPERTS] = {0};
  for (int group = 0; group < rule.groups; group++) {
    uint8_t seen[MAX_EXPERTS] = {0};
    float score = 0;
    for (int i = 0; i < rule.group_best; i++) {
      const int best = best_of(wanted + group * size, seen, size);
      score += wanted[group * size + best];
      seen[best] = 1;
    }
    scores[group] = score;
  }
  for (int i = 0; i < rule.chosen_groups; i++) chosen[best_of(scores, chosen, rule.groups)] = 1;
  for (int group = 0; group < rule.groups; group++) {
    if (!chosen[group]) std::memset(taken + group * size, 1, size);
  }
}

// logits: [experts], padded to whole registers. Writes [chosen] numbers, ascending, and their weights.
inline void choose_experts(const RouterRule& rule, const float* logits, int experts, int chosen, int32_t* choices,
                           float* shares) {
  alignas(64) float scores[MAX_EXPERTS], wanted[MAX_EXPERTS];
  uint8_t taken[MAX_EXPERTS] = {0};
  if (rule.scoring == SOFTMAX) {
    const float total = exponentials(logits, experts, scores);
    for (int i = 0; i < experts; i++) scores[i] /= total;
  } else if (rule.scoring == SIGMOID) {
    for (int i = 0; i < experts; i += LANES) store(scores + i, set1(1.0f) / (set1(1.0f) + exp(zero() - load(logits + i))));
  } else {
    std::memcpy(scores, logits, experts * sizeof(float));
  }
  for (int i = 0; i < experts; i++) wanted[i] = rule.selection_bias ? scores[i] + rule.selection_bias[i] : scores[i];
  if (rule.groups > 1) leave_groups_out(rule, wanted, experts, taken);
  for (int i = 0; i < chosen; i++) {
    choices[i] = best_of(wanted, taken, experts);
    taken[choices[i]] = 1;
  }
  std::sort(choices, choices + chosen);
  alignas(64) float weights[MAX_EXPERTS];
  for (int i = 0; i < chosen; i++) weights[i] = scores[choices[i]];
  if (rule.scoring == SOFTMAX_CHOSEN) {
    alignas(64) float parts[MAX_EXPERTS];
    const float total = exponentials(weights, chosen, parts);
    for (int i = 0; i < chosen; i++) weights[i] = parts[i] / total;
  }
  float divisor = 1.0f;
  if (rule.normalize) {
    divisor = 0;
    for (int i = 0; i < chosen; i++) divisor += weights[i];
    divisor += 1e-20f;  // so that weights that are all 0 stay finite
  }
  for (int i = 0; i < chosen; i++) shares[i] = weights[i] / divisor * rule.scale;
}

// Sorts the choices of all rows by expert.
inline void sort_by_expert(const ExpertSlots& all, int64_t rows) {
  const int64_t count = rows * all.chosen, experts = all.experts;
  int32_t next[MAX_EXPERTS + 1] = {0};
  for (int64_t i = 0; i < count; i++) next[all.choices[i] + 1]++;
  all.active[0] = 0;
  for (int64_t e = 0; e < experts; e++) {
    if (next[e + 1]) all.active[++all.active[0]] = e;
    next[e + 1] += next[e];
  }
  std::memcpy(all.begins, next, (experts + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < count; i++) {
    const int32_t expert = all.choices[i], slot = next[expert]++;
    all.slots[i] = slot;
    all.rows[slot] = i / all.chosen;
    all.owners[slot] = expert;
  }
}

}  // namespace ryz
