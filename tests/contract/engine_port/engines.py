"""The engines that the contract of the engine port is tested with, by name.

A further engine is a further entry: what makes it, what it declares, and the marks of its tests. A test names
the abilities that it needs (`having`), and runs with the engines that declare them.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.kv_events.own_vllm import OwnVllmKV
from services.worker.guests.port import Ability, GuestFacts
from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.null.engine import NullEngine
from services.worker.null.model import null_model
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import Engine
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.shared_fork_server import sharing
from tests.kits.guests.real_vllm import ARGUMENTS, vllm_model, vllm_options
from tests.kits.guests.scripted import FORMED, LETTERS, ScriptedGuest
from tests.kits.guests.servers import LLAMA_MODEL, llama_server_runs
from tests.kits.guests.vllm_guest import stub_options

DEMO = Path(__file__).parents[3] / "models" / "demo"
# beside the abilities of guests. masks: it takes those of our grammars. model: it is one, its tokens differ.
# rebuilt: it knows the state of seeds and penalties behind tokens that another engine gave. guest: it is one,
# and declares here all that it says of itself (a stand-in for vLLM says what vLLM can)
# kv_events: it tells of its prefix cache
Feature = Literal["guest", "kv_events", "masks", "model", "rebuilt"]
EVENTS = "--kv-events-config '{\"enable_kv_cache_events\": true}'"


class VllmPort(GuestEngine):
    """vLLM, whose prefix cache is followed by its events.

    Attributes:
        kv: Follows it.
    """

    def __init__(self, options: VllmOptions, start_timeout_s: float) -> None:
        self.kv = OwnVllmKV(options.prefix_sharing)
        guest = VllmGuest(options, kv=self.kv)
        super().__init__(guest, max_running=16, start_timeout_s=start_timeout_s)


@dataclass(frozen=True, slots=True)
class PortEngine:
    """An engine under test.

    Attributes:
        make: Gives a new engine, which the test starts and stops, and what it needs around it.
        abilities: What it declares: the tests of these are run with it.
        prompt: A prompt that it answers with many tokens.
        model: What the leader reads of its model: tokenizer and ends.
        kept: It is slow to start, so all tests share one.
    """

    make: Callable[[], AbstractAsyncContextManager[Engine]]
    abilities: frozenset[Ability | Feature]
    prompt: tuple[int, ...] = (*range(65, 95),)
    marks: tuple[pytest.MarkDecorator, ...] = ()
    model: Callable[[], Model] = lambda: null_model("demo", 2048)
    kept: bool = False


def _demo() -> Model:
    return load_model(DEMO, "demo")


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
        abilities=FORMED,
    )
    guest = ScriptedGuest(facts=facts, by_itself=True, burst=burst)
    yield GuestEngine(guest, max_running=16, start_timeout_s=60.0)


@asynccontextmanager
async def _vllm_stub() -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        options = stub_options(Path(folder), EVENTS)
        shutil.copy(DEMO / "tokenizer.json", options.model)
        yield VllmPort(options, 60.0)


@asynccontextmanager
async def _vllm() -> AsyncIterator[Engine]:
    yield VllmPort(vllm_options(f"{ARGUMENTS} {EVENTS}"), 3000.0)


@asynccontextmanager
async def _llama() -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder, llama_server_runs(Path(folder), threads=1) as server:
        model = load_model(server.model)
        options = RemoteOptions(url=server.url, model="demo")
        guest = RemoteGuest(options, tokenizer=model.tokenizer, context_length=model.context_length)
        yield GuestEngine(guest, max_running=16, start_timeout_s=120.0)


_ALL: frozenset[Ability] = frozenset(get_args(Ability))
_NULL: frozenset[Ability | Feature] = frozenset({"continuation", "deterministic", "logprobs", "masks"})
_FORMED: frozenset[Ability | Feature] = FORMED | {"guest"}
_NO_GUEST: frozenset[Ability] = frozenset({"adapters", "embeddings", "optional_calls", "prompt_logprobs"})
_VLLM: frozenset[Ability | Feature] = (_ALL - _NO_GUEST) | {"guest", "kv_events", "model"}
_LLAMA: frozenset[Ability | Feature] = frozenset(
    {
        "choice",
        "continuation",
        "gbnf",
        "grammar",
        "ignore_eos",
        "json_schema",
        "logit_bias",
        "logprobs",
        "min_p",
        "repetition_penalty",
        "seed",
        "token_ids_in",
        "token_ids_out",
        "top_k",
        "guest",
        "model",
    }
)
ENGINES: dict[str, PortEngine] = {
    "null": PortEngine(_null, _NULL),
    "ranks": PortEngine(
        _ranks, _ALL | {"masks", "model", "rebuilt"}, marks=(pytest.mark.sources,), model=_demo
    ),
    "scripted guest": PortEngine(lambda: _scripted(1), _FORMED),
    "scripted guest in bursts": PortEngine(lambda: _scripted(5), _FORMED),
    "vLLM's process": PortEngine(_vllm_stub, FORMED | {"kv_events"}, model=_demo, kept=True),
    "vLLM": PortEngine(
        _vllm,
        _VLLM,
        marks=(pytest.mark.guests, pytest.mark.timeout(3600)),
        model=lambda: load_model(vllm_model(), "vllm"),
        kept=True,
    ),
    "llama.cpp": PortEngine(
        _llama,
        _LLAMA,
        marks=(pytest.mark.guests,),
        model=lambda: load_model(Path(os.environ[LLAMA_MODEL]), "llama"),
        kept=True,
    ),
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
