// The ops of a forward pass: for each kind a struct, `num_tasks` (how many tasks its work divides into) and `run_tasks`
// (computes some of them). Python fills the structs (`native/structs/`) and owns the memory that they point to; layout.h
// tells it sizes and offsets, so that the two definitions cannot differ.
// Loops read copies of an op's fields: to the compiler a vector store may change anything in memory, so fields of the op
// itself would be read again after each store.
#pragma once
#include "attention/attention.h"
#include "compress.h"
#include "rows/rows.h"
#include "rows/cut_norm.h"

namespace ryz {

enum OpKind {
  EMBED = 0,
  RESIDUAL = 1,
  LINEAR = 2,
  ROTATE = 3,
  ATTENTION = 4,
  TILE = 5,
  RANK_BARRIER = 6,
  COMPRESS = 7,
  SQUARE_SUM = 8,
  CUT_NORM = 9,
  ROUTE = 10,  // this one and those that follow: experts/expert_ops.h
  SORT_ROWS = 11,
  TILE_EXPERTS = 12,
  EXPERT_LINEAR = 13,
  MIX_EXPERTS = 14,
  GATHER = 15,
  SHRINK = 16,  // adapters/shrink_op.h
};

struct OpHeader {  // the first member of every op
  int32_t kind;
};

inline int64_t num_rows(int32_t sampled, const ForwardBatch& batch) { return sampled ? batch.num_samples : batch.num_rows; }
inline const int32_t* row_adapters(int32_t sampled, const ForwardBatch& batch) {
  return sampled ? batch.sample_adapters : batch.row_adapters;
}

// Rows of the embedding table by token id; zeros for the ids of other ranks.
struct EmbedOp {
  OpHeader header;
  int32_t type;          // WeightType
  const uint8_t* table;  // [num_ids][columns], or panels of CODES
  int64_t columns;
  int64_t first_id, num_ids;  // of this rank
  float* out;                 // [rows][width]
  int64_t width;
  CodeForm form;  // of CODES
};

inline int64_t num_tasks(const EmbedOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const EmbedOp& op, const ForwardBatch& batch, int first, int end) {
  for (int row = first; row < end; row++) {
    float* to = op.out + row * op.width;
    const int64_t id = batch.token_ids[row] - op.first_id;
    if (id < 0 || id >= op.num_ids) {
      std::memset(to, 0, op.width * sizeof(float));
    } else if (op.type == CODES) {
      decode_row(op.form, op.table, id, op.columns, to);
    } else {
      copy_row(op.table, op.type, id, op.columns, to);
    }
  }
}

// Residual sum and norm of all rows, or of the sampled ones, which become the first rows of the result.
struct ResidualOp {
  OpHeader header;
  int32_t sampled;
  Residual residual;
};

inline int64_t num_tasks(const ResidualOp& op, const ForwardBatch& batch) { return num_rows(op.sampled, batch); }

inline void run_tasks(const ResidualOp& op, const ForwardBatch& batch, int first, int end) {
  const Residual residual = op.residual;
  const int32_t* sample_rows = op.sampled ? batch.sample_rows : nullptr;
  const int64_t rows = num_rows(op.sampled, batch);
  for (int i = first; i < end; i++) {
    const int64_t row = sample_rows ? sample_rows[i] : i;
    if (residual.num_partials) add_partials(residual, row, i, batch.positions[row]);
    norm_row(residual, rows, row, i);
  }
}

// Matrix product; a task is a panel of outputs.
struct LinearOp {
  OpHeader header;
  int32_t sampled;  // the input has the sampled rows only
  int32_t type;     // WeightType
  TiledRows input;
  const uint8_t* weights;  // [panels]
  int64_t inputs, panels;
  LinearOutput output;
  CodeForm form;  // of CODES
  const AdapterTable* adapters;  // null: none add to it
  int64_t site;                  // its number among those that adapters add to
};

inline int64_t num_tasks(const LinearOp& op, const ForwardBatch& batch) {
  return num_rows(op.sampled, batch) ? op.panels : 0;
}

inline void run_tasks(const LinearOp& op, const ForwardBatch& batch, int first, int end) {
  const LowRankRows rows = {op.adapters, row_adapters(op.sampled, batch), op.site};
  const int64_t count = num_rows(op.sampled, batch);
  if (!rows.table || !rows.slots || !rows.any(count)) {
    return linear(op.type, op.form, op.input, op.weights, op.inputs, op.output, count, first, end);
  }
  expand(rows, count, first, end, [&](const LowRankSums& sums, int from, int to) {
    LinearOutput output = op.output;
    output.low_rank = &sums;
    linear(op.type, op.form, op.input, op.weights, op.inputs, output, count, from, to);
  });
}

// Norm and rotation of queries and keys; keys and values go into the cache, or into the recent window if there is one.
struct RotateOp {
  OpHeader header;
  int32_t half;           // the cache holds halves, not floats
  int32_t recent_window;  // the layer has compressed blocks
  AttentionLayer layer;
  Rotary rotary;
  float* qkv;  // [rows][stride]: queries, keys, values
  int64_t stride;
};

inline int64_t num_tasks(const RotateOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const RotateOp& op, const ForwardBatch& batch, int first, int end) {
  const auto store = op.half ? rotate_and_store<uint16_t> : rotate_and_store<float>;
  const int32_t* full = op.layer.sliding ? batch.sliding_slot_mapping : batch.slot_mapping;
  const int32_t* slots = op.recent_window ? batch.window_slot_mapping : full;
  for (int row = first; row < end; row++) {
    store(op.layer, op.rotary, op.qkv + row * op.stride, batch.positions[row], slots[row]);
  }
}

// Compression of the blocks that the pass has filled; a task is a block and a KV head.
struct CompressOp {
  OpHeader header;
  int32_t half;
  AttentionLayer layer;
  const ColdBlocks* cold;
};

inline int64_t num_tasks(const CompressOp& op, const ForwardBatch& batch) {
  return batch.num_full_blocks * op.layer.kv_heads;
}

inline void run_tasks(const CompressOp& op, const ForwardBatch& batch, int first, int end) {
  const auto compress = op.half ? compress_block<uint16_t> : compress_block<float>;
  for (int i = first; i < end; i++) {
    compress(op.layer, *op.cold, batch.full_blocks[i / op.layer.kv_heads], i % op.layer.kv_heads);
  }
}

// Grouped-query attention; a task is a KV head and a tile of tokens, or a segment of positions.
struct AttentionOp {
  OpHeader header;
  int32_t half;
  AttentionLayer layer;
  const ColdBlocks* cold;  // null: all blocks are in full precision
  AttentionRows rows;
};

inline int64_t num_tasks(const AttentionOp& op, const ForwardBatch& batch) {
  int64_t total = 0;
  for (int s = 0; s < batch.num_spans; s++) total += tasks_of(op.layer, batch, batch.spans[s], op.rows.parts);
  return total;
}

inline void run_tasks(const AttentionOp& op, const ForwardBatch& batch, int first, int end) {
  const auto uniform = op.half ? attend_uniform<uint16_t> : attend_uniform<float>;
  const auto mixed = op.half ? attend_mixed<uint16_t> : attend_mixed<float>;
  int64_t base = 0;
  for (int s = 0; s < batch.num_spans && base < end; s++) {
    const int64_t count = tasks_of(op.layer, batch, batch.spans[s], op.rows.parts);
    for (int64_t i = std::max<int64_t>(first, base); i < std::min<int64_t>(end, base + count); i++) {
      if (op.cold) {
        mixed(op.layer, *op.cold, batch, s, i - base, op.rows);
      } else {
        uniform(op.layer, batch, s, i - base, op.rows);
      }
    }
    base += count;
  }
}

// Copies rows into the tiles that a linear reads.
struct TileOp {
  OpHeader header;
  const float* rows;  // [rows][width]
  int64_t width;
  TiledRows tiled;
};

inline int64_t num_tasks(const TileOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(TileOp op, const ForwardBatch& batch, int first, int end) {
  for (int row = first; row < end; row++) tile_row(op.rows + row * op.width, op.width, op.tiled, batch.num_rows, row);
}

// Copies rows with their columns in another order, and into the tiles that a linear reads.
struct GatherOp {
  OpHeader header;
  const float* source;  // [rows][stride]
  int64_t stride;
  const int32_t* order;  // [width]: a column of `source`, or -1 for a zero
  float* rows;           // [rows][width]
  int64_t width;
  TiledRows tiled;
};

inline int64_t num_tasks(const GatherOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(GatherOp op, const ForwardBatch& batch, int first, int end) {
  for (int row = first; row < end; row++) {
    const float* from = op.source + row * op.stride;
    float* to = op.rows + row * op.width;
    for (int64_t i = 0; i < op.width; i++) to[i] = op.order[i] < 0 ? 0.0f : from[op.order[i]];
    tile_row(to, op.width, op.tiled, batch.num_rows, row);
  }
}

// Sums of squares of this rank's part of a norm that is cut over the ranks.
struct SquareSumOp {
  OpHeader header;
  CutNorm norm;
};

inline int64_t num_tasks(const SquareSumOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const SquareSumOp& op, const ForwardBatch&, int first, int end) {
  for (int row = first; row < end; row++) sum_squares(op.norm, row);
}

// That norm, when the sums of all ranks are there.
struct CutNormOp {
  OpHeader header;
  CutNorm norm;
};

inline int64_t num_tasks(const CutNormOp&, const ForwardBatch& batch) { return batch.num_rows; }

inline void run_tasks(const CutNormOp& op, const ForwardBatch&, int first, int end) {
  for (int row = first; row < end; row++) cut_norm(op.norm, row);
}

// All ranks have written their partial sums.
struct RankBarrierOp {
  OpHeader header;
};

}  // namespace ryz
