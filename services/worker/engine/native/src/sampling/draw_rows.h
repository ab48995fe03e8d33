// Draws one token from each of some rows of scores under min_p, top_k and top_p. The rules are those of
// `engine/sampling/top_k_top_p.py`: weights and their sums are whole numbers, so that the same token is chosen whatever
// the order of the additions. A row is read once; what follows reads only its blocks with a high score.
#pragma once
#include <cfloat>
#include <cmath>
#include <functional>
#include <vector>

#include "../thread_pool.h"
#include "shares.h"
#include "token_head.h"

namespace ryz {

struct RowDraw {
  const float* scores;  // [vocab]; may hold -infinity, but neither NaN nor +infinity
  int64_t best;         // the first token with the highest score, which is finite
  int64_t top_k;        // 0: all tokens
  int64_t bits;         // the random number, 53 bits
  double top_p;         // 1: all tokens
  double temperature;   // above 0
  float inverse;        // of the temperature, as fp32
  float min_p;
  int64_t token;  // the result
};

constexpr int ROW_BLOCK = 128;  // tokens of which the highest score and the sum of weights are kept

// The least whole number no less than top_p * total, exactly; at least 1. total: below 2^63.
inline int64_t share_of(int64_t total, double top_p) {
  if (top_p <= 0) return 1;
  int exponent;
  const double mantissa = std::frexp(top_p, &exponent);  // top_p = m * 2^(exponent - 53), m below 2^53
  const unsigned __int128 product = (unsigned __int128)(int64_t)std::ldexp(mantissa, 53) * (uint64_t)total;
  const int shift = 53 - exponent;
  if (shift >= 127) return 1;
  const unsigned __int128 whole = product >> shift;
  return std::max<int64_t>(1, (int64_t)whole + ((whole << shift) != product));
}

class RowDrawer {
 public:
  explicit RowDrawer(int64_t vocab) : vocab_(vocab), blocks_((vocab + ROW_BLOCK - 1) / ROW_BLOCK) {}

  int64_t draw(const RowDraw& row) {
    row_ = &row;
    shares_ = {set1(row.scores[row.best]), set1(row.inverse)};
    const bool some = row.top_k > 0 && row.top_k < vocab_;
    if (row.min_p <= 0 && !some) return row.top_p < 1 ? draw_head() : draw_any();
    scan<false>();
    float floor = row.min_p > 0 ? score_of(row.min_p) : -FLT_MAX;
    if (some && row.min_p <= 0 && row.top_k <= blocks_) floor = std::max(floor, block_maximum(row.top_k));
    gather(floor, row.min_p);
    if (some && row.top_k < (int64_t)found_.size()) keep_head<BY_COUNT>(found_, row.top_k, rest_);
    if (row.top_p < 1) keep_head<BY_WEIGHT>(found_, share_of(found_weight(), row.top_p), rest_);
    return draw_found();
  }

 private:
  static int64_t target(int64_t bits, int64_t total) { return (int64_t)(((unsigned __int128)bits * total) >> 53); }
  int64_t begin_of(int64_t block) const { return block * ROW_BLOCK; }

  // The scores of tokens first to first + 16; behind the row's end -infinity.
  F scores_at(int64_t first) const {
    if (first + LANES <= vocab_) return load(row_->scores + first);
    float tail[LANES];
    for (int i = 0; i < LANES; i++) tail[i] = first + i < vocab_ ? row_->scores[first + i] : -INFINITY;
    return load(tail);
  }

  // Finds the highest score of each block, and if `weighed` the weight.
  template <bool weighed>
  void scan() {
    maxima_.resize(blocks_);
    weights_.resize(blocks_);
    for (int64_t block = 0; block < blocks_; block++) {
      const int64_t end = std::min(begin_of(block + 1), vocab_);
      F highest = set1(-INFINITY);
      Mass mass;
      for (int64_t i = begin_of(block); i < end; i += LANES) {
        const F scores = scores_at(i);
        highest = max(highest, scores);
        if (weighed) mass.add(shares_.of(scores));
      }
      maxima_[block] = largest(highest);
      if (weighed) weights_[block] = mass.total();
    }
  }
  int64_t row_weight() const {
    int64_t total = 0;
    for (const int64_t weight : weights_) total += weight;
    return total;
  }

  // Finds the tokens of at least that score, finite, and of at least that share.
  void gather(float floor, float least) {
    found_.clear();
    for (int64_t block = 0; block < blocks_; block++) {
      if (!(maxima_[block] >= floor)) continue;
      const int64_t begin = begin_of(block), end = std::min(begin + ROW_BLOCK, vocab_);
      float shares[ROW_BLOCK];
      for (int64_t i = begin; i < end; i += LANES) store(shares + (i - begin), shares_.of(scores_at(i)));
      const size_t size = found_.size();
      found_.resize(size + ROW_BLOCK);
      WeightedToken* next = found_.data() + size;
      for (int64_t i = begin; i < end; i++) {
        const float share = shares[i - begin], score = row_->scores[i];
        *next = {score, (int32_t)i, weight_of(share)};
        next += (score >= floor) & (share >= least);
      }
      found_.resize(next - found_.data());
    }
  }
  int64_t found_weight() const {
    int64_t total = 0;
    for (const WeightedToken& token : found_) total += token.weight;
    return total;
  }
  int64_t draw_found() const {
    int64_t left = target(row_->bits, found_weight());
    for (const WeightedToken& token : found_) {
      if (left < token.weight) return token.id;
      left -= token.weight;
    }
    return row_->best;  // not reached: the target is below the total
  }

  // At least so many tokens have at least this score.
  float block_maximum(int64_t count) {
    sorted_ = maxima_;
    std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<float>());
    return std::max(sorted_[count - 1], -FLT_MAX);
  }

  // A score below that of every token of at least that share, by a little at most: margins far above fp32's rounding.
  float score_of(double share) const {
    const double exponent = std::log(share) * (1 + 1e-5) - 1e-5;
    const double score = row_->scores[row_->best] + std::max(row_->temperature, 1e-37) * exponent;
    const float below = std::nextafter((float)std::max(score, -(double)FLT_MAX), -FLT_MAX);
    return std::nextafter(below, -FLT_MAX);
  }

  // From the whole row.
  int64_t draw_any() {
    scan<true>();
    int64_t left = target(row_->bits, row_weight()), block = 0;
    while (left >= weights_[block]) left -= weights_[block++];
    for (int64_t i = begin_of(block);; i += LANES) {
      float shares[LANES];
      store(shares, shares_.of(scores_at(i)));
      for (int lane = 0; lane < LANES; lane++) {
        const int64_t weight = weight_of(shares[lane]);
        if (left < weight) return i + lane;
        left -= weight;
      }
    }
  }

  // From the tokens that top_p leaves of the whole row.
  int64_t draw_head() {
    scan<true>();
    const int64_t total = row_weight(), need = share_of(total, row_->top_p);
    if (need <= (int64_t)UNIT) return row_->best;
    // the tokens that weigh no more than this may all be left out; mostly a few tokens suffice
    const double light = std::max<int64_t>((total - need) / vocab_, 1) / (double)UNIT;
    for (const double power : {0.5, 0.75, 1.0}) {
      gather(score_of(std::pow(light, power)), 0.0f);
      if (found_weight() >= need) break;
    }
    keep_head<BY_WEIGHT>(found_, need, rest_);
    return draw_found();
  }

  const int64_t vocab_, blocks_;
  const RowDraw* row_ = nullptr;
  Shares shares_{};
  std::vector<float> maxima_, sorted_;
  std::vector<int64_t> weights_;
  std::vector<WeightedToken> found_, rest_;
};

// Draws a token for each row; threads take rows in turns.
inline void draw_rows(ThreadPool& pool, RowDraw* rows, int64_t count, int64_t vocab) {
  std::atomic<int64_t> next{0};
  const std::function<void(int)> work = [&](int) {
    RowDrawer drawer(vocab);
    for (int64_t i; (i = next.fetch_add(1)) < count;) rows[i].token = drawer.draw(rows[i]);
  };
  if (count == 1) return work(0);
  pool.run_on_all(work);
}

}  // namespace ryz
