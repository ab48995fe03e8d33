// All-reduce of the ranks of one host through slots in shared memory, for tensors of any length.
#pragma once
#include <algorithm>
#include <cstring>

#include "rank_barrier.h"

namespace ryz {

constexpr int64_t REDUCE_FLOATS = 16384;  // of a chunk: the slots that are in use stay in the cores' caches

inline void add_parts(const float* a, const float* b, float* to, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

// Sums in the order of ranks, in place. A chunk is published before the one before it is added up, so that no rank waits
// for another's additions; hence three slots.
// slots: [3][world][slot_floats]. Returns -1, or the number of a rank that is late.
inline int all_reduce(RankBarrier& ranks, float* slots, int64_t slot_floats, float* data, int64_t count) {
  const int world = ranks.world, own = ranks.rank;
  const int64_t chunk = std::min(slot_floats, REDUCE_FLOATS);
  const auto slots_of = [&](uint32_t operation) { return slots + operation % 3 * world * slot_floats; };
  const auto publish = [&](int64_t begin) {
    std::memcpy(slots_of(ranks.count + 1) + own * slot_floats, data + begin, std::min(chunk, count - begin) * sizeof(float));
    ranks.publish();
  };
  int late = ranks.wait();  // for the operation before: no rank still reads the slot that is written now
  if (late >= 0 || count == 0) return late;
  publish(0);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    late = ranks.wait();
    if (late >= 0) return late;
    const float* all = slots_of(ranks.count);
    if (begin + chunk < count) publish(begin + chunk);
    float* to = data + begin;
    const int64_t size = std::min(chunk, count - begin);
    // the first two are added at once, so that one of them may be the result's own place
    add_parts(own == 0 ? to : all, own == 1 ? to : all + slot_floats, to, size);
    for (int other = 2; other < world; other++) add_parts(to, all + other * slot_floats, to, size);
  }
  return -1;
}

}  // namespace ryz
