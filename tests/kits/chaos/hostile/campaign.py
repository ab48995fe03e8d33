"""Sends requests whose content is made to harm, judges their answers, and repeats their size."""

import json
import time
from collections import Counter
from typing import Any

import httpx

from tests.kits.chaos.hostile.hostile_case import HostileCase, chat, texts_of
from tests.kits.chaos.hostile.ordinary_twins import Size, size_of, twin_of

_ORDINARY_TOKENS = 24
RAW_FIELDS = (
    "body", "JSON", "messages", "guided", "structured", "chat_template_kwargs", "stop", "tools", "logit_bias",
    "temperature", "user", "UTF-8",
)  # fmt: skip


class Campaign:
    """Sends cases, and notes what is wrong with their answers.

    Attributes:
        seen: How many answers had each status.
        problems: What was wrong.
        sizes: Of the requests that were answered, in the order of their answers.
    """

    def __init__(self, http: httpx.Client, model: str) -> None:
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.sizes: list[Size] = []
        self._began_s = 0.0  # when the first case was sent
        self._http, self._model = http, model

    def send(self, case: HostileCase) -> None:
        """Sends one case and judges its answer."""
        body, headers = case.body, {"Content-Type": "application/json"}
        data = body if isinstance(body, bytes) else json.dumps({"model": self._model, **body}).encode()
        self._began_s = self._began_s or time.perf_counter()
        began_s = time.perf_counter() - self._began_s
        answer = self._http.post(case.path, content=data, headers=headers)
        self.seen[f"{answer.status_code}"] += 1
        if answer.status_code == 200 and (size := size_of(began_s, answer.json())):
            self.sizes.append(size)
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


class Twins:
    """Sends ordinary requests of the sizes of a campaign, none before its time there."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._campaign = Campaign(http, model)
        self._began_s = time.perf_counter()

    def send(self, numbered: tuple[int, Size]) -> None:
        """Sends the twin of a request.

        Raises:
            AssertionError: It was not answered.
        """
        number, size = numbered
        time.sleep(max(0.0, self._began_s + size.began_s - time.perf_counter()))
        self._campaign.send(twin_of(number, size))
        assert self._campaign.problems == []


def ordinary_case(number: int) -> HostileCase:
    """Returns a request as others send them."""
    return chat("ordinary", max_tokens=_ORDINARY_TOKENS, temperature=1, seed=number)
