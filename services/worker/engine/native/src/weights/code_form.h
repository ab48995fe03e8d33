// Weights as codes of 2, 4 or 8 bits: `value = scale * (code - zero) - offset`, with a scale, and maybe an offset, for each
// output and group of inputs. Quantized checkpoints are of this form without loss.
// A panel holds block after block of 32 inputs: for each four inputs the codes of its outputs, four codes each; of 4 and 2
// bits, two and four such steps share their bytes, the first one in the low bits. Before the first block of a group lie
// the scales of the panel's outputs and then their offsets; a block of two groups has those of both before it.
#pragma once
#include "byte_blocks.h"

namespace ryz {

enum ScaleType { NO_SCALES = 0, F16_SCALES = 1, BF16_SCALES = 2, F32_SCALES = 3 };
enum CodeKind { TWO_BITS = 0, FOUR_BITS = 1, FOUR_BIT_TABLE = 2, EIGHT_BITS = 3 };

struct CodeForm {
  int32_t kind;             // CodeKind
  int32_t group;            // inputs: HALF_BLOCK or a multiple of SCALE_BLOCK
  int32_t scales, offsets;  // ScaleType
  int32_t zero;             // of the codes; with a table 0
  int8_t table[16];         // FOUR_BIT_TABLE: what codes stand for

  int bits() const { return kind == EIGHT_BITS ? 8 : kind == TWO_BITS ? 2 : 4; }
  bool halves() const { return group == HALF_BLOCK; }
  // What an unpacked code is above its value. AVX2 has signed bytes, so `pack_codes` stores those of 8 bits less 128.
  int32_t above() const {
    if (kind == FOUR_BIT_TABLE) return WEIGHT_OFFSET;
    return kind == EIGHT_BITS ? zero + WEIGHT_OFFSET - 128 : zero;
  }
  int64_t code_bytes() const { return SCALE_BLOCK * PANEL * bits() / 8; }  // of a block
  int64_t scale_bytes() const { return PANEL * (bytes_of(scales) + bytes_of(offsets)); }  // of a group, offsets included
  int64_t blocks_of_group() const { return halves() ? 1 : group / SCALE_BLOCK; }
  int64_t panel_bytes(int64_t inputs) const {
    const int64_t blocks = num_blocks(inputs), heads = (blocks + blocks_of_group() - 1) / blocks_of_group();
    return blocks * code_bytes() + heads * (halves() ? 2 : 1) * scale_bytes();
  }
  static int64_t bytes_of(int type) { return type == F32_SCALES ? 4 : type == NO_SCALES ? 0 : 2; }
};

inline float scale_at(const uint8_t* p, int type, int64_t place) {
  if (type == F32_SCALES) {
    float whole;
    std::memcpy(&whole, p + 4 * place, 4);
    return whole;
  }
  uint16_t half;
  std::memcpy(&half, p + 2 * place, 2);
  return type == F16_SCALES ? _cvtsh_ss(half) : bits_to_float((int32_t)half << 16);
}

// The place of a code in its block: its byte, and the lowest of its bits.
struct CodePlace {
  int64_t byte;
  int shift;

  CodePlace(int bits, int64_t output, int64_t input) {
    const int64_t step = input / 4, together = 8 / bits;
    byte = (step / together * PANEL + output) * 4 + input % 4;
    shift = (int)(step % together) * bits;
  }
};

// [columns] weights of output `row`
inline void decode_row(const CodeForm& form, const uint8_t* weights, int64_t row, int64_t columns, float* to) {
  const uint8_t* w = weights + row / PANEL * form.panel_bytes(columns);
  const int64_t output = row % PANEL, parts = form.halves() ? 2 : 1, per_group = form.blocks_of_group();
  const int bits = form.bits(), mask = (1 << bits) - 1;
  const int signs = form.kind == EIGHT_BITS && !WEIGHT_OFFSET ? 0x80 : 0;  // see `pack_codes`
  const uint8_t* scales = w;
  for (int64_t begin = 0, block = 0; begin < columns; begin += SCALE_BLOCK, block++) {
    if (block % per_group == 0) {
      scales = w;
      w += parts * form.scale_bytes();
    }
    const int64_t end = std::min<int64_t>(SCALE_BLOCK, columns - begin);
    for (int64_t i = 0; i < end; i++) {
      const uint8_t* own = scales + (form.halves() ? i / HALF_BLOCK : 0) * form.scale_bytes();
      const CodePlace place(bits, output, i);
      const int code = (w[place.byte] >> place.shift & mask) ^ signs;
      const int value = form.kind == FOUR_BIT_TABLE ? form.table[code] : code - form.zero;
      const float scaled = scale_at(own, form.scales, output) * (float)value;
      const float offset =
          form.offsets ? scale_at(own + PANEL * CodeForm::bytes_of(form.scales), form.offsets, output) : 0.0f;
      to[begin + i] = form.offsets ? scaled - offset : scaled;
    }
    w += form.code_bytes();
  }
}

}  // namespace ryz
