"""A stack answers as PEFT does with a head of an adapter's own and with a DoRA, also when its leader dies."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from tests.conftest import DEMO
from tests.kits.adapters.peft_adapters import AdapterEntry, greedy_tokens, save_adapter_of, with_adapter
from tests.kits.chaos.services import PATIENT, await_idle, metrics_of
from tests.kits.e2e.stack import Stack

TOKENS = 512  # so many that a leader dies in the middle of them
EVENTS_BEFORE = 12  # by then the answer has begun
KILLS = 4  # of which one comes in the middle of an answer, also where this process waits long for a core
UP_SCALE = 1.5  # greedy answers are others than the base's
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTERS = {
    "head": AdapterEntry(8, ATTENTION, {"modules_to_save": ["lm_head"]}),
    "dora": AdapterEntry(8, "all-linear", {"use_dora": True}),
}
PROMPT = "Hello, my name is Ada. Tell me about lists."
Disturb = Callable[[str], None]  # called in mid-answer with the name of the group


@dataclass(frozen=True, slots=True)
class Adapted:
    """A stack, and what its model answers by PEFT.

    Attributes:
        prompt: Token ids.
        texts: Of the greedy answers, by adapter; empty: of the base.
    """

    stack: Stack
    prompt: list[int]
    texts: dict[str, str]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    folder = tmp_path_factory.mktemp("adapters-of-peft")
    tokenizer = Tokenizer.from_file(f"{DEMO}/tokenizer.json")
    base: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    sources = {
        name: save_adapter_of(base, entry, folder / name, seed=3, up_scale=UP_SCALE)
        for name, entry in ADAPTERS.items()
    }
    prompt = tokenizer.encode(PROMPT).ids
    models = {"": base} | {name: with_adapter(base, source) for name, source in sources.items()}
    texts = {name: tokenizer.decode(greedy_tokens(model, prompt, TOKENS)) for name, model in models.items()}
    options = ("--groups", "2", "--precision", "fp32")
    with Stack(folder, *options, env=PATIENT, calm=False) as stack:
        stack.await_ready()
        register(stack, sources)
        yield Adapted(stack, prompt, texts)
        assert stack.end() == 0


def register(stack: Stack, sources: dict[str, Path]) -> None:
    with httpx.Client(base_url=stack.state.url, timeout=60) as http:
        for name, source in sources.items():
            loaded = http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(source)})
            assert loaded.status_code == 200, loaded.text


def body(adapted: Adapted, adapter: str, **fields: Any) -> dict[str, Any]:
    model = f"demo:{adapter}" if adapter else "demo"
    asked = {"model": model, "prompt": adapted.prompt, "max_tokens": TOKENS, "temperature": 0}
    return asked | {"ignore_eos": True} | fields


def streamed(adapted: Adapted, adapter: str, disturb: Disturb) -> list[dict[str, Any]]:
    """The events of an answer, disturbed after a few of them."""
    events = list[dict[str, Any]]()
    with (
        httpx.Client(base_url=adapted.stack.state.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body(adapted, adapter, stream=True)) as answer,
    ):
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == EVENTS_BEFORE:
                disturb(answer.headers["x-ryz-group"])
    return events


@pytest.mark.parametrize("adapter", ["", *ADAPTERS])
def test_greedy_answers_are_those_of_peft(adapted: Adapted, adapter: str) -> None:
    with httpx.Client(base_url=adapted.stack.state.url, timeout=60) as http:
        answer = http.post("/v1/completions", json=body(adapted, adapter)).json()
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert answer["choices"][0]["text"] == adapted.texts[adapter]


def test_the_adapters_matter(adapted: Adapted) -> None:
    assert len({text[:64] for text in adapted.texts.values()}) == 1 + len(ADAPTERS)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_stream_survives_its_leader(adapted: Adapted, adapter: str) -> None:
    """The other group goes on with the same adapter, whose files it reads then."""
    await_idle(adapted.stack, groups=2)
    assert text_of(streamed(adapted, adapter, lambda group: None)) == adapted.texts[adapter]
    assert any(goes_on(adapted, adapter) for _ in range(KILLS)), "each answer had ended before the kill"


def goes_on(adapted: Adapted, adapter: str) -> bool:
    """Kills the leader of an answer, which must be whole; returns whether the other group went on with it."""
    stack, killed = adapted.stack, list[str]()
    metrics = metrics_of(stack)
    leaders = {group: stack.pid_of(f"worker-{group}") for group in ("g0", "g1")}
    before = {group: metrics[group].value("ryz_worker_prompt_tokens_total") for group in leaders}

    def kill_leader(group: str) -> None:
        os.kill(leaders[group], signal.SIGKILL)
        killed.append(group)

    events = streamed(adapted, adapter, kill_leader)
    (other,) = leaders.keys() - killed
    after = metrics[other].value("ryz_worker_prompt_tokens_total")
    assert text_of(events) == adapted.texts[adapter]
    assert [one["finish_reason"] for one in events[-1]["choices"]] == ["length"]
    await_idle(stack, groups=2)
    return after > before[other]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])
