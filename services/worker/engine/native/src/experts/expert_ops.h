// The ops of a mixture of experts, as those in `ops.h`. Each expert that has rows in a pass is computed once, over all of
// them; a task is a panel of one expert, so that all threads have work with a single row too.
// The tiles of an expert's rows begin at its first slot, and are cut by the number of its rows.
#pragma once
#include "../ops.h"
#include "routing.h"

namespace ryz {

inline int64_t rows_of(const ExpertSlots& all, int64_t expert) { return all.begins[expert + 1] - all.begins[expert]; }

// The tiles of an expert, whose first slot is `begin`.
inline TiledRows tiles_from(TiledRows tiled, int64_t begin) {
  if (tiled.floats) tiled.floats += begin * tiled.stride;
  if (tiled.pairs) tiled.pairs += begin * tiled.stride;
  if (tiled.codes) {
    const int64_t block = begin * tiled.byte_stride / SCALE_BLOCK;
    tiled.codes += begin * tiled.byte_stride;
    tiled.scales += block;
    tiled.starts += block;
    if (tiled.sums) tiled.sums += 2 * block;
  }
  return tiled;
}

// Experts and weights of each row.
struct RouteOp {
  OpHeader header;
  RouterRule rule;
  ExpertSlots slots;
  const float* logits;  // [rows][stride]
  int64_t stride;
};

inline int64_t num_tasks(const RouteOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const RouteOp& op, const ForwardBatch&, int first, int end) {
  const int64_t chosen = op.slots.chosen;
  for (int64_t row = first; row < end; row++) {
    choose_experts(op.rule, op.logits + row * op.stride, op.slots.experts, chosen, op.slots.choices + row * chosen,
                   op.slots.shares + row * chosen);
  }
}

// Rows of each expert; one task.
struct SortRowsOp {
  OpHeader header;
  ExpertSlots slots;
};

inline int64_t num_tasks(const SortRowsOp&, const ForwardBatch& batch) { return batch.num_rows > 0; }

inline void run_tasks(const SortRowsOp& op, const ForwardBatch& batch, int, int) { sort_by_expert(op.slots, batch.num_rows); }

// Copies the row of each slot into the tiles of the slot's expert.
struct TileExpertsOp {
  OpHeader header;
  int32_t by_slot;  // there is a row for each slot; else the rows are those of the batch
  ExpertSlots slots;
  const float* rows;  // [rows or slots][width]
  int64_t width;
  TiledRows tiled;
};

inline int64_t num_tasks(const TileExpertsOp& op, const ForwardBatch& batch) { return batch.num_rows * op.slots.chosen; }

inline void run_tasks(const TileExpertsOp& op, const ForwardBatch&, int first, int end) {
  for (int64_t slot = first; slot < end; slot++) {
    const int64_t expert = op.slots.owners[slot], begin = op.slots.begins[expert];
    const int64_t row = op.by_slot ? slot : op.slots.rows[slot];
    const TiledRows tiled = tiles_from(op.tiled, begin);
    tile_row(op.rows + row * op.width, op.width, tiled, rows_of(op.slots, expert), slot - begin);
  }
}

// Matrix products of all experts that have rows.
struct ExpertLinearOp {
  OpHeader header;
  int32_t type;  // WeightType
  ExpertSlots slots;
  TiledRows input;
  const uint8_t* weights;  // [experts][panels]
  int64_t inputs, panels;
  LinearOutput output;  // y: [slots, stride]; bias: [experts][panels * PANEL]
  CodeForm form;        // of CODES
};

inline int64_t num_tasks(const ExpertLinearOp& op, const ForwardBatch& batch) {
  return batch.num_rows ? op.slots.active[0] * op.panels : 0;
}

inline void run_tasks(const ExpertLinearOp& op, const ForwardBatch&, int first, int end) {
  const int64_t panels = op.panels, bytes = panels * panel_bytes(op.inputs, op.type, op.form);
  for (int task = first; task < end;) {
    const int64_t place = task / panels, expert = op.slots.active[1 + place], begin = op.slots.begins[expert];
    const int panel = task - place * panels, last = std::min<int64_t>(panels, panel + end - task);
    LinearOutput output = op.output;
    output.y += begin * output.stride;
    if (output.bias) output.bias += expert * panels * PANEL;
    linear(op.type, op.form, tiles_from(op.input, begin), op.weights + expert * bytes, op.inputs, output,
           rows_of(op.slots, expert), panel, last);
    task += last - panel;
  }
}

// Adds what the experts of a row computed, in the order of their numbers, and what all rows have in common.
struct MixExpertsOp {
  OpHeader header;
  int32_t accumulate;  // added to what is there
  ExpertSlots slots;
  const float* parts;   // [slots][width]
  const float* shared;  // [rows][width], or null
  const float* gate;    // the logit of its gate, [rows] `gate_stride` apart, or null
  int64_t gate_stride;
  float* out;  // [rows][width]
  int64_t width;
};

inline int64_t num_tasks(const MixExpertsOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const MixExpertsOp& whole, const ForwardBatch&, int first, int end) {
  const MixExpertsOp op = whole;
  const int64_t chosen = op.slots.chosen;
  for (int64_t row = first; row < end; row++) {
    const int32_t* slots = op.slots.slots + row * chosen;
    const float* shares = op.slots.shares + row * chosen;
    float* to = op.out + row * op.width;
    const F gate = op.gate ? set1(1.0f) / (set1(1.0f) + exp(set1(-op.gate[row * op.gate_stride]))) : set1(1.0f);
    for (int64_t i = 0; i < op.width; i += LANES) {
      F total = zero();
      for (int64_t c = 0; c < chosen; c++) total = total + load(op.parts + slots[c] * op.width + i) * set1(shares[c]);
      if (op.shared) total = total + load(op.shared + row * op.width + i) * gate;
      store(to + i, op.accumulate ? load(to + i) + total : total);
    }
  }
}

}  // namespace ryz
