// The op that multiplies the input of a linear with the `down` matrices of its rows' adapters, before the linear.
#pragma once
#include "../ops.h"

namespace ryz {

// A task is some inner features of some rows.
struct ShrinkOp {
  OpHeader header;
  int32_t sampled;  // the input has the sampled rows only
  int32_t overlaps; // the next op neither reads what this one writes nor changes what it reads
  const float* x;   // [rows][stride]
  int64_t stride, inputs;
  int64_t site;
  const AdapterTable* table;
};

constexpr int64_t FEATURE_PARTS = 4;  // tasks of a row
constexpr int64_t FEW_ROWS = 32;      // up to so many, each row has tasks of its own
constexpr int64_t TASK_ROWS = 16;     // of a task, if there are more

inline int64_t shrink_height(const ShrinkOp& op, const ForwardBatch& batch) {
  return num_rows(op.sampled, batch) > FEW_ROWS ? TASK_ROWS : 1;
}

inline int64_t num_tasks(const ShrinkOp& op, const ForwardBatch& batch) {
  const int64_t height = shrink_height(op, batch);
  return (num_rows(op.sampled, batch) + height - 1) / height * FEATURE_PARTS;
}

inline void run_tasks(const ShrinkOp& whole, const ForwardBatch& batch, int first, int end) {
  const ShrinkOp op = whole;
  const LowRankRows rows = {op.table, row_adapters(op.sampled, batch), op.site};
  const int64_t height = shrink_height(op, batch), count = num_rows(op.sampled, batch), stride = op.table->stride;
  for (int64_t task = first; task < end; task++) {
    const int64_t part = task % FEATURE_PARTS, begin = task / FEATURE_PARTS * height, last = std::min(count, begin + height);
    for (int64_t row = begin, next; row < last; row = next) {
      next = rows.run_end(row, last);
      const PackedLowRank* m = rows.of(row);
      if (!m) continue;
      constexpr int64_t GROUP = FeatureGroup::GROUP;
      const int64_t groups = (m->rank + GROUP - 1) / GROUP, from = groups * part / FEATURE_PARTS * GROUP;
      const int64_t to = std::min<int64_t>(m->rank, groups * (part + 1) / FEATURE_PARTS * GROUP);
      if (from < to) {
        shrink(*m, op.x + row * op.stride, op.stride, op.inputs, next - row, from, to, op.table->inner + row * stride, stride);
      }
    }
  }
}

}  // namespace ryz
