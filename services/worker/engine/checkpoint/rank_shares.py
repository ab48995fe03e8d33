"""Cuts the dimensions of a model into the shares of ranks, which may differ by one unit.

Ranks wait for each other after attention and after the MLP, so each of the two is cut as evenly as possible
by itself. The first ranks have the larger shares of the heads and the last ranks those of the MLP, so that
their memory differs less. Every share is one range, in the order of ranks (decision 0024).
"""

from services.worker.engine.int8 import SCALE_BLOCK

MLP_UNIT = SCALE_BLOCK  # inner columns; as many inputs of `down_proj` share a scale


def share_of_heads(count: int, rank: int, world: int) -> range:
    """This rank's part of `count` KV heads; if they do not divide, the first ranks have one more."""
    least, more = divmod(count, world)
    begin = rank * least + min(rank, more)
    return range(begin, begin + least + (rank < more))


def share_of_mlp(size: int, rank: int, world: int) -> range:
    """This rank's part of the MLP's inner columns; if they do not divide, the last ranks have one unit more.

    A unit is `MLP_UNIT` columns if these divide the size and there is a unit for every rank, else one column.
    """
    unit = MLP_UNIT if size % MLP_UNIT == 0 and size >= MLP_UNIT * world else 1
    # the shares of the heads in reverse order
    mirrored = share_of_heads(size // unit, world - 1 - rank, world)
    return range(size - mirrored.stop * unit, size - mirrored.start * unit)


def share_of_vocabulary(size: int, rank: int, world: int) -> range:
    """This rank's token ids: ranges of one width, of which the last ones are cut at the vocabulary's end.

    The kernels write all ranks' logits side by side, a width apart.
    """
    width = vocabulary_width(size, world)
    return range(min(rank * width, size), min((rank + 1) * width, size))


def vocabulary_width(size: int, world: int) -> int:
    """Token ids of the first rank, which has the most."""
    return -(-size // world)
