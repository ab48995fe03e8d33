"""Our engine as a source of logits: the forward pass of a group of one rank, in this process."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.quality.divergence import Logits
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.rank.backend import load_backend
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.page_policy import FULL
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.run_config import EngineRunConfig, KVCold, Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from shared.host.cores_and_memory import usable_cores

_GREEDY = EngineSampling(temperature=0.0)


class OwnLogits:
    """See `LogitSource`.

    Args:
        precision: As in `EngineRunConfig`.
        threads: 0: one for each core.
        sequences: Most sequences at once.
        length: Longest sequence, in tokens.
        attention: As in `EngineRunConfig`.
        kv_cold: The same.

    Attributes:
        backend: What computes, and its sizes.

    Raises:
        ModelError: The model cannot be computed so.
    """

    def __init__(
        self,
        model: Path,
        precision: Precision,
        threads: int,
        *,
        sequences: int,
        length: int,
        attention: str = FULL,
        kv_cold: KVCold = "none",
    ) -> None:
        self._blocks = -(-length // BLOCK_SIZE)  # of each sequence
        total = sequences * self._blocks
        run = EngineRunConfig(
            model=str(model),
            threads=threads or usable_cores(),
            precision=precision,
            max_running=sequences,
            kv_cache_tokens=total * BLOCK_SIZE,
            attention=attention,
            kv_cold=kv_cold,
        )
        with open_checkpoint(model) as checkpoint:
            backend = load_backend(RankConfig(run=run), read_config(model), checkpoint, SingleRank())
        self.backend, self.name = backend, backend.name
        self._compute = backend.start(PoolSizes(total))
        self._runner = Runner(self._compute)
        self._lengths: list[int] = []
        self._first = 0  # number of the first sequence

    def begin(self, sequences: int, texts: Sequence[Sequence[int]] | None = None) -> None:
        """See `LogitSource`."""
        del texts
        old = range(self._first, self._first + len(self._lengths))
        self._first, self._lengths = old.stop, [0] * sequences
        new = [
            NewSequence(seq_id=self._first + index, token_ids=[], prompt_len=0, sampling=_GREEDY)
            for index in range(sequences)
        ]
        self._runner.compute_logits(StepPlan(step_id=0, release=list(old), admit=new))

    def feed(self, tokens: Sequence[Sequence[int]]) -> Logits:
        """See `LogitSource`."""
        chunks = []
        for index, more in enumerate(tokens):
            if not more:
                continue
            start = self._lengths[index]
            self._lengths[index] = end = start + len(more)
            had, needed = -(-start // BLOCK_SIZE), -(-end // BLOCK_SIZE)
            base = index * self._blocks
            chunk = ScheduledChunk(
                seq_id=self._first + index,
                start=start,
                token_ids=list(more),
                new_blocks=list(range(base + had, base + needed)),
                sample=True,
            )
            chunks.append(chunk)
        _, logits = self._runner.compute_logits(StepPlan(step_id=0, chunks=chunks))
        assert logits is not None  # the only rank has them
        found: Logits = logits.numpy()
        return found

    def close(self) -> None:
        """See `LogitSource`."""
        if isinstance(self._compute, NativeCompute):
            self._compute.close()
