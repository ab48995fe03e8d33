"""Sessions whose turns go to groups of several kinds; each prompt must have all turns before it."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from services.worker.model_files.model import Model
from shared.messages import ChatMessage
from tests.kits.guests.recording_proxy import RecordingProxy
from tests.kits.guests.seams import attempts_of

ANSWER_TOKENS = 8


@dataclass(slots=True)
class MixedSession:
    """A session and what its client knows of it.

    Attributes:
        messages: Of all turns, as the client has them.
        groups: That served the turns, in order.
        total: Tokens of the last turn's prompt and answer.
    """

    name: str
    model: Model
    proxies: dict[str, RecordingProxy]
    messages: list[ChatMessage] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    total: int = 0

    def take_turn(self, api: httpx.Client) -> None:
        """Has a turn, and checks what the group was asked, if it is a guest."""
        marker = f"[{self.name} turn {len(self.groups) + 1}]"
        said = f"{marker} Say something about foxes."
        answer = api.post(
            "/v1/chat/completions",
            headers={"X-Session-Id": self.name},
            json={
                "model": self.model.name,
                "messages": [{"role": "user", "content": said}],
                "max_tokens": ANSWER_TOKENS,
                "temperature": 0,
            },
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        group = answer.headers["x-ryz-group"]
        assert "resumed" not in body, f"{marker} changed its group in mid-answer: {body}"
        assert body["session"]["turns"] == len(self.groups) + 1, body["session"]
        assert body["usage"]["prompt_tokens"] > self.total, f"{marker} at {group} lacks turns: {body}"
        self.messages.append(ChatMessage(role="user", content=said))
        if group in self.proxies:
            attempts = attempts_of(marker, [self.proxies[group]], self.model.tokenizer)
            assert attempts, f"{group} was not asked for {marker}"
            assert attempts[0].prompt.decode() == self._prompt(), f"{marker} at {group}"
        self.messages.append(ChatMessage(role="assistant", content=body["choices"][0]["message"]["content"]))
        self.groups.append(group)
        self.total = body["usage"]["total_tokens"]

    def check_record(self, api: httpx.Client) -> None:
        """Compares the stored messages and tokens with what the client has."""
        found = api.get(f"/v1/sessions/{self.name}/export")
        assert found.status_code == 200, found.text
        record: dict[str, Any] = found.json()
        stored = [(one["role"], one["content"]) for one in record["messages"]]
        assert stored == [(one.role, one.content) for one in self.messages]
        last = self.messages.pop()
        tokenizer = self.model.tokenizer
        whole = b"".join(
            tokenizer.token_text(one).encode() if one in tokenizer.special_ids else tokenizer.token_bytes(one)
            for one in record["token_ids"]
        ).decode()
        expected = self._prompt() + last.content
        assert whole.startswith(expected)
        assert whole.removeprefix(expected) in {"", *map(tokenizer.token_text, self.model.eos_ids)}

    def moves(self) -> int:
        """How often a turn was served by another group than the one before."""
        return sum(before != after for before, after in pairwise(self.groups))

    def _prompt(self) -> str:
        assert self.model.template is not None
        return self.model.template.render(self.messages)


def turns_by_group(sessions: list[MixedSession]) -> dict[str, int]:
    """The number of turns that each group served."""
    return dict(Counter(group for session in sessions for group in session.groups))
