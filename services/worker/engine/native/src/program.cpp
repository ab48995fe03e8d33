// A forward pass as a list of ops that is made once and run for every step: one call from Python, and the rank's
// threads go through the ops together. Buffers and weights are given as addresses; `program.py` owns them.
#include <algorithm>
#include <vector>

#include "attention.h"
#include "blocks.h"
#include "compress.h"
#include "exchange.h"
#include "linear.h"
#include "pack.h"
#include "rows.h"
#include "team.h"

namespace ryz {

enum Kind { EMBED = 0, RESIDUAL = 1, LINEAR = 2, ROTATE = 3, ATTENTION = 4, PREPARE = 5, EXCHANGE = 6, COMPRESS = 7 };
enum Times { T_LINEAR = 0, T_ATTENTION = 1, T_EXCHANGE = 2, T_ROWS = 3, NUM_TIMES = 4 };

// The fields of an op by kind; program.py has the same structure.
struct Op {
  int32_t kind, flags;
  int64_t n[7];
  const void* p[10];
  float eps;
  int32_t type;
};

enum Flags {
  SAMPLED = 1,  // rows are those to be sampled, not all
  ASSIGN = 2,   // RESIDUAL: the sum replaces the stream
  SILU = 4,     // LINEAR: the first half of the outputs gates the second
  HALF = 8,     // ROTATE, ATTENTION, COMPRESS: the cache holds half-precision floats
  ZONED = 16,   // the same: and compressed blocks
};

struct Context {
  Team& team;
  Exchange* exchange;
  const Batch& batch;
};

template <class T>
T* at(const Op& op, int i) {
  return (T*)op.p[i];
}

int64_t rows_of(const Op& op, const Batch& batch) { return op.flags & SAMPLED ? batch.samples : batch.rows; }

// p: table, out | n: columns, width, first id, ids
void embed(const Op& op, const Batch& batch, int first, int end) {
  for (int row = first; row < end; row++) {
    float* to = at<float>(op, 1) + row * op.n[1];
    const int64_t id = batch.token_ids[row] - op.n[2];
    if (id < 0 || id >= op.n[3]) {
      std::memset(to, 0, op.n[1] * sizeof(float));
    } else {
      copy_row(at<uint8_t>(op, 0), op.type, id, op.n[0], to);
    }
  }
}

// p: hidden, parts, bias, norm, y, x, q, scales, sums | n: columns, width, part stride, parts, input stride
void residual(const Op& op, const Batch& batch, int first, int end) {
  Residual r = {};
  r.hidden = at<float>(op, 0);
  r.columns = op.n[0], r.width = op.n[1];
  r.parts = at<float>(op, 1), r.part_stride = op.n[2], r.parts_count = (int)op.n[3];
  r.assign = op.flags & ASSIGN;
  r.bias = at<float>(op, 2), r.norm = at<float>(op, 3), r.eps = op.eps;
  r.y = at<float>(op, 4);
  r.out = {at<float>(op, 5), at<int8_t>(op, 6), at<float>(op, 7), at<int32_t>(op, 8), op.n[4]};
  const Tiles tiles(rows_of(op, batch));
  for (int i = first; i < end; i++) {
    const int64_t row = op.flags & SAMPLED ? batch.sample_rows[i] : i;
    add_parts(r, row);
    norm_row(r, tiles, row, i);
  }
}

// p: x, q, scales, sums, weights, y, bias, weight scales | n: inputs, input stride, panels, output stride, columns
void linear_op(const Op& op, const Batch& batch, int first, int end) {
  const Input in = {at<float>(op, 0), at<int8_t>(op, 1), at<float>(op, 2), at<int32_t>(op, 3), op.n[1]};
  const Output out = {at<float>(op, 5), op.n[3], op.n[4], at<float>(op, 6), at<float>(op, 7), (op.flags & SILU) != 0};
  linear(op.type, in, at<uint8_t>(op, 4), op.n[0], out, rows_of(op, batch), first, end);
}

// p: qkv, keys, values, cos, sin, query norm, key norm, out, cold | n: heads, kv heads, dim, width, window, qkv stride, out stride
Heads heads_of(const Op& op) {
  return {op.n[0], op.n[1], op.n[2], op.n[3], at<void>(op, 1), at<void>(op, 2), op.n[4], 1.0f / std::sqrt((float)op.n[2])};
}

void rotate_op(const Op& op, const Batch& batch, int first, int end) {
  const Heads heads = heads_of(op);
  const Rotary rotary = {at<float>(op, 3), at<float>(op, 4), at<float>(op, 5), at<float>(op, 6), op.eps};
  const auto store = op.flags & HALF ? rotate_and_store<uint16_t> : rotate_and_store<float>;
  const int32_t* slots = op.flags & ZONED ? batch.zone_slots : batch.slots;
  for (int row = first; row < end; row++) {
    store(heads, rotary, at<float>(op, 0) + row * op.n[5], batch.positions[row], slots[row]);
  }
}

// index: of a full block and a KV head
void compress_op(const Op& op, const Batch& batch, int first, int end) {
  const Heads heads = heads_of(op);
  const auto compress = op.flags & HALF ? compress_block<uint16_t> : compress_block<float>;
  for (int i = first; i < end; i++) {
    compress(heads, *at<Cold>(op, 8), batch.full[i / heads.kv_heads], i % heads.kv_heads);
  }
}

void attention_op(const Op& op, const Context& c, Counter* counters, int thread) {
  const Heads heads = heads_of(op);
  const Batch& batch = c.batch;
  const bool half = op.flags & HALF, zoned = op.flags & ZONED;
  const auto attend_to = zoned ? (half ? attend_zoned<uint16_t> : attend_zoned<float>)
                               : (half ? attend_whole<uint16_t> : attend_whole<float>);
  const Cold cold = zoned ? *at<Cold>(op, 8) : Cold{};
  int64_t total = 0;
  for (int s = 0; s < batch.spans; s++) total += tasks_of(heads, batch.span[s]);
  share(counters, c.team.threads(), thread, total, [&](int first, int end) {
    int64_t base = 0;
    for (int s = 0; s < batch.spans && base < end; s++) {
      const int64_t count = tasks_of(heads, batch.span[s]);
      for (int64_t i = std::max<int64_t>(first, base); i < std::min<int64_t>(end, base + count); i++) {
        attend_to(heads, cold, batch, s, i - base, at<float>(op, 0), op.n[5], at<float>(op, 7), op.n[6]);
      }
      base += count;
    }
  });
}

// p: y, x, q, scales, sums | n: width, input stride
void prepare_op(const Op& op, const Batch& batch, int first, int end) {
  const Prepared out = {at<float>(op, 1), at<int8_t>(op, 2), at<float>(op, 3), at<int32_t>(op, 4), op.n[1]};
  const Tiles tiles(batch.rows);
  for (int row = first; row < end; row++) prepare(at<float>(op, 0) + row * op.n[0], op.n[0], out, tiles, row);
}

int time_of(int kind) {
  switch (kind) {
    case LINEAR: return T_LINEAR;
    case ROTATE:
    case COMPRESS:
    case ATTENTION: return T_ATTENTION;
    case EXCHANGE: return T_EXCHANGE;
    default: return T_ROWS;
  }
}

// beats: raised by one before each op, so that others see how far this rank is; may be null.
// Returns -1, or the number of a rank that did not come.
int run(Team& team, Exchange* exchange, const Op* ops, int count, const Batch& batch, int64_t* times, uint64_t* beats) {
  std::vector<Counter> counters(count * team.threads());
  const Context c = {team, exchange, batch};
  std::atomic<int> late{-1};
  team.run([&](int thread) {
    int64_t before = thread == 0 ? now_ns() : 0;
    for (int i = 0; i < count; i++) {
      if (thread == 0 && beats) __atomic_store_n(beats, *beats + 1, __ATOMIC_RELAXED);
      const Op& op = ops[i];
      Counter* mine = &counters[i * team.threads()];
      const auto split = [&](int64_t total, void (*work)(const Op&, const Batch&, int, int)) {
        share(mine, team.threads(), thread, total, [&](int first, int end) { work(op, batch, first, end); });
      };
      switch (op.kind) {
        case EMBED: split(batch.rows, embed); break;
        case RESIDUAL: split(rows_of(op, batch), residual); break;
        case LINEAR: if (rows_of(op, batch)) split(op.n[2], linear_op); break;
        case ROTATE: split(batch.rows, rotate_op); break;
        case COMPRESS: split(batch.fulls * op.n[1], compress_op); break;
        case ATTENTION: attention_op(op, c, mine, thread); break;
        case PREPARE: split(batch.rows, prepare_op); break;
        case EXCHANGE:
          if (thread == 0) {
            exchange->publish();
            late = exchange->wait();
          }
          break;
      }
      team.barrier(thread);
      if (thread == 0) {
        const int64_t now = now_ns();
        times[time_of(op.kind)] += now - before;
        before = now;
      }
      if (late.load(std::memory_order_relaxed) >= 0) return;
    }
  });
  return late;
}

// All-reduce of any length over the slots of the ranks, in pieces; sums in the order of ranks. The next piece is
// published before this one is added up, so that nobody waits for the adding; hence three slots.
// slots: [3][world][slot_floats]. Returns -1, or the number of a rank that did not come.
int all_reduce(Exchange& exchange, float* slots, int64_t slot_floats, float* data, int64_t count) {
  const int world = exchange.world;
  const auto size_of = [&](int64_t begin) { return std::min(slot_floats, count - begin); };
  const auto slots_of = [&](uint32_t operation) { return slots + operation % 3 * world * slot_floats; };
  const auto publish = [&](int64_t begin) {
    float* own = slots_of(exchange.count + 1) + exchange.rank * slot_floats;
    std::memcpy(own, data + begin, size_of(begin) * sizeof(float));
    exchange.publish();
  };
  int late = exchange.wait();  // for the operation before: nobody reads any more what is written now
  if (late >= 0 || count == 0) return late;
  publish(0);
  for (int64_t begin = 0; begin < count; begin += slot_floats) {
    late = exchange.wait();
    if (late >= 0) return late;
    const float* all = slots_of(exchange.count);
    if (begin + slot_floats < count) publish(begin + slot_floats);
    float* to = data + begin;
    const int64_t size = size_of(begin);
    for (int64_t i = 0; i < size; i++) to[i] = all[i] + all[slot_floats + i];
    for (int other = 2; other < world; other++) {
      const float* from = all + other * slot_floats;
      for (int64_t i = 0; i < size; i++) to[i] += from[i];
    }
  }
  return -1;
}

}  // namespace ryz

using namespace ryz;

extern "C" {

int ryz_avx512() { return RYZ_AVX512; }
int ryz_panel() { return PANEL; }

Team* ryz_team_new(int threads, int spin) { return new Team(threads, spin); }
void ryz_team_free(Team* team) { delete team; }

int ryz_run(Team* team, Exchange* exchange, const Op* ops, int count, const Batch* batch, int64_t* times,
            uint64_t* beats) {
  return run(*team, exchange, ops, count, *batch, times, beats);
}
void ryz_publish(Exchange* exchange) { exchange->publish(); }
int ryz_wait(Exchange* exchange) { return exchange->wait(); }
int ryz_all_reduce(Exchange* exchange, float* slots, int64_t slot_floats, float* data, int64_t count) {
  return all_reduce(*exchange, slots, slot_floats, data, count);
}

// heads `first` to `first + count` of a block; rows of `bytes` are `stride` apart
void ryz_copy_out(const CacheBlocks* cache, int64_t block, int64_t first, int64_t count, uint8_t* bytes, int64_t stride) {
  for (int64_t i = 0; i < count; i++) copy_head<true>(*cache, block, first + i, bytes + i * stride);
}
void ryz_copy_in(const CacheBlocks* cache, int64_t block, int64_t head, const uint8_t* bytes) {
  copy_head<false>(*cache, block, head, const_cast<uint8_t*>(bytes));
}

void ryz_compress(const float* from, int64_t count, uint8_t* codes, float* scale) { *scale = compress(from, count, codes); }

int64_t ryz_packed_bytes(int64_t n, int64_t k, int type) { return padded(n, PANEL) / PANEL * panel_bytes(k, type); }
void ryz_pack(const void* source, int64_t n, int64_t k, int type, void* target, float* scales, int threads) {
  switch (type) {
    case F32: return pack((const float*)source, n, k, (float*)target, threads);
    case INT8: return pack_int8((const float*)source, n, k, (uint8_t*)target, scales, threads);
    default: return pack((const uint16_t*)source, n, k, (uint16_t*)target, threads);
  }
}

}  // extern "C"
