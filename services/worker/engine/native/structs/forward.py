"""A forward pass: its inputs, the barrier of its ranks, and where the times of its ops are written."""

import ctypes
from ctypes import c_int32, c_int64, c_uint32

from services.worker.engine.native.structs import ADDRESS


class ForwardBatch(ctypes.Structure):
    """The inputs of a forward pass; see `src/cache.h`."""

    _fields_ = [
        ("num_rows", c_int32),
        ("num_spans", c_int32),
        ("num_samples", c_int32),
        ("num_full_blocks", c_int32),
        ("token_ids", ADDRESS),
        ("positions", ADDRESS),
        ("slot_mapping", ADDRESS),
        ("spans", ADDRESS),
        ("block_tables", ADDRESS),
        ("sample_rows", ADDRESS),
        ("sliding_slot_mapping", ADDRESS),
        ("sliding_tables", ADDRESS),
        ("window_slot_mapping", ADDRESS),
        ("window_spans", ADDRESS),
        ("window_tables", ADDRESS),
        ("full_blocks", ADDRESS),
        ("row_adapters", ADDRESS),
        ("sample_adapters", ADDRESS),
    ]


class OpSpan(ctypes.Structure):
    """When a thread computed an op; see `src/op_trace.h`."""

    _fields_ = [("begin_ns", c_int64), ("end_ns", c_int64), ("place", c_int64)]


class OpTrace(ctypes.Structure):
    """Where the spans of ops are written; see `src/op_trace.h`."""

    _fields_ = [("spans", ADDRESS), ("counts", ADDRESS), ("capacity", c_int64), ("first", c_int64)]


class RankBarrier(ctypes.Structure):
    """A rank's view of the counters that all ranks of a host share; see `src/rank_barrier.h`."""

    _fields_ = [
        ("published", ADDRESS),
        ("timeout_ns", c_int64),
        ("count", c_uint32),
        ("rank", c_int32),
        ("world", c_int32),
        ("spin", c_int32),
    ]
