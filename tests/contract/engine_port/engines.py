"""The engines that the contract of the engine port is tested with, by name.

A further engine is a further entry: what makes it, what it declares, and the marks of its tests. A test names
the abilities that it needs (`having`), and runs with the engines that declare them.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import Ability, GuestFacts
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.null.engine import NullEngine
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import Engine
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.shared_fork_server import sharing
from tests.kits.guests.real_vllm import vllm_options
from tests.kits.guests.scripted import ABLE, LETTERS, ScriptedGuest
from tests.kits.guests.vllm_guest import stub_options

DEMO = Path(__file__).parents[3] / "models" / "demo"
# beside the abilities of guests. masks: it takes those of our grammars. model: it is one, its tokens differ.
# rebuilt: it knows the state of seeds and penalties behind tokens that another engine gave
Feature = Literal["masks", "model", "rebuilt"]


@dataclass(frozen=True, slots=True)
class PortEngine:
    """An engine under test.

    Attributes:
        make: Gives a new engine, which the test starts and stops, and what it needs around it.
        abilities: What it declares: the tests of these are run with it.
        prompt: A prompt that it answers with many tokens.
    """

    make: Callable[[], AbstractAsyncContextManager[Engine]]
    abilities: frozenset[Ability | Feature]
    prompt: tuple[int, ...] = (*range(65, 95),)
    marks: tuple[pytest.MarkDecorator, ...] = ()


@asynccontextmanager
async def _null() -> AsyncIterator[Engine]:
    yield NullEngine(tokens=LETTERS, num_blocks=256, vocab_size=257, context_length=2048, step_delay_s=0.0)


@asynccontextmanager
async def _ranks() -> AsyncIterator[Engine]:
    with sharing():
        yield RankEngine(rank_options(model=DEMO, tensor_parallel=1, threads=1, kv_cache_tokens=4096))


@asynccontextmanager
async def _scripted(burst: int) -> AsyncIterator[Engine]:
    facts = GuestFacts(
        name="scripted",
        fingerprint="null",
        context_length=2048,
        vocab_size=257,
        kv_tokens=4096,
        abilities=ABLE,
    )
    guest = ScriptedGuest(facts=facts, by_itself=True, burst=burst)
    yield GuestEngine(guest, max_running=16, start_timeout_s=60.0)


@asynccontextmanager
async def _vllm_stub() -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        guest = VllmGuest(stub_options(Path(folder)))
        yield GuestEngine(guest, max_running=16, start_timeout_s=60.0)


@asynccontextmanager
async def _vllm() -> AsyncIterator[Engine]:
    yield GuestEngine(VllmGuest(vllm_options()), max_running=16, start_timeout_s=600.0)


_ALL: frozenset[Ability] = frozenset(get_args(Ability))
_NULL: frozenset[Ability | Feature] = frozenset({"continuation", "deterministic", "logprobs", "masks"})
_VLLM: frozenset[Ability | Feature] = (_ALL - {"adapters", "embeddings", "grammar", "prompt_logprobs"}) | {
    "model"
}
ENGINES: dict[str, PortEngine] = {
    "null": PortEngine(_null, _NULL),
    "ranks": PortEngine(_ranks, _ALL | {"masks", "model", "rebuilt"}, marks=(pytest.mark.sources,)),
    "scripted guest": PortEngine(lambda: _scripted(1), ABLE),
    "scripted guest in bursts": PortEngine(lambda: _scripted(5), ABLE),
    "vLLM's process": PortEngine(_vllm_stub, ABLE),
    "vLLM": PortEngine(_vllm, _VLLM, marks=(pytest.mark.guests, pytest.mark.timeout(900))),
}


def having(*needed: Ability | Feature) -> pytest.MarkDecorator:
    """Runs a test with the engines that have all of these, through the fixture `port`."""
    chosen = [
        pytest.param(one, id=name, marks=one.marks)
        for name, one in ENGINES.items()
        if one.abilities.issuperset(needed)
    ]
    return pytest.mark.parametrize("port", chosen, indirect=True)


def lacking(feature: Ability | Feature) -> pytest.MarkDecorator:
    """Runs a test with the engines that lack it."""
    chosen = [
        pytest.param(one, id=name, marks=one.marks)
        for name, one in ENGINES.items()
        if feature not in one.abilities
    ]
    return pytest.mark.parametrize("port", chosen, indirect=True)
