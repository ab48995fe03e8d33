// A barrier between the ranks of one host, in two halves: each rank counts its own calls of `publish` in shared memory,
// and `wait` returns when all ranks have published as often. What ranks tell each other lies in buffers beside the
// counts. A buffer is written again two exchanges later at the earliest: a rank that has published exchange n-1 has
// read everything of n-2. Stores become visible in program order on x86-64 (TSO).
#pragma once
#include <cstdint>

#include "thread_pool.h"

namespace ryz {

struct RankBarrier {
  EventCount* published;  // [world], how often each rank has published; one cache line per rank
  int64_t timeout_ns;
  uint32_t count;  // calls of `publish` by this rank; may wrap around
  int32_t rank, world;
  int32_t spin;

  void publish() {
    count++;
    published[rank].raise();
  }

  // Returns -1 when all ranks have published as often as this one, or the number of a rank that is late.
  int wait() {
    for (int other = 0; other < world; other++) {
      if (!published[other].wait(count, spin, timeout_ns)) return other;
    }
    return -1;
  }
};

}  // namespace ryz
