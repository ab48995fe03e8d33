// Where the keys and values of a sequence lie, for the tasks of attention.
#pragma once
#include "pages.h"

namespace ryz {

constexpr int CHUNK = 16;  // blocks per softmax step, and of a call of `runs` at most

// The blocks of a sequence that a task reads, in runs of one precision; they are numbered as in its list of pages.
template <class T>
struct UniformView {
  FullPrecision<T> cache;
  const int32_t* block_table;
  PageList pages;

  template <class Use>
  void runs(int64_t begin, int64_t end, Use use) const {
    const int32_t* table = block_table;
    int32_t picked[CHUNK];
    if (!pages.whole()) {
      for (int64_t number = begin; number < end; number++) picked[number - begin] = block_table[pages.page(number)];
      table = picked - begin;
    }
    use(cache, table, begin, end);
  }
};

template <class T>
struct MixedView {
  FullPrecision<T> window;
  Compressed compressed;
  const int32_t *block_table, *window_table;
  int64_t border;  // blocks of the sequence before it are read compressed
  PageList pages;

  template <class Use>
  void runs(int64_t begin, int64_t end, Use use) const {
    int64_t middle = std::min(std::max(begin, border), end);
    const int32_t *cold = block_table, *hot = window_table;
    int32_t picked[CHUNK];
    if (!pages.whole()) {
      for (middle = begin; middle < end && pages.page(middle) < border; middle++) {
        picked[middle - begin] = block_table[pages.page(middle)];
      }
      for (int64_t number = middle; number < end; number++) picked[number - begin] = window_table[pages.page(number)];
      cold = hot = picked - begin;
    }
    if (begin < middle) use(compressed, cold, begin, middle);
    if (middle < end) use(window, hot, middle, end);
  }
};

}  // namespace ryz
