// The head of a list of tokens: the fewest, the likeliest first, whose masses reach a number. The likelier token is the
// one with the higher score, of two with the same score the one with the lower id.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace ryz {

struct WeightedToken {
  float score;
  int32_t id;
  int64_t weight;
};

constexpr int BUCKETS = 512;      // of scores, in one round
constexpr int ROUNDS = 8;         // after which the rest is sorted, however many it has
constexpr size_t SORTED = 128;    // so few are sorted at once
constexpr bool BY_COUNT = false;  // a token's mass is 1
constexpr bool BY_WEIGHT = true;

// Leaves the head of `tokens`, which stay in the order of their ids. need: from 1 to the sum of the masses.
// rest: scratch.
template <bool by_weight>
void keep_head(std::vector<WeightedToken>& tokens, int64_t need, std::vector<WeightedToken>& rest) {
  const auto mass = [](const WeightedToken& token) { return by_weight ? token.weight : 1; };
  rest = tokens;
  // each round finds the bucket of scores in which the head ends, and goes on with the tokens of that bucket
  for (int round = 0; round < ROUNDS && rest.size() > SORTED; round++) {
    float low = rest[0].score, high = low;
    for (const WeightedToken& token : rest) {
      low = std::min(low, token.score);
      high = std::max(high, token.score);
    }
    if (low == high) break;
    const double top = high, scale = BUCKETS / (top - low);
    const auto bucket_of = [&](const WeightedToken& token) {
      return std::min(BUCKETS - 1, (int)((top - token.score) * scale));
    };
    int64_t masses[BUCKETS] = {};
    for (const WeightedToken& token : rest) masses[bucket_of(token)] += mass(token);
    int bucket = 0;
    while (bucket < BUCKETS - 1 && masses[bucket] < need) need -= masses[bucket++];
    rest.erase(std::remove_if(rest.begin(), rest.end(),
                              [&](const WeightedToken& token) { return bucket_of(token) != bucket; }),
               rest.end());
  }
  std::stable_sort(rest.begin(), rest.end(),
                   [](const WeightedToken& a, const WeightedToken& b) { return a.score > b.score; });
  size_t last = 0;
  while (last + 1 < rest.size() && (need -= mass(rest[last])) > 0) last++;
  const float score = rest[last].score;
  const int32_t id = rest[last].id;
  tokens.erase(std::remove_if(tokens.begin(), tokens.end(),
                              [&](const WeightedToken& token) {
                                return token.score < score || (token.score == score && token.id > id);
                              }),
               tokens.end());
}

}  // namespace ryz
