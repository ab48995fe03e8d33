// Runs a forward pass, which is a list of ops made once and run for every step: one call from Python, and the threads
// of the rank go through the ops together. The ops themselves are in `ops.h`.
#include <algorithm>
#include <vector>

#include "adapters/pack_low_rank.h"
#include "adapters/shrink_op.h"
#include "all_reduce.h"
#include "experts/expert_ops.h"
#include "layout.h"
#include "op_trace.h"
#include "ops.h"
#include "rank_barrier.h"
#include "sampling/draw_rows.h"
#include "thread_pool.h"
#include "weights/pack.h"

namespace ryz {

// What the time of a step is spent on, in the order of `times`.
enum TimeOf { T_LINEARS = 0, T_ATTENTION = 1, T_RANK_BARRIERS = 2, T_ROWS = 3 };

TimeOf time_of(int kind) {
  switch (kind) {
    case LINEAR:
    case SHRINK:
    case EXPERT_LINEAR: return T_LINEARS;
    case ROTATE:
    case COMPRESS:
    case ATTENTION: return T_ATTENTION;
    case RANK_BARRIER: return T_RANK_BARRIERS;
    default: return T_ROWS;
  }
}

// ops: addresses of the ops, each of which begins with an `OpHeader`. times: [4], raised by the nanoseconds of each op.
// beats: raised by one before each op, so that the leader sees progress; may be null.
// trace: gets the time of each op on each thread, without the waiting for the other threads behind it; may be null.
// Returns -1, or the number of a rank that did not reach a barrier in time.
int run(ThreadPool& pool, RankBarrier* ranks, const OpHeader* const* ops, int count, const ForwardBatch& batch,
        int64_t* times, uint64_t* beats, OpTrace* trace) {
  const int threads = pool.threads();
  std::vector<TaskCounter> counters(count * threads);
  std::atomic<int> late{-1};
  pool.run_on_all([&](int thread) {
    int64_t before = thread == 0 || trace ? now_ns() : 0;
    for (int i = 0; i < count; i++) {
      if (thread == 0 && beats) __atomic_store_n(beats, *beats + 1, __ATOMIC_RELAXED);
      const auto share = [&](const auto& op) {
        share_tasks(&counters[i * threads], threads, thread, num_tasks(op, batch),
                    [&](int first, int end) { run_tasks(op, batch, first, end); });
      };
      const OpHeader& op = *ops[i];
      switch (op.kind) {
        case EMBED: share((const EmbedOp&)op); break;
        case RESIDUAL: share((const ResidualOp&)op); break;
        case LINEAR: share((const LinearOp&)op); break;
        case ROTATE: share((const RotateOp&)op); break;
        case COMPRESS: share((const CompressOp&)op); break;
        case ATTENTION: share((const AttentionOp&)op); break;
        case TILE: share((const TileOp&)op); break;
        case SHRINK: share((const ShrinkOp&)op); break;
        case GATHER: share((const GatherOp&)op); break;
        case SQUARE_SUM: share((const SquareSumOp&)op); break;
        case CUT_NORM: share((const CutNormOp&)op); break;
        case ROUTE: share((const RouteOp&)op); break;
        case SORT_ROWS: share((const SortRowsOp&)op); break;
        case TILE_EXPERTS: share((const TileExpertsOp&)op); break;
        case EXPERT_LINEAR: share((const ExpertLinearOp&)op); break;
        case MIX_EXPERTS: share((const MixExpertsOp&)op); break;
        case RANK_BARRIER:
          if (thread == 0) {
            ranks->publish();
            late = ranks->wait();
          }
          break;
      }
      if (trace) trace->add(thread, i, before, now_ns());
      if (op.kind != SHRINK || !((const ShrinkOp&)op).overlaps) pool.barrier(thread);
      if (thread == 0) {
        const int64_t now = now_ns();
        times[time_of(op.kind)] += now - before;
        before = now;
      } else if (trace) {
        before = now_ns();
      }
      if (late.load(std::memory_order_relaxed) >= 0) return;
    }
  });
  return late;
}

}  // namespace ryz

using namespace ryz;

extern "C" {

const LayoutEntry* ryz_layout() { return LAYOUT; }
const char* ryz_target() { return RYZ_AVX512 ? "avx512" : RYZ_AVXVNNI ? "avxvnni" : "avx2"; }
int ryz_panel() { return PANEL; }
// Whether bf16 is multiplied by the processor's own instruction; `wanted` < 0 leaves it as it is.
int ryz_bf16_instruction(int wanted) {
  if (wanted >= 0) bf16_instruction = wanted && has_bf16_instruction();
  return bf16_instruction;
}

ThreadPool* ryz_thread_pool_new(int threads, int spin) { return new ThreadPool(threads, spin); }
void ryz_thread_pool_free(ThreadPool* pool) { delete pool; }

int ryz_run(ThreadPool* pool, RankBarrier* ranks, const OpHeader* const* ops, int count, const ForwardBatch* batch,
            int64_t* times, uint64_t* beats, OpTrace* trace) {
  return run(*pool, ranks, ops, count, *batch, times, beats, trace);
}
void ryz_publish(RankBarrier* ranks) { ranks->publish(); }
int ryz_wait(RankBarrier* ranks) { return ranks->wait(); }
int ryz_all_reduce(RankBarrier* ranks, float* slots, int64_t slot_floats, float* data, int64_t count) {
  return all_reduce(*ranks, slots, slot_floats, data, count);
}

// Heads `first` to `first + count` of a block; rows of `bytes` are `stride` apart.
void ryz_copy_out(const CachePointers* cache, int64_t block, int64_t sliding, int64_t first, int64_t count, uint8_t* bytes,
                  int64_t stride) {
  for (int64_t i = 0; i < count; i++) copy_head<true>(*cache, block, sliding, first + i, bytes + i * stride);
}
void ryz_copy_in(const CachePointers* cache, int64_t block, int64_t sliding, int64_t first, int64_t count,
                 const uint8_t* bytes, int64_t stride) {
  for (int64_t i = 0; i < count; i++)
    copy_head<false>(*cache, block, sliding, first + i, const_cast<uint8_t*>(bytes) + i * stride);
}

void ryz_draw_rows(ThreadPool* pool, RowDraw* rows, int64_t count, int64_t vocab) { draw_rows(*pool, rows, count, vocab); }
void ryz_shares(const float* scores, float peak, float inverse, float* out, int64_t count) {
  const Shares shares{set1(peak), set1(inverse)};
  for (int64_t i = 0; i + LANES <= count; i += LANES) store(out + i, shares.of(load(scores + i)));
}

void ryz_compress(const float* from, int64_t count, uint8_t* codes, float* scale) { *scale = compress(from, count, codes); }

int64_t ryz_packed_bytes(int64_t n, int64_t k, int type, const CodeForm* form) {
  return padded(n, PANEL) / PANEL * panel_bytes(k, type, form ? *form : CodeForm());
}
void ryz_pack(const void* source, int64_t n, int64_t k, int type, void* target, int threads) {
  switch (type) {
    case F32: return pack((const float*)source, n, k, (float*)target, threads);
    case INT8: return pack_int8((const float*)source, n, k, (uint8_t*)target, threads);
    case BF16_PAIRS: return pack_pairs((const uint16_t*)source, n, k, (uint32_t*)target, threads);
    default: return pack((const uint16_t*)source, n, k, (uint16_t*)target, threads);
  }
}
void ryz_pack_codes(const uint8_t* codes, const uint8_t* scales, const uint8_t* offsets, int64_t n, int64_t k,
                    const CodeForm* form, uint8_t* target, int threads) {
  pack_codes({codes, scales, offsets, n, k}, *form, target, threads);
}
// What an adapter adds to one linear; see `adapters/pack_low_rank.h`.
int ryz_fits_halves(const LowRankPart* parts, const LinearShape* shape) { return fits_halves(parts, *shape); }
int64_t ryz_low_rank_bytes(const LowRankPart* parts, const LinearShape* shape, int halves) {
  return low_rank_bytes(parts, *shape, halves);
}
void ryz_pack_low_rank(const LowRankPart* parts, const LinearShape* shape, int halves, uint8_t* target, PackedLowRank* to) {
  *to = pack_low_rank(parts, *shape, halves, target);
}
void ryz_decode_row(const CodeForm* form, const uint8_t* weights, int64_t row, int64_t columns, float* to) {
  decode_row(*form, weights, row, columns, to);
}

}  // extern "C"
