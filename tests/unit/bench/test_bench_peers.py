"""The peers of `ryz bench engine`: each computes the same model as our engine, token for token in fp32."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.engine.driver import Driver, kv_tokens, make_prompts
from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError
from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from benchmarks.peers import missing_packages, start_peer
from benchmarks.peers.base import Timing
from services.worker.orchestrator.rank_engine import RankEngine
from tests.kits.engine.rank_options import rank_options

BATCH, PROMPT, TOKENS = 3, 20, 12
needs_llama = pytest.mark.skipif(
    bool(missing_packages("llama.cpp")), reason="llama-cpp-python or gguf is not installed (extra `peers`)"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has several KV heads, files and layers, so that mixing up any of them fails a test."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_model(directory, SHAPES["tiny"], seed=3, max_file_bytes=100_000)
    return directory


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def peer(stack: ExitStack, name: str, model: Path, precision: str) -> ChildObject:
    child = start_peer(name, model, precision, BATCH, PROMPT + TOKENS)
    stack.callback(child.close)
    child.receive(60)
    return child


async def our_tokens(model: Path) -> list[list[int]]:
    options = rank_options(
        model=model, threads=1, kernels="plain", kv_cache_tokens=kv_tokens(BATCH, PROMPT + TOKENS)
    )
    engine = RankEngine(options)
    try:
        driver = Driver(engine, await engine.start(), BATCH)
        return (await driver.run_batch(make_prompts(BATCH, PROMPT, 512, 1), TOKENS)).tokens
    finally:
        await engine.stop()


@pytest.mark.parametrize("name", ["transformers", pytest.param("llama.cpp", marks=needs_llama)])
async def test_greedy_tokens_equal_ours(stack: ExitStack, tiny: Path, name: str) -> None:
    child = peer(stack, name, tiny, "fp32")
    timing: Timing = child.call("run_batch", make_prompts(BATCH, PROMPT, 512, 1), TOKENS, 1)
    assert timing.tokens == await our_tokens(tiny)
    assert len({tuple(tokens) for tokens in timing.tokens}) == BATCH
    assert timing.prefill_s > 0 < timing.decode_s


@needs_llama
def test_a_smaller_batch_and_a_second_run_begin_anew(stack: ExitStack, tiny: Path) -> None:
    child = peer(stack, "llama.cpp", tiny, "fp32")
    prompts = make_prompts(BATCH, PROMPT, 512, 2)
    whole = child.call("run_batch", prompts, TOKENS, 2).tokens
    assert child.call("run_batch", prompts, TOKENS, 2).tokens == whole
    assert child.call("run_batch", prompts[1:2], TOKENS, 1).tokens == whole[1:2]


@needs_llama
@pytest.mark.parametrize("precision", ["int4", "int8", "bf16", "fp16"])
def test_llama_runs_in_every_precision(stack: ExitStack, tiny: Path, precision: str) -> None:
    tokens = (
        peer(stack, "llama.cpp", tiny, precision)
        .call("run_batch", make_prompts(1, PROMPT, 512, 1), 4, 1)
        .tokens
    )
    assert len(tokens[0]) == 4
    assert all(0 <= token < 512 for token in tokens[0])


def test_transformers_has_no_int8(stack: ExitStack, tiny: Path) -> None:
    with pytest.raises(BenchError, match="not available: transformers has no int8"):
        peer(stack, "transformers", tiny, "int8")


@needs_llama
def test_what_cannot_be_converted_is_refused(stack: ExitStack, tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text()) | {"architectures": ["OtherForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BenchError, match=r"not available: .*OtherForCausalLM"):
        peer(stack, "llama.cpp", tmp_path, "fp32")
