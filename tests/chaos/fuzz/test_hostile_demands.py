"""Hostile grammars, schemas, tools and variables are answered or refused by name, and harm nobody else.

What can be served is served, and validated by jsonschema, re or lark. No answer is a 5xx, the breaker stays
closed, the engine is not started again, and another caller's requests are answered as fast as before.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import httpx
import pytest

from cli.models.catalogue import DEMO
from tests.kits.chaos.figures import record
from tests.kits.chaos.fleet import Metrics
from tests.kits.chaos.hostile.hostile_case import HostileCase, chat, texts_of
from tests.kits.chaos.hostile.hostile_cases import hostile_case
from tests.kits.chaos.hostile.servable_cases import servable_case
from tests.kits.chaos.scale import full, scaled
from tests.kits.clients.served import model_here
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(400, 14_400))
HOSTILE = scaled(57, 10_000)
SERVABLE = scaled(34, 1000)
AT_ONCE = 4
CALM = scaled(8, 200)  # requests of the other caller with nothing beside
ORDINARY = scaled(8, 1000)  # ordinary requests for comparison
SLOWER = 2.0  # at most, the other caller's p99 beside hostile requests instead of ordinary ones
_ORDINARY_TOKENS = 24
ANSWER_S = 120.0
KEYS = {"hostile": "sk-hostile", "other": "sk-other"}
QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
RAW_FIELDS = (
    "body", "JSON", "messages", "guided", "structured", "chat_template_kwargs", "stop", "tools", "logit_bias",
    "temperature", "user", "UTF-8",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> str:
    return model_here() if full else DEMO


@pytest.fixture(scope="module")
def stack(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One group of one rank: what closes it closes the model to everybody."""
    env = {
        "RYZ_API_KEYS": ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items()),
        "RYZ_GRAMMAR_TIMEOUT_S": "20",  # other tests run beside this one
    }
    options = ("--model", model, "--groups", "1", "--tensor-parallel", "1")
    with Stack(tmp_path_factory.mktemp("hostile"), *options, env=env) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


class Campaign:
    """Sends cases, and notes what is wrong with their answers."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self._http, self._model = http, model

    def send(self, case: HostileCase) -> None:
        """Sends one case and judges its answer."""
        body, headers = case.body, {"Content-Type": "application/json"}
        data = body if isinstance(body, bytes) else json.dumps({"model": self._model, **body}).encode()
        answer = self._http.post(case.path, content=data, headers=headers)
        self.seen[f"{answer.status_code}"] += 1
        if problem := self._problem(case, answer):
            shown = body if isinstance(body, bytes) else json.dumps(body)
            self.problems.append(f"{case.name}: {problem}\n{shown[:1000]!r}")

    def _problem(self, case: HostileCase, answer: httpx.Response) -> str:
        if answer.status_code != 200:
            if case.servable or not 400 <= answer.status_code < 499:
                return f"{answer.status_code} {answer.text[:500]}"
            return "" if names_field(case, answer.json()) else f"no field is named: {answer.text[:500]}"
        if case.judge is None:
            return ""
        texts = texts_of(case.path, answer.json())
        if texts is None:
            return "cut" if case.servable and case.name != "plain" else ""
        if not texts or not all(map(case.judge, texts)):
            return f"invalid: {texts!r}"
        return ""


def names_field(case: HostileCase, raw: dict[str, Any]) -> bool:
    """Returns whether an error says which field is at fault, or where the JSON of the body breaks."""
    error = raw["error"]
    known = RAW_FIELDS if isinstance(case.body, bytes) else ("the body is not valid JSON", *case.body)
    return bool(error.get("param")) or any(name in error["message"] for name in known)


class OtherCaller:
    """Asks one short question after another."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self._body = {"model": model, **QUESTION}

    def ask(self, number: int, until: Event) -> list[float]:
        """Returns the seconds of each answer; asks so often, or until the event is set if that is later."""
        took: list[float] = []
        while len(took) < number or not until.is_set():
            began = time.perf_counter()
            answer = self._http.post("/v1/chat/completions", json=self._body)
            assert answer.status_code == 200, answer.text
            took.append(time.perf_counter() - began)
            time.sleep(0.02)
        return took


def ordinary_case(number: int) -> HostileCase:
    """Returns a request as others send them."""
    return chat("ordinary", max_tokens=_ORDINARY_TOKENS, temperature=1, seed=number)


def beside(other: OtherCaller, campaign: Campaign, cases: list[HostileCase]) -> list[float]:
    """Sends cases, some at a time, and returns the seconds of the other caller's answers meanwhile."""
    over = Event()
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        asking = pool.submit(other.ask, 5, over)
        try:
            list(pool.map(campaign.send, cases))
        finally:
            over.set()
        return asking.result()


def quantile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))]


@pytest.fixture
def clients(stack: Stack) -> Iterator[dict[str, httpx.Client]]:
    """The HTTP client of each tenant."""
    with ExitStack() as opened:
        yield {
            tenant: opened.enter_context(
                httpx.Client(
                    base_url=stack.state.url, headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER_S
                )
            )
            for tenant, key in KEYS.items()
        }


def test_hostile_requests_harm_nobody_else(
    stack: Stack, clients: dict[str, httpx.Client], model: str
) -> None:
    other, campaign, over = OtherCaller(clients["other"], model), Campaign(clients["hostile"], model), Event()
    cases = [servable_case(number) for number in range(SERVABLE)]
    cases += [hostile_case(number) for number in range(HOSTILE)]
    worker = stack.pid_of("worker-g0")
    over.set()
    other.ask(3, over)  # the first ones are slower
    alone = other.ask(CALM, over)
    calm = beside(other, campaign, [ordinary_case(number) for number in range(ORDINARY)])
    loaded = beside(other, campaign, cases)

    services = stack.status()["services"]
    routers = [one["detail"] for one in services if one["service"] == "router"]
    groups = [group for router in routers for group in router["groups"]]
    (detail,) = (one["detail"] for one in services if one["service"] == "worker")
    metrics = Metrics(detail["admin_url"])
    failures = sum(
        metrics.value("ryz_worker_engine_failures_total", kind=kind)
        for kind in ("rank_died", "rank_hung", "step_late", "rank_failed", "memory", "leader_bug")
    )
    record(
        "hostile_demands",
        model=model,
        cases=len(cases),
        problems=len(campaign.problems),
        answers=dict(sorted(campaign.seen.items())),
        confined=metrics.value("ryz_worker_confined_failures_total"),
        # alone, beside as many ordinary requests at a time, beside the hostile ones
        other_p50_ms=[round(1000 * quantile(one, 0.5)) for one in (alone, calm, loaded)],
        other_p99_ms=[round(1000 * quantile(one, 0.99)) for one in (alone, calm, loaded)],
        other_requests=[len(alone), len(calm), len(loaded)],
    )
    assert campaign.problems[:20] == []
    assert groups
    for group in groups:  # as each router sees it
        assert (group["state"], group["breaker"], group["broken_total"]) == ("ready", "closed", 0)
    assert stack.pid_of("worker-g0") == worker
    assert failures == 0
    assert campaign.seen["200"] >= SERVABLE + ORDINARY
    if full:  # beside other tests the times say nothing
        assert quantile(loaded, 0.99) <= SLOWER * quantile(calm, 0.99)
