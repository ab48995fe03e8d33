// Sizes and offsets of every struct that Python fills, for `native/structs/` to compare with its own when the library
// is loaded. A struct is listed with all its fields.
#pragma once
#include <cstddef>

#include "adapters/pack_low_rank.h"
#include "adapters/shrink_op.h"
#include "blocks.h"
#include "experts/expert_ops.h"
#include "op_trace.h"
#include "rank_barrier.h"
#include "sampling/draw_rows.h"

namespace ryz {

struct LayoutEntry {
  const char *type, *field;  // field "": the whole struct
  int64_t offset, size;
};

#define STRUCT(type) {#type, "", 0, sizeof(type)}
#define FIELD(type, field) {#type, #field, offsetof(type, field), sizeof(type::field)}

const LayoutEntry LAYOUT[] = {
    STRUCT(ForwardBatch), FIELD(ForwardBatch, num_rows), FIELD(ForwardBatch, num_spans),
    FIELD(ForwardBatch, num_samples), FIELD(ForwardBatch, num_full_blocks), FIELD(ForwardBatch, token_ids),
    FIELD(ForwardBatch, positions), FIELD(ForwardBatch, slot_mapping), FIELD(ForwardBatch, spans),
    FIELD(ForwardBatch, block_tables), FIELD(ForwardBatch, sample_rows), FIELD(ForwardBatch, sliding_slot_mapping),
    FIELD(ForwardBatch, sliding_tables), FIELD(ForwardBatch, window_slot_mapping),
    FIELD(ForwardBatch, window_spans), FIELD(ForwardBatch, window_tables), FIELD(ForwardBatch, full_blocks),
    FIELD(ForwardBatch, row_adapters), FIELD(ForwardBatch, sample_adapters),

    STRUCT(OpSpan), FIELD(OpSpan, begin_ns), FIELD(OpSpan, end_ns), FIELD(OpSpan, place),

    STRUCT(OpTrace), FIELD(OpTrace, spans), FIELD(OpTrace, counts), FIELD(OpTrace, capacity), FIELD(OpTrace, first),

    STRUCT(AttentionLayer), FIELD(AttentionLayer, heads), FIELD(AttentionLayer, kv_heads), FIELD(AttentionLayer, dim),
    FIELD(AttentionLayer, width), FIELD(AttentionLayer, keys), FIELD(AttentionLayer, values),
    FIELD(AttentionLayer, block_stride),
    FIELD(AttentionLayer, window), FIELD(AttentionLayer, sliding), FIELD(AttentionLayer, pages),

    STRUCT(PageChoice), FIELD(PageChoice, recent), FIELD(PageChoice, sinks), FIELD(PageChoice, stride),

    STRUCT(ColdBlocks), FIELD(ColdBlocks, keys), FIELD(ColdBlocks, values), FIELD(ColdBlocks, key_scales),
    FIELD(ColdBlocks, value_scales), FIELD(ColdBlocks, hot_blocks), FIELD(ColdBlocks, block_stride),

    STRUCT(TiledRows), FIELD(TiledRows, floats), FIELD(TiledRows, pairs), FIELD(TiledRows, codes),
    FIELD(TiledRows, scales), FIELD(TiledRows, starts), FIELD(TiledRows, sums), FIELD(TiledRows, stride), FIELD(TiledRows, byte_stride),

    STRUCT(CodeForm), FIELD(CodeForm, kind), FIELD(CodeForm, group), FIELD(CodeForm, scales), FIELD(CodeForm, offsets),
    FIELD(CodeForm, zero), FIELD(CodeForm, table),

    STRUCT(NormRule), FIELD(NormRule, weight), FIELD(NormRule, bias), FIELD(NormRule, eps), FIELD(NormRule, kind),

    STRUCT(Rotary), FIELD(Rotary, cos), FIELD(Rotary, sin), FIELD(Rotary, half), FIELD(Rotary, query_norm),
    FIELD(Rotary, key_norm), FIELD(Rotary, norm_stride), FIELD(Rotary, clip),

    STRUCT(Residual), FIELD(Residual, hidden), FIELD(Residual, columns), FIELD(Residual, width),
    FIELD(Residual, partials), FIELD(Residual, partial_stride), FIELD(Residual, num_partials), FIELD(Residual, bias),
    FIELD(Residual, positions), FIELD(Residual, sum_norm), FIELD(Residual, norm), FIELD(Residual, scale),
    FIELD(Residual, assign), FIELD(Residual, normed),
    FIELD(Residual, tiled),

    STRUCT(CutNorm), FIELD(CutNorm, rows), FIELD(CutNorm, stride), FIELD(CutNorm, count),
    FIELD(CutNorm, weight), FIELD(CutNorm, size), FIELD(CutNorm, eps), FIELD(CutNorm, counts),
    FIELD(CutNorm, own), FIELD(CutNorm, sums), FIELD(CutNorm, num_ranks), FIELD(CutNorm, rank_stride),

    STRUCT(OutputRule), FIELD(OutputRule, activation), FIELD(OutputRule, gated), FIELD(OutputRule, accumulate),
    FIELD(OutputRule, scale), FIELD(OutputRule, softcap),

    STRUCT(LinearOutput), FIELD(LinearOutput, y), FIELD(LinearOutput, stride), FIELD(LinearOutput, columns),
    FIELD(LinearOutput, bias), FIELD(LinearOutput, rule), FIELD(LinearOutput, low_rank),

    STRUCT(ScoreRule), FIELD(ScoreRule, scale), FIELD(ScoreRule, softcap), FIELD(ScoreRule, slopes),
    FIELD(ScoreRule, sinks),

    STRUCT(SegmentParts), FIELD(SegmentParts, parts), FIELD(SegmentParts, finished), FIELD(SegmentParts, segments),

    STRUCT(AttentionRows), FIELD(AttentionRows, qkv), FIELD(AttentionRows, qkv_stride), FIELD(AttentionRows, out),
    FIELD(AttentionRows, out_stride), FIELD(AttentionRows, rules),
    FIELD(AttentionRows, parts),

    STRUCT(OpHeader), FIELD(OpHeader, kind),
    STRUCT(EmbedOp), FIELD(EmbedOp, header), FIELD(EmbedOp, type), FIELD(EmbedOp, table), FIELD(EmbedOp, columns),
    FIELD(EmbedOp, first_id), FIELD(EmbedOp, num_ids), FIELD(EmbedOp, out), FIELD(EmbedOp, width),
    FIELD(EmbedOp, form),
    STRUCT(ResidualOp), FIELD(ResidualOp, header), FIELD(ResidualOp, sampled), FIELD(ResidualOp, residual),
    STRUCT(LinearOp), FIELD(LinearOp, header), FIELD(LinearOp, sampled), FIELD(LinearOp, type),
    FIELD(LinearOp, input), FIELD(LinearOp, weights), FIELD(LinearOp, inputs), FIELD(LinearOp, panels),
    FIELD(LinearOp, output), FIELD(LinearOp, form), FIELD(LinearOp, adapters), FIELD(LinearOp, site),
    STRUCT(RotateOp), FIELD(RotateOp, header), FIELD(RotateOp, half), FIELD(RotateOp, recent_window),
    FIELD(RotateOp, layer), FIELD(RotateOp, rotary), FIELD(RotateOp, qkv), FIELD(RotateOp, stride),
    STRUCT(CompressOp), FIELD(CompressOp, header), FIELD(CompressOp, half), FIELD(CompressOp, layer),
    FIELD(CompressOp, cold),
    STRUCT(AttentionOp), FIELD(AttentionOp, header), FIELD(AttentionOp, half), FIELD(AttentionOp, layer),
    FIELD(AttentionOp, cold), FIELD(AttentionOp, rows),
    STRUCT(TileOp), FIELD(TileOp, header), FIELD(TileOp, rows), FIELD(TileOp, width), FIELD(TileOp, tiled),
    STRUCT(GatherOp), FIELD(GatherOp, header), FIELD(GatherOp, source), FIELD(GatherOp, stride), FIELD(GatherOp, order),
    FIELD(GatherOp, rows), FIELD(GatherOp, width), FIELD(GatherOp, tiled),
    STRUCT(SquareSumOp), FIELD(SquareSumOp, header), FIELD(SquareSumOp, norm),
    STRUCT(CutNormOp), FIELD(CutNormOp, header), FIELD(CutNormOp, norm),
    STRUCT(RankBarrierOp), FIELD(RankBarrierOp, header),

    STRUCT(UpSlice), FIELD(UpSlice, begin), FIELD(UpSlice, count), FIELD(UpSlice, at),
    STRUCT(PackedLowRank), FIELD(PackedLowRank, down), FIELD(PackedLowRank, up), FIELD(PackedLowRank, slices),
    FIELD(PackedLowRank, factors),
    FIELD(PackedLowRank, rank), FIELD(PackedLowRank, halves),
    STRUCT(AdapterTable), FIELD(AdapterTable, slots), FIELD(AdapterTable, inner), FIELD(AdapterTable, stride),
    STRUCT(LowRankPart), FIELD(LowRankPart, down), FIELD(LowRankPart, up), FIELD(LowRankPart, factors), FIELD(LowRankPart, rank),
    FIELD(LowRankPart, outputs),
    STRUCT(LinearShape), FIELD(LinearShape, inputs), FIELD(LinearShape, panels), FIELD(LinearShape, gated),
    FIELD(LinearShape, num_parts),
    STRUCT(ShrinkOp), FIELD(ShrinkOp, header), FIELD(ShrinkOp, sampled), FIELD(ShrinkOp, overlaps), FIELD(ShrinkOp, x),
    FIELD(ShrinkOp, stride), FIELD(ShrinkOp, inputs), FIELD(ShrinkOp, site), FIELD(ShrinkOp, table),

    STRUCT(RouterRule), FIELD(RouterRule, scoring), FIELD(RouterRule, normalize), FIELD(RouterRule, groups),
    FIELD(RouterRule, chosen_groups), FIELD(RouterRule, group_best), FIELD(RouterRule, scale),
    FIELD(RouterRule, selection_bias),
    STRUCT(ExpertSlots), FIELD(ExpertSlots, experts), FIELD(ExpertSlots, chosen), FIELD(ExpertSlots, choices),
    FIELD(ExpertSlots, shares), FIELD(ExpertSlots, slots), FIELD(ExpertSlots, begins), FIELD(ExpertSlots, active),
    FIELD(ExpertSlots, rows), FIELD(ExpertSlots, owners),
    STRUCT(RouteOp), FIELD(RouteOp, header), FIELD(RouteOp, rule), FIELD(RouteOp, slots), FIELD(RouteOp, logits),
    FIELD(RouteOp, stride),
    STRUCT(SortRowsOp), FIELD(SortRowsOp, header), FIELD(SortRowsOp, slots),
    STRUCT(TileExpertsOp), FIELD(TileExpertsOp, header), FIELD(TileExpertsOp, by_slot), FIELD(TileExpertsOp, slots),
    FIELD(TileExpertsOp, rows), FIELD(TileExpertsOp, width), FIELD(TileExpertsOp, tiled),
    STRUCT(ExpertLinearOp), FIELD(ExpertLinearOp, header), FIELD(ExpertLinearOp, type), FIELD(ExpertLinearOp, slots),
    FIELD(ExpertLinearOp, input), FIELD(ExpertLinearOp, weights), FIELD(ExpertLinearOp, inputs),
    FIELD(ExpertLinearOp, panels), FIELD(ExpertLinearOp, output), FIELD(ExpertLinearOp, form),
    STRUCT(MixExpertsOp), FIELD(MixExpertsOp, header), FIELD(MixExpertsOp, accumulate), FIELD(MixExpertsOp, slots),
    FIELD(MixExpertsOp, parts), FIELD(MixExpertsOp, shared), FIELD(MixExpertsOp, gate),
    FIELD(MixExpertsOp, gate_stride), FIELD(MixExpertsOp, out), FIELD(MixExpertsOp, width),

    STRUCT(RowDraw), FIELD(RowDraw, scores), FIELD(RowDraw, best), FIELD(RowDraw, top_k), FIELD(RowDraw, bits),
    FIELD(RowDraw, top_p), FIELD(RowDraw, temperature), FIELD(RowDraw, inverse), FIELD(RowDraw, min_p),
    FIELD(RowDraw, token),

    STRUCT(LayerPointers), FIELD(LayerPointers, keys), FIELD(LayerPointers, values), FIELD(LayerPointers, key_scales),
    FIELD(LayerPointers, value_scales), FIELD(LayerPointers, item_bytes), FIELD(LayerPointers, block_bytes),
    FIELD(LayerPointers, sliding),
    STRUCT(CachePointers), FIELD(CachePointers, num_layers), FIELD(CachePointers, kv_heads), FIELD(CachePointers, dim),
    FIELD(CachePointers, width), FIELD(CachePointers, layers),
    STRUCT(RankBarrier), FIELD(RankBarrier, published), FIELD(RankBarrier, timeout_ns), FIELD(RankBarrier, count),
    FIELD(RankBarrier, rank), FIELD(RankBarrier, world), FIELD(RankBarrier, spin),
    {nullptr, nullptr, 0, 0},
};

#undef STRUCT
#undef FIELD

}  // namespace ryz
