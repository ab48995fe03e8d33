"""Measures decode steps whose sequences all have different adapters, in turns with steps of the base.

The forward pass of a group of one rank, in this process. Adapters have random weights for the chosen matrices
of all layers.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.engine.driver import make_prompts
from benchmarks.engine_plans import TURN_STEPS, AdaptersPlan, model_name
from benchmarks.lib.measuring import BenchError, Progress, milliseconds
from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.checkpoint.names.canonical import canonical_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.rank.backend import load_backend
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.run_config import EngineRunConfig, Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from shared.host.cores_and_memory import usable_cores

_GREEDY = EngineSampling(temperature=0.0)
_WARM = 2  # steps at the beginning of a turn that are not counted


def num_steps(plan: AdaptersPlan) -> int:
    """Return how often `measure` reports progress."""
    return len(plan.precision) * (1 + len(plan.ranks) * (1 + len(plan.batches)))


def measure(plan: AdaptersPlan, progress: Progress) -> dict[str, Any]:
    """Return a row for each precision, rank and batch.

    Raises:
        ModelError: The model cannot be computed so.
        BenchError: The kernels do not compute it.
    """
    rows, kernels = list[dict[str, Any]](), dict[str, str]()
    for precision in plan.precision:
        progress(f"{precision}: loading")
        with closing(_Steps(plan, precision)) as steps:
            kernels[precision] = steps.name
            for rank in plan.ranks:
                progress(f"{precision}: {max(plan.batches)} adapters of rank {rank}")
                num_bytes = steps.load_adapters(rank, max(plan.batches))
                for batch in plan.batches:
                    progress(f"{precision}, rank {rank}, batch {batch}")
                    rows.append(
                        {"precision": precision, **steps.measure(batch, rank), "adapter_bytes": num_bytes}
                    )
    return {"model": model_name(plan.model), "targets": list(plan.targets), "kernels": kernels, "rows": rows}


@dataclass(slots=True)
class _Batch:
    """Sequences of one kind, all of the same length."""

    first: int
    blocks: list[list[int]]
    length: int = 0

    def chunks(self, tokens: Sequence[Sequence[int]]) -> Iterator[ScheduledChunk]:
        begin, end = self.length, self.length + len(tokens[0])
        had, needed = -(-begin // BLOCK_SIZE), -(-end // BLOCK_SIZE)
        for index, more in enumerate(tokens):
            yield ScheduledChunk(
                seq_id=self.first + index,
                start=begin,
                token_ids=list(more),
                new_blocks=self.blocks[index][had:needed],
                sample=True,
            )
        self.length = end


class _Steps:
    """A loaded model, whose steps are timed."""

    def __init__(self, plan: AdaptersPlan, precision: Precision) -> None:
        self._plan, self._config = plan, read_config(plan.model)
        self._blocks, self._ids = -(-plan.length // BLOCK_SIZE), 0
        total = 2 * max(plan.batches) * self._blocks
        run = EngineRunConfig(
            model=str(plan.model),
            threads=plan.threads or usable_cores(),
            precision=precision,
            max_running=2 * max(plan.batches),
            kv_cache_tokens=total * BLOCK_SIZE,
        )
        with open_checkpoint(plan.model) as checkpoint:
            backend = load_backend(RankConfig(run=run), self._config, checkpoint, SingleRank())
        self.name, compute = backend.name, backend.start(PoolSizes(total))
        if not isinstance(compute, NativeCompute):
            raise BenchError(f"the kernels do not compute this model: {backend.why_plain}")
        self._compute, self._runner = compute, Runner(compute)

    def close(self) -> None:
        self._compute.close()

    def load_adapters(self, rank: int, count: int) -> int:
        """Fill slots with random adapters; return the bytes of one."""
        num_bytes = 0
        for slot in range(count):
            weights = random_adapter(self._config, self._plan.targets, rank, seed=slot)
            packed = self._compute.prepare_adapter(weights)
            self._compute.set_adapter(slot, packed)
            num_bytes = packed.num_bytes
        return num_bytes

    def measure(self, batch: int, rank: int) -> dict[str, Any]:
        """Return the row of a batch."""
        kinds = [self._admit(batch, adapted=adapted) for adapted in (False, True)]
        seconds = [list[float](), list[float]()]
        for _ in range(self._plan.turns):
            for kind, times in zip(kinds, seconds, strict=True):
                times.extend([self._step(kind, [[1]] * batch) for _ in range(TURN_STEPS)][_WARM:])
        self._runner.compute_logits(
            StepPlan(step_id=0, release=[kind.first + i for kind in kinds for i in range(batch)])
        )
        base, adapted = (median(times) for times in seconds)
        return {
            "batch": batch, "rank": rank,
            "base_step_ms": milliseconds(base), "step_ms": milliseconds(adapted),
            "base_tokens_per_s": round(batch / base, 1), "tokens_per_s": round(batch / adapted, 1),
            "different_to_base": round(base / adapted, 3),
        }  # fmt: skip

    def _admit(self, batch: int, *, adapted: bool) -> _Batch:
        """Admit sequences and compute their prompts."""
        first, self._ids = self._ids, self._ids + batch
        begin = adapted * batch
        new = [
            NewSequence(
                seq_id=first + index, token_ids=[], prompt_len=0, sampling=_GREEDY,
                adapter=index if adapted else NO_ADAPTER,
            )
            for index in range(batch)
        ]  # fmt: skip
        self._runner.compute_logits(StepPlan(step_id=0, admit=new))
        blocks = [
            list(range(index * self._blocks, (index + 1) * self._blocks))
            for index in range(begin, begin + batch)
        ]
        sequences = _Batch(first, blocks)
        self._step(sequences, make_prompts(batch, self._plan.prompt, self._config.vocab_size, first))
        return sequences

    def _step(self, sequences: _Batch, tokens: Sequence[Sequence[int]]) -> float:
        plan = StepPlan(step_id=0, chunks=list(sequences.chunks(tokens)))
        began = time.perf_counter()
        self._runner.compute_logits(plan)
        return time.perf_counter() - began


def random_adapter(config: ModelConfig, targets: Sequence[str], rank: int, seed: int) -> AdapterWeights:
    """Return an adapter of the whole model, as large as trained ones, for a group of one rank."""
    draw, layers = torch.Generator().manual_seed(seed), dict[tuple[int, str], LowRank]()
    for tensor in canonical_tensors(config):
        name = tensor.module.rpartition(".")[2].removesuffix("_proj")
        if tensor.layer < 0 or tensor.item >= 0 or tensor.suffix != "weight" or name not in targets:
            continue
        outputs, inputs = tensor.shape
        layers[tensor.layer, tensor.module] = LowRank(
            down=torch.randn(rank, inputs, generator=draw) / inputs**0.5,
            up=torch.randn(outputs, rank, generator=draw) * 0.02,
        )
    return AdapterWeights(layers)
