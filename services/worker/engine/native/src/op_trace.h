// Records when each thread computed each op, during a profile: one branch per op where nothing is recorded.
#pragma once
#include <cstdint>

namespace ryz {

struct OpSpan {
  int64_t begin_ns, end_ns;
  int64_t place;  // of the op in the program
};

// counts: [threads][8], a cache line each; the first number counts all spans of a thread, also those beyond `capacity`.
struct OpTrace {
  OpSpan* spans;  // [threads][capacity]
  int64_t* counts;
  int64_t capacity;
  int64_t first;  // place of the first op of this run

  void add(int thread, int op, int64_t begin_ns, int64_t end_ns) {
    const int64_t at = counts[thread * 8]++;
    if (at < capacity) spans[thread * capacity + at] = {begin_ns, end_ns, first + op};
  }
};

}  // namespace ryz
