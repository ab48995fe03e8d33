// Meeting point of the ranks of one host in shared memory: who has published how many times. What is exchanged
// lies in slots beside it, written by one rank and read by all. A slot is used in every second exchange: who has
// published exchange n-1 has read everything of n-2. Stores become visible in program order on x86-64.
#pragma once
#include <atomic>
#include <cstdint>

#include "team.h"

namespace ryz {

// library.py has the same structure, and owns it.
struct Exchange {
  Signal* published;  // how often each rank has, one cache line per rank
  int64_t timeout_ns;
  uint32_t count;  // exchanges so far; it may wrap around
  int32_t rank, world;
  int32_t spin;

  void publish() {
    count++;
    published[rank].raise();
  }

  // Returns -1 when all ranks have published as often as this one, else the number of one that is late.
  int wait() {
    for (int other = 0; other < world; other++) {
      if (!published[other].wait(count, spin, timeout_ns)) return other;
    }
    return -1;
  }
};

}  // namespace ryz
