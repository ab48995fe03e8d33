"""One order of sampling defaults: request, setting, the files of the model, the catalogue, our own."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.worker.__main__ import make_model
from services.worker.model_files.sampling_defaults import (
    OPENAI,
    defaults_of_gguf,
    join_defaults,
    parse_sampling,
)
from services.worker.null.engine import NullEngine
from services.worker.null.model import null_model
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.settings import WorkerSettings
from shared import codec, subjects
from shared.bus.api import Message
from shared.errors import InvalidRequest
from shared.messages import Accepted, GenerateRequest, Heartbeat, ModelCard, Sampling, SamplingDefaults
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine

DEMO = Path(__file__).parents[4] / "models" / "demo"


def model_with(tmp_path: Path, generation: dict[str, Any]) -> Path:
    """The demo model with another `generation_config.json`."""
    target = tmp_path / "model"
    target.mkdir()
    for file in DEMO.iterdir():
        if file.name != "generation_config.json":
            (target / file.name).symlink_to(file)
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **generation}))
    return target


def served(path: Path, **settings: Any) -> SamplingDefaults:
    return make_model(WorkerSettings(engine="null", model=str(path), **settings)).sampling


@pytest.mark.parametrize(
    ("generation", "settings", "expected"),
    [
        ({}, {}, (0.6, 0.95, 0)),
        ({}, {"sampling_fallback": "temperature=0.2,top_p=0.9"}, (0.2, 0.9, 0)),
        (
            {"temperature": 0.7, "top_k": 20},
            {"sampling_fallback": "temperature=0.2,top_p=0.9"},
            (0.7, 0.9, 20),
        ),
        ({"temperature": 0.7, "top_k": 20}, {"sampling_defaults": "temperature=0.3"}, (0.3, 0.95, 20)),
        ({"temperature": 0.7, "top_k": 20}, {"sampling_defaults": "openai"}, (1.0, 1.0, 0)),
        ({"temperature": None, "top_p": 1, "top_k": -1}, {}, (0.6, 1.0, 0)),
        ({"do_sample": False, "temperature": 0.7}, {}, (0.0, 0.95, 0)),
        ({"do_sample": True}, {}, (0.6, 0.95, 0)),
    ],
)
def test_the_order_of_the_sources(
    tmp_path: Path, generation: dict[str, Any], settings: dict[str, str], expected: tuple[float, float, int]
) -> None:
    found = served(model_with(tmp_path, generation), **settings)
    assert (found.temperature, found.top_p, found.top_k) == expected


@pytest.mark.parametrize(
    ("generation", "key"),
    [({"temperature": "0.7"}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"top_k": [5]}, "top_k")],
)
def test_a_value_that_sampling_does_not_have_is_refused_by_file_and_field(
    tmp_path: Path, generation: dict[str, Any], key: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"generation_config\.json: `{key}`"):
        served(model_with(tmp_path, generation))


def test_the_keys_of_gguf_files() -> None:
    metadata = {"general.sampling.temp": 0.6000000238418579, "general.sampling.top_k": 40}
    found = defaults_of_gguf(metadata, Path("m.gguf"))
    assert (found.temperature, found.top_k, found.top_p) == (0.6, 40, None)
    with pytest.raises(InvalidRequest, match=r"m\.gguf: `general\.sampling\.temp`"):
        defaults_of_gguf({"general.sampling.temp": "hot"}, Path("m.gguf"))


@pytest.mark.parametrize(
    "text", ["hot", "temperature", "temperature=hot", "temperature=3", "top_q=1", "top_k=.5"]
)
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="sampling_defaults"):
        WorkerSettings(engine="null", sampling_defaults=text)


class RecordingEngine(NullEngine):
    """A null engine that keeps what it is told of sampling."""

    sampled: list[tuple[float | None, float | None, int | None]]

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        for new in plan.admit:
            self.sampled.append((new.sampling.temperature, new.sampling.top_p, new.sampling.top_k))
        return super().submit(plan)


def recording_engine() -> RecordingEngine:
    engine = null_engine()
    engine.__class__ = RecordingEngine
    assert isinstance(engine, RecordingEngine)
    engine.sampled = []
    return engine


@pytest.mark.sources
@pytest.mark.parametrize(
    ("sampling", "engine_gets", "applied"),
    [
        ({}, (0.2, 0.95, 7), {"temperature": 0.2, "top_p": 0.95, "top_k": 7}),
        ({"temperature": 1.0}, (1.0, 0.95, 7), {"temperature": None, "top_p": 0.95, "top_k": 7}),
        ({"temperature": 0, "top_p": 1.0, "top_k": 0}, (0.0, 1.0, 0), {"top_p": None, "top_k": None}),
    ],
)
async def test_direct_requests_get_the_defaults_and_are_reported(
    memory_bus: MemoryBus,
    sampling: dict[str, float],
    engine_gets: tuple[float, float, int],
    applied: dict[str, float | None],
) -> None:
    defaults = join_defaults(SamplingDefaults(temperature=0.2, top_k=7))
    engine = recording_engine()
    async with Kit(memory_bus, engine, model=replace(null_model("demo", 2048), sampling=defaults)) as kit:
        accepted = (await kit.run(chat("r", sampling=sampling)))[0]
    assert isinstance(accepted, Accepted)
    assert engine_gets in engine.sampled
    assert accepted.sampling is not None
    assert {name: getattr(accepted.sampling, name) for name in applied} == applied


async def test_a_card_of_the_model_tells_them(memory_bus: MemoryBus) -> None:
    model = replace(null_model("demo", 2048), sampling=parse_sampling("openai"))
    cards: list[ModelCard] = []

    async def on_beat(message: Message) -> None:
        cards.append(codec.decode(message.data, Heartbeat).model)

    await memory_bus.subscribe(subjects.HEARTBEAT_ALL, on_beat)
    async with Kit(memory_bus, model=model) as kit:
        await kit.until(lambda: bool(cards))
    assert cards[0].sampling == OPENAI


def test_a_value_that_equals_no_default_travels() -> None:
    """Defaults are left out on the wire; a temperature of 1 that was asked for is none of them."""
    request = GenerateRequest(
        request_id="r", model="m", prompt="p", sampling=Sampling(temperature=1.0, top_p=1.0)
    )
    again = codec.decode(codec.encode(request), GenerateRequest)
    assert (again.sampling.temperature, again.sampling.top_p, again.sampling.top_k) == (1.0, 1.0, None)
