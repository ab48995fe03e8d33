"""Small random models and ranks in one process, for the tests of the engine.

`ThreadCollectives` implements the collectives' contract over plain threads, so that a test can read the
logits of a tensor-parallel model without starting processes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import NoKernels
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.plans import GREEDY, Blocks, generate, new_sequence

__all__ = ["GREEDY", "Blocks", "generate", "new_sequence"]  # from `plans.py`, which needs no torch
T = TypeVar("T")

TINY: dict[str, Any] = {
    "vocab_size": 203,  # divisible by none of 2, 3 and 4
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # large enough that logits differ by more than rounding
    "tie_word_embeddings": False,
}

# models whose heads, MLP and vocabulary divide by no number of ranks but one and that of the KV heads
UNEVEN: dict[str, dict[str, Any]] = {
    "nine heads on three": {
        "hidden_size": 72,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "intermediate_size": 160,
    },
    "five heads on five": {
        "hidden_size": 80,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "intermediate_size": 96,
        "tie_word_embeddings": True,
    },
}

ComputeFactory = Callable[[Checkpoint, ModelConfig, Collectives, int], Compute]


def make_model(directory: Path, family: str, **changes: Any) -> Path:
    """Writes a random model in Hugging Face format.

    Args:
        directory: Where to write.
        family: transformers' `model_type`, such as llama or qwen3.
        changes: Fields of the config, in place of those of `TINY`. `dtype` is that of the weights;
            `max_shard_size` splits the weights into several files.

    Returns:
        `directory`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    options = {key: changes.pop(key) for key in ("max_shard_size",) if key in changes}
    dtype = changes.pop("dtype", torch.float32)
    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **(TINY | changes))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(directory, **options)
    return directory


def make_llama(directory: Path, **changes: Any) -> Path:
    """`make_model` for the llama family."""
    return make_model(directory, "llama", **changes)


def some_tokens(count: int, seed: int) -> list[int]:
    """Random tokens of a model of `make_model`."""
    drawn: list[int] = torch.randint(0, 203, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def transformers_logits(directory: Path, token_ids: list[int], stepwise: bool = False) -> Tensor:
    """Computes the logits after each token with transformers.

    Args:
        directory: The model.
        token_ids: The input.
        stepwise: Compute token by token with a KV cache, instead of all at once.

    Returns:
        [tokens, vocab].
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        if not stepwise:
            whole: Tensor = model(torch.tensor([token_ids])).logits[0]
            return whole
        cache, rows = None, []
        for token_id in token_ids:
            output = model(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0, 0])
    return torch.stack(rows)


def transformers_hidden(directory: Path, token_ids: list[int]) -> Tensor:
    """Computes the hidden states after the last norm with transformers, [tokens, hidden]."""
    from transformers import AutoModel  # noqa: PLC0415 (slow to import)

    model = AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        hidden: Tensor = model(torch.tensor([token_ids])).last_hidden_state[0]
    return hidden


class ThreadCollectives:
    """`Collectives` between the threads of one process."""

    def __init__(self, rank: int, world: int, barrier: threading.Barrier, board: list[Any]) -> None:
        self.rank = rank
        self.world = world
        self.timeout_s = 10.0
        self.seconds = 0.0
        self._barrier = barrier
        self._board = board

    def all_reduce_sum(self, tensor: Tensor) -> None:
        parts = self._exchange(tensor.clone())
        tensor.copy_(parts[0])
        for part in parts[1:]:
            tensor.add_(part)
        self.barrier()

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = torch.stack(self._exchange(tensor))
        self.barrier()
        return gathered

    def gather(self, tensor: Tensor) -> Tensor | None:
        gathered = self.all_gather(tensor)
        return gathered if self.rank == 0 else None

    def broadcast(self, data: bytes) -> bytes:
        first: bytes = self._exchange(data)[0]
        self.barrier()
        return first

    def barrier(self) -> None:
        self._barrier.wait(self.timeout_s)

    def close(self) -> None:
        self._barrier.abort()

    def _exchange(self, value: Any) -> list[Any]:
        self._board[self.rank] = value
        self.barrier()
        return list(self._board)


def run_threads(world: int, work: Callable[[Collectives], T]) -> list[T]:
    """Runs the work concurrently in a thread per rank; returns the result of each rank."""
    barrier, board = threading.Barrier(world), [None] * world

    def one(rank: int) -> T:
        try:
            return work(ThreadCollectives(rank, world, barrier, board))
        except BaseException:
            barrier.abort()  # so that the other ranks stop waiting
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(one, rank) for rank in range(world)]
        for future in futures:
            # report the cause, not the other ranks' broken barrier
            if (error := future.exception()) and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]


def plain_compute(
    checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
) -> Compute:
    """A rank's `Compute` in torch operations."""
    model = Decoder(checkpoint, config, collectives)
    return PlainCompute(model, KVCache(config, PoolSizes(num_blocks), collectives.rank, collectives.world))


def native_ranks(
    target: str | None = None,
    threads: int = 1,
    precision: Precision = "fp32",
    kv_dtype: torch.dtype = torch.float32,
) -> ComputeFactory:
    """Makes a rank's `Compute` in compiled kernels; skips the test if they cannot be built.

    Args:
        target: The instruction set; None: the best of this machine.
        threads: Of each rank.
        precision: Of the matrices.
        kv_dtype: Of the KV cache.
    """

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        try:
            compiled = kernels(target)
        except NoKernels as error:
            pytest.skip(f"no compiled kernels here: {error}")
        weights = NativeWeights.load(
            open_source(checkpoint, config, collectives), config, compiled, precision
        )
        options = NativeOptions(threads, kv_dtype, spin=False)
        return NativeCompute(
            compiled, config, weights, collectives, sizes=PoolSizes(num_blocks), options=options
        )

    return make


native_compute = native_ranks()
COMPUTES = {"plain": plain_compute, "native": native_compute}


def plan_logits(
    directory: Path,
    world: int,
    plans: list[StepPlan],
    num_blocks: int = 64,
    compute: ComputeFactory = plain_compute,
) -> list[Tensor]:
    """The logits of each plan, computed by ranks in threads; empty for a plan that samples nothing."""

    def work(collectives: Collectives) -> list[Tensor]:
        with open_checkpoint(directory) as checkpoint:
            computing = compute(checkpoint, read_config(directory), collectives, num_blocks)
        runner = Runner(computing)
        results = []
        for plan in plans:
            logits = runner.compute_logits(plan)[1]
            results.append(torch.empty(0) if logits is None else logits.clone())
        if isinstance(computing, NativeCompute):
            computing.close()
        return results

    return run_threads(world, work)[0]
