"""Draws tokens with the compiled kernels, rows shared by threads: see `native/src/sampling/draw_rows.h`."""

import weakref
from collections.abc import Sequence

from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.structs.rows import RowDraw
from services.worker.engine.sampling.row_draws import DrawJob
from services.worker.engine.sampling.shares import inverse_of
from services.worker.engine.sampling.top_k_top_p import require_small


class NativeDraws:
    """Draws the same tokens as `PlainDraws`.

    Args:
        threads: That share the rows; they sleep between calls.
    """

    def __init__(self, kernels: KernelLibrary, threads: int) -> None:
        self._kernels = kernels
        self._pool = kernels.new_thread_pool(threads, False)
        weakref.finalize(self, kernels.free_thread_pool, self._pool)

    def draw_rows(self, jobs: Sequence[DrawJob]) -> list[int]:
        """See `RowDraws`."""
        if not jobs:
            return []
        vocab = len(jobs[0].scores)
        require_small(vocab)
        rows = (RowDraw * len(jobs))()
        for row, (scores, best, sampling, bits) in zip(rows, jobs, strict=True):
            if len(scores) != vocab or not scores.flags.c_contiguous:
                raise ValueError(f"a row has {len(scores)} scores of {vocab}, or gaps between them")
            row.scores, row.best, row.bits = scores.ctypes.data, best, bits
            row.top_k, row.top_p, row.min_p = min(sampling.top_k, vocab), sampling.top_p, sampling.min_p
            row.temperature, row.inverse = sampling.temperature, inverse_of(sampling.temperature)
        self._kernels.draw_rows(self._pool, rows, len(jobs), vocab)
        return [row.token for row in rows]
