// The pages that a token reads, numbered one after another. Attention counts positions in these: what is left out is
// neither looked up nor scored. The numbers follow from the token's own page alone.
#pragma once
#include "../cache.h"

namespace ryz {

// The pages that the tokens of page `own` read: the first ones, some in between, and the recent ones up to `own`.
struct PageList {
  int64_t first = 0;                // as many from the sequence's begin on
  int64_t begin = 0, stride = 1, between = 0;  // then so many, a stride apart
  int64_t recent = 0;               // then all from this one on

  PageList(const PageChoice& choice, int64_t own) {
    if (choice.recent == 0) return;
    recent = std::max<int64_t>(0, own - choice.recent);
    first = std::min(choice.sinks, recent);
    if (choice.stride) {
      stride = choice.stride;
      begin = (first + stride - 1) / stride * stride;
      between = begin < recent ? (recent - begin - 1) / stride + 1 : 0;
    }
  }

  bool whole() const { return recent == first + between; }
  // how many pages there are before the recent ones' page `page`
  int64_t before(int64_t page) const { return first + between + page - recent; }
  // the page with that number in the list
  int64_t page(int64_t number) const {
    if (number < first) return number;
    number -= first;
    return number < between ? begin + number * stride : recent + number - between;
  }
  // of the first key of the page with that number
  int64_t position(int64_t number) const { return page(number) * BLOCK; }
};

// The place of a position among those that its token reads.
inline int64_t place_among_read(const PageChoice& choice, int64_t position) {
  return PageList(choice, position / BLOCK).before(position / BLOCK) * BLOCK + position % BLOCK;
}

}  // namespace ryz
