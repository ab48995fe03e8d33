"""The KV cache of a rank, for attention and for copies of blocks; see `src/cache.h` and `src/blocks.h`."""

import ctypes
from ctypes import c_int64

from services.worker.engine.native.structs import ADDRESS
from services.worker.engine.native.structs.attention import PageChoice


class AttentionLayer(ctypes.Structure):
    """A layer's heads on this rank and their cache; see `src/cache.h`."""

    _fields_ = [
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("width", c_int64),
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("block_stride", c_int64),
        ("window", c_int64),
        ("sliding", c_int64),
        ("pages", PageChoice),
    ]


class ColdBlocks(ctypes.Structure):
    """The compressed blocks of a layer; see `src/cache.h`."""

    _fields_ = [
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("key_scales", ADDRESS),
        ("value_scales", ADDRESS),
        ("hot_blocks", c_int64),
        ("block_stride", c_int64),
    ]


class LayerPointers(ctypes.Structure):
    """One layer's blocks, for copies; see `src/blocks.h`."""

    _fields_ = [
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("key_scales", ADDRESS),
        ("value_scales", ADDRESS),
        ("item_bytes", c_int64),
        ("block_bytes", c_int64),
        ("sliding", c_int64),
    ]


class CachePointers(ctypes.Structure):
    """The whole cache, for copies of blocks; see `src/blocks.h`."""

    _fields_ = [
        ("num_layers", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("width", c_int64),
        ("layers", ctypes.POINTER(LayerPointers)),
    ]
