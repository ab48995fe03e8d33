"""The 8-bit format of weight matrices: its blocks, its size and its name. Imports no torch.

The kernels (`native/src/weights/byte_blocks.h`, `native/src/weights/pack.h`) write and read it. Their oracle
is `plain/references/int8.py`.
"""

SCALE_BLOCK = 32  # inputs that share a scale
SCALE_BYTES = 2  # of a weight's scale, a half
FORMAT = "int8:32"  # in a model's fingerprint; a change of the format or of the rounding takes another name


def packed_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a weight matrix with its scales."""
    return outputs * -(-inputs // SCALE_BLOCK) * (SCALE_BLOCK + SCALE_BYTES)
